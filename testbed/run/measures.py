"""From the ranks' results to rows of the table, and the check that all ranks hold the same weights."""

from collections.abc import Mapping, Sequence

import numpy as np

from testbed.errors import CollectiveError
from testbed.gnn.partition import Quality
from testbed.gnn.result import EpochResult
from testbed.results import Table

__all__ = [
    "check_agreement",
    "mean_loss",
    "record_counts",
    "record_epoch",
    "record_partition",
    "record_test",
    "validation_accuracy",
]

UNITS = {
    "steps": "steps",
    "packets": "packets",
    "retransmissions": "packets",
    "syscalls": "calls",
    "page_faults": "faults",
    "crossings": "crossings",
}
"""Units of what is counted; metrics with ``bytes`` in their names have B, all others 1."""


def check_agreement(transport: str, ranks: Sequence[EpochResult]) -> None:
    """Check that all ranks ended an epoch with the same weights.

    :param ranks: One epoch's results, in rank order.
    :raises CollectiveError: They did not; the text names the ranks that differ from rank 0.
    """
    differing = [str(rank) for rank, result in enumerate(ranks) if result.digest != ranks[0].digest]
    if differing:
        raise CollectiveError(
            f"{transport}: after epoch {ranks[0].epoch} the weights of rank {', '.join(differing)} differ "
            "from rank 0's: an all-reduce gave ranks different sums"
        )


def record_epoch(table: Table, trial: int, transport: str, ranks: Sequence[EpochResult]) -> None:
    """Add one epoch's rows: each rank's times and counts, and what all ranks together reached.

    The time in collectives is told apart by the box's one clock: `straggler_time` until the last rank has
    come, which no transport can help, and `exchange_time` from then on. Their sum is `communication_time`.

    :param ranks: One epoch's results, in rank order.
    """
    epoch = ranks[0].epoch
    last = np.max([result.entered for result in ranks], axis=0)
    for rank, result in enumerate(ranks):
        rows = {name if name.endswith("_time") else f"{name}_time": value for name, value in result.times.items()}
        rows["straggler_time"] = float(np.sum(last - result.entered))
        rows["exchange_time"] = float(np.sum(result.left - last))
        for metric, value in rows.items():
            table.add(trial, transport, metric, value, "s", rank=rank, epoch=epoch)
        record_counts(table, trial, transport, rank, epoch, result.counts)
        table.add(trial, transport, "loss", result.loss, "nat", rank=rank, epoch=epoch)
    table.add(trial, transport, "loss", mean_loss(ranks), "nat", epoch=epoch)
    table.add(trial, transport, "validation_accuracy", validation_accuracy(ranks), "1", epoch=epoch)


def record_counts(table: Table, trial: int, transport: str, rank: int, epoch: int | None, counts: Mapping[str, float]) -> None:
    """Add what a rank has counted, in an epoch or, of one that is not timed, in None."""
    for metric, count in counts.items():
        unit = "B" if "bytes" in metric else UNITS.get(metric, "1")
        table.add(trial, transport, metric, count, unit, rank=rank, epoch=epoch)


def record_partition(table: Table, trial: int, transport: str, quality: Quality) -> None:
    """Add what the partition is worth that a trial trains on."""
    for metric, value in vars(quality).items():
        table.add(trial, transport, metric, value, "edges" if metric == "edge_cut" else "1")


def record_test(table: Table, trial: int, transport: str, accuracy: float, seconds: float) -> None:
    """Add the trained model's accuracy on the test set, and the seconds that finding it took on rank 0."""
    table.add(trial, transport, "test_accuracy", accuracy, "1")
    table.add(trial, transport, "inference_time", seconds, "s", rank=0)


def mean_loss(ranks: Sequence[EpochResult]) -> float:
    """Return the mean loss over all ranks' training vertices."""
    return sum(result.share * result.loss for result in ranks)


def validation_accuracy(ranks: Sequence[EpochResult]) -> float:
    """Return the share of right answers on the validation set, dealt out over the ranks; 0 if empty."""
    total = sum(result.val_total for result in ranks)
    return sum(result.val_correct for result in ranks) / total if total else 0.0
