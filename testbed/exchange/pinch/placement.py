"""Which CPU of a host adds for which rank. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.exchange.options import Processing
from testbed.kernel.abi import constant
from testbed.protocol.pinch.packet import ANYWHERE

__all__ = ["Placement"]

_MOST_BANKS = 8
"""CPUs that may each have accumulators of their own; with more, one CPU aggregates a host's frames.
"""
_MAX_FLOWS = constant("PINCH_MAX_FLOWS")


@dataclass(frozen=True)
class Placement:
    """How one rank's work is spread over CPUs.

    :param homes: The CPU that aggregates for each rank, which is the number of its flow; 0: where
        frames arrive.
    :param cpu: This rank's; `ANYWHERE`: where frames arrive.
    :param banks: CPUs that have accumulators of their own.
    """

    homes: tuple[int, ...]
    cpu: int
    banks: int

    @classmethod
    def plan(cls, rank: int, ranks: int, processing: Processing, cpus: Sequence[int]) -> Placement:
        """Spread ranks over CPUs.

        :param cpus: Those that the host may use, ascending.
        """
        if processing != "pinned" and cpus[-1] < _MOST_BANKS:
            return cls((0,) * ranks, ANYWHERE, cpus[-1] + 1)
        homes = tuple(cpus[other % len(cpus)] % _MAX_FLOWS for other in range(ranks))
        return cls(homes, homes[rank], 1)

    @property
    def flows(self) -> list[int]:
        """The flows that there are, ascending."""
        return sorted(set(self.homes))

    @property
    def flow_limit(self) -> int:
        """One more than the largest number of a flow: tables by flow have so many entries."""
        return max(self.homes) + 1

    def ranks_of(self, flow: int) -> int:
        """The ranks of a flow, a bit each."""
        return sum(1 << rank for rank, home in enumerate(self.homes) if home == flow)
