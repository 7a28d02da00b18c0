"""Which CPU of each host adds for its rank. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.exchange.options import Processing
from testbed.kernel.abi import constant
from testbed.protocol.pinch.packet import ANYWHERE

__all__ = ["Placement"]

_MOST_BANKS = 8
"""Maximum number of CPUs with accumulators of their own; with more CPUs, one aggregates a host's
frames.
"""
_MAX_FLOWS = constant("PINCH_MAX_FLOWS")


@dataclass(frozen=True)
class Placement:
    """How one rank's work is spread over CPUs.

    :param homes: For each rank, the CPU that aggregates for it, which is also the number of its
        flow. All are 0 if frames are aggregated where they arrive.
    :param cpu: The CPU that aggregates for this rank; `ANYWHERE`: whichever a frame arrives on.
    :param banks: Number of CPUs that have accumulators of their own.
    """

    homes: tuple[int, ...]
    cpu: int
    banks: int

    @classmethod
    def plan(cls, rank: int, ranks: int, processing: Processing, cpus: Sequence[int]) -> Placement:
        """Spread ranks over CPUs.

        :param cpus: CPUs that the host may use, ascending.
        """
        if processing != "pinned" and cpus[-1] < _MOST_BANKS:
            return cls((0,) * ranks, ANYWHERE, cpus[-1] + 1)
        homes = tuple(cpus[other % len(cpus)] % _MAX_FLOWS for other in range(ranks))
        return cls(homes, homes[rank], 1)

    @property
    def flows(self) -> list[int]:
        """All flows, ascending."""
        return sorted(set(self.homes))

    @property
    def flow_limit(self) -> int:
        """One more than the largest number of a flow: the number of entries of tables indexed by
        flow.
        """
        return max(self.homes) + 1

    def ranks_of(self, flow: int) -> int:
        """The ranks of a flow, one bit each."""
        return sum(1 << rank for rank, home in enumerate(self.homes) if home == flow)
