"""From the ranks' results to rows of the table: what every workload records, and what reports rely
on.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from testbed.results import Table

__all__ = ["RankEpoch", "record_counts", "record_times"]

UNITS = {
    "steps": "steps",
    "packets": "packets",
    "retransmissions": "packets",
    "syscalls": "calls",
    "page_faults": "faults",
    "crossings": "crossings",
}
"""Units of what is counted; metrics with ``bytes`` in their names have B, all others 1."""


class RankEpoch(Protocol):
    """One rank's record of one epoch; times in seconds."""

    @property
    def epoch(self) -> int:
        """From 0."""

    @property
    def times(self) -> Mapping[str, float]:
        """By name: `epoch_time` and its parts as the workload's `Report` names them, which add up
        to it; and for collectives `communication_time` (wall clock) and `communication_cpu_time`
        (CPU time of this process).
        """

    @property
    def entered(self) -> NDArray[np.float64]:
        """Shape (collectives,): when this rank entered each, on the machine's monotonic clock."""

    @property
    def left(self) -> NDArray[np.float64]:
        """When it left each."""

    @property
    def counts(self) -> Mapping[str, float]:
        """Counts: `steps`; `packets`, `wire_bytes` and `retransmissions` sent by this rank; and
        anything else.
        """


def record_times(table: Table, trial: int, backend: str, ranks: Sequence[RankEpoch]) -> None:
    """Add one epoch's rows: each rank's times and counts.

    All ranks share one clock, which splits the time in collectives: `straggler_time` until the last
    rank has entered, which no backend can influence, and `exchange_time` from then on. Their sum is
    `communication_time`.

    :param ranks: One epoch's results, in rank order.
    """
    epoch = ranks[0].epoch
    table.collectives = {
        rank: (result.entered.tolist(), result.left.tolist()) for rank, result in enumerate(ranks)
    }
    last = np.max([result.entered for result in ranks], axis=0)
    for rank, result in enumerate(ranks):
        rows = {
            name if name.endswith("_time") else f"{name}_time": value
            for name, value in result.times.items()
        }
        rows["straggler_time"] = float(np.sum(last - result.entered))
        rows["exchange_time"] = float(np.sum(result.left - last))
        for metric, value in rows.items():
            table.add(trial, backend, metric, value, "s", rank=rank, epoch=epoch)
        record_counts(table, trial, backend, rank, epoch, result.counts)


def record_counts(
    table: Table,
    trial: int,
    backend: str,
    rank: int,
    epoch: int | None,
    counts: Mapping[str, float],
) -> None:
    """Add a rank's counts, for an epoch, or None for one that is not timed."""
    for metric, count in counts.items():
        unit = "B" if "bytes" in metric else UNITS.get(metric, "1")
        table.add(trial, backend, metric, count, unit, rank=rank, epoch=epoch)
