"""From the ranks' results to rows of the table, and the check that all ranks hold the same weights."""

from collections.abc import Sequence

import numpy as np

from testbed.collectives.transport import PHASES
from testbed.errors import CollectiveError
from testbed.gnn.train import OWN_PHASES, EpochResult
from testbed.results import Table

__all__ = ["check_agreement", "record_epoch", "record_test"]

TIMES = {
    **{phase: f"{phase}_time" for phase in (*OWN_PHASES, *PHASES, "other")},
    "epoch_time": "epoch_time",
    "all_reduce_time": "communication_time",
    "all_reduce_cpu_time": "communication_cpu_time",
    "validation_time": "validation_time",
}
"""Metric's name by the name of the time in `EpochResult.times`."""

UNITS = {"steps": "steps", "packets": "packets", "wire_bytes": "B", "retransmissions": "packets"}


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

    The time in all-reduce is told apart by the box's one clock: `straggler_time` until the last rank has
    come, which no transport can help, and `exchange_time` from then on. Their sum is `communication_time`.

    :param ranks: One epoch's results, in rank order.
    """
    epoch = ranks[0].epoch
    last = np.max([result.entered for result in ranks], axis=0)
    for rank, result in enumerate(ranks):
        rows = {TIMES[name]: value for name, value in result.times.items()}
        rows["straggler_time"] = float(np.sum(last - result.entered))
        rows["exchange_time"] = float(np.sum(result.left - last))
        for metric, value in rows.items():
            table.add(trial, transport, metric, value, "s", rank=rank, epoch=epoch)
        for metric, count in result.counts.items():
            table.add(trial, transport, metric, count, UNITS[metric], rank=rank, epoch=epoch)
        table.add(trial, transport, "loss", result.loss, "nat", rank=rank, epoch=epoch)
    table.add(trial, transport, "loss", mean_loss(ranks), "nat", epoch=epoch)
    table.add(trial, transport, "validation_accuracy", validation_accuracy(ranks), "1", epoch=epoch)


def record_test(table: Table, trial: int, transport: str, accuracy: float, seconds: float) -> None:
    """Add the trained model's accuracy on the test set, and the seconds that finding it took on rank 0."""
    table.add(trial, transport, "test_accuracy", accuracy, "1")
    table.add(trial, transport, "inference_time", seconds, "s", rank=0)


def mean_loss(ranks: Sequence[EpochResult]) -> float:
    """Return the mean loss over all ranks' batches, which are of equal sizes."""
    return float(np.mean([result.loss for result in ranks]))


def validation_accuracy(ranks: Sequence[EpochResult]) -> float:
    """Return the share of right answers on the validation set, dealt out over the ranks; 0 if empty."""
    total = sum(result.val_total for result in ranks)
    return sum(result.val_correct for result in ranks) / total if total else 0.0
