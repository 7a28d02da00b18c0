"""The measurements of training other than times, and the check that all ranks hold the same
weights.
"""

from collections.abc import Sequence

from testbed.core.errors import CollectiveError
from testbed.gnn.partition import Quality
from testbed.gnn.result import EpochResult, share_of
from testbed.results import Run, Table
from testbed.workloads.measures import record_times
from testbed.workloads.workload import Turn

__all__ = [
    "check_agreement",
    "gradient",
    "mean_loss",
    "record_epoch",
    "record_quality",
    "record_test",
    "validation_accuracy",
]


def check_agreement(backend: str, ranks: Sequence[EpochResult]) -> None:
    """Check that all ranks ended an epoch with the same weights.

    :param ranks: One epoch's results, in rank order.
    :raises CollectiveError: They did not; the text names the ranks that differ from rank 0.
    """
    differing = [str(rank) for rank, result in enumerate(ranks) if result.digest != ranks[0].digest]
    if differing:
        raise CollectiveError(
            f"{backend}: after epoch {ranks[0].epoch} the weights of rank {', '.join(differing)}"
            " differ from rank 0's, from which they began: an all-reduce gave ranks different sums,"
            " or the module updates weights by other means than its gradient"
        )


def record_epoch(table: Table, turn: Turn, ranks: Sequence[EpochResult]) -> str:
    """Check and add one epoch: each rank's times, counts and loss, and the results of all ranks
    together.

    :param ranks: One epoch's results, in rank order.
    :returns: What to tell the user.
    :raises CollectiveError: As in `check_agreement`.
    """
    trial, backend, epoch = turn.trial, turn.backend, ranks[0].epoch
    check_agreement(backend, ranks)
    record_times(table, trial, backend, ranks)
    for rank, result in enumerate(ranks):
        table.add(trial, backend, "loss", result.loss, "nat", rank=rank, epoch=epoch)
    loss, accuracy = mean_loss(ranks), validation_accuracy(ranks)
    table.add(trial, backend, "loss", loss, "nat", epoch=epoch)
    validation = ""
    if accuracy is not None:
        table.add(trial, backend, "validation_accuracy", accuracy, "1", epoch=epoch)
        validation = f" validation {accuracy:.1%},"
    seconds = max(result.times["epoch_time"] for result in ranks)
    return f"loss {loss:.3f},{validation} {seconds:.2f} s"


def record_quality(table: Table, trial: int, backend: str, quality: Quality) -> None:
    """Add the measures of a partition."""
    for metric, value in vars(quality).items():
        table.add(trial, backend, metric, value, "edges" if metric == "edge_cut" else "1")


def record_test(
    table: Table, trial: int, backend: str, accuracy: float | None, seconds: float
) -> str:
    """Add the trained model's accuracy on the test set, and the seconds that finding it took on
    rank 0; nothing if the set is empty.

    :param accuracy: As of `share_of`.
    :returns: What to tell the user.
    """
    if accuracy is None:
        return f"{backend}: no test accuracy, because the test set is empty"
    table.add(trial, backend, "test_accuracy", accuracy, "1")
    table.add(trial, backend, "inference_time", seconds, "s", rank=0)
    return f"{backend}: test accuracy {accuracy:.2%}"


def mean_loss(ranks: Sequence[EpochResult]) -> float:
    """Return the mean loss over all ranks' training vertices."""
    return sum(result.share * result.loss for result in ranks)


def validation_accuracy(ranks: Sequence[EpochResult]) -> float | None:
    """Return the accuracy on the validation set, which is distributed over the ranks; None if it is
    empty.
    """
    return share_of(
        sum(result.val_correct for result in ranks), sum(result.val_total for result in ranks)
    )


def gradient(run: Run, every: str) -> str:
    """Say how much is summed."""
    parameters, size = run.manifest["parameters"], run.manifest["gradient_bytes"]
    return f"a gradient of {parameters:,} float32 ({size / 1e6:.2f} MB) summed every {every}"
