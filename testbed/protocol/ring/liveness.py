"""Who is there, who is gone, and who may still need this rank: what a process concludes from what
its programs have heard.

A rank is alive if anything of it has been seen: a frame with data, a probe, an answer. Only what
has been probed often, and has not been seen all that time, is called silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, Self

from testbed.kernel.abi import constant
from testbed.protocol.sequence import is_before

__all__ = [
    "End",
    "PeerState",
    "Reason",
    "absent",
    "silent",
    "to_blame",
    "unacknowledged",
    "unverified",
]


class Reason(IntEnum):
    """``enum ring_reason``: why a rank has given up."""

    SILENT = constant("RING_REASON_SILENT")
    ABSENT = constant("RING_REASON_ABSENT")
    TENSORS = constant("RING_REASON_TENSORS")
    STUCK = constant("RING_REASON_STUCK")
    DAMAGED = constant("RING_REASON_DAMAGED")


@dataclass(frozen=True)
class End:
    """Why a rank has given up, and which ranks it blames: ``ended`` of ``struct ring_control``."""

    reason: Reason
    ranks: tuple[int, ...] = ()

    @property
    def word(self) -> int:
        """As programs keep it and tell it on."""
        return self.reason << 32 | sum(1 << rank for rank in self.ranks)

    @classmethod
    def of(cls, word: int) -> Self | None:
        """From what programs keep; None: nobody is known to have given up."""
        if not word:
            return None
        return cls(Reason(word >> 32), tuple(rank for rank in range(32) if word >> rank & 1))


class PeerState(Protocol):
    """What another rank has said of itself last: ``struct ring_rank``."""

    @property
    def seq(self) -> int:
        """The one that it has entered; 0: it has said nothing."""

    @property
    def verified(self) -> int:
        """The one that it has verified last."""

    @property
    def verified_acked(self) -> int:
        """The latest that it knows that this rank has verified."""

    @property
    def front(self) -> int:
        """The first chunk that it waits for."""

    @property
    def ended(self) -> int:
        """1: it knows that a rank has given up; 0: it has not said so."""


def silent(rank: int, ages: Sequence[float], patience: float) -> list[int]:
    """Ranks of which nothing has been seen for a while.

    :param ages: How long ago each rank was last seen.
    :param patience: From when on a rank is silent: many questions and answers, so that not all of
        them can have been lost.
    """
    return [other for other, age in enumerate(ages) if other != rank and age >= patience]


def to_blame(quiet: Sequence[int], seq: int, peers: Sequence[PeerState]) -> list[int]:
    """Of the silent ranks, those that a collective fails for: a rank that was done with it may have
    left, unless all were.
    """
    return unverified(quiet, seq, peers) or list(quiet)


def absent(rank: int, seq: int, peers: Sequence[PeerState]) -> list[int]:
    """Ranks that have not entered a collective, by what they said last."""
    return [
        other
        for other, peer in enumerate(peers)
        if other != rank and (not peer.seq or is_before(peer.seq, seq))
    ]


def unverified(ranks: Iterable[int], seq: int, peers: Sequence[PeerState]) -> list[int]:
    """Of some ranks, those not known to be done with a collective, or to have given up: they may
    ask this one for what they lack.
    """
    return [
        other
        for other in ranks
        if is_before(peers[other].verified, seq) or not peers[other].verified
        if not peers[other].seq or not is_before(seq, peers[other].seq)
        if not peers[other].ended
    ]


def unacknowledged(ranks: Iterable[int], seq: int, peers: Sequence[PeerState]) -> list[int]:
    """Of some ranks, those not known to know that this one is done with a collective, or to have
    given up: they may wait for it to be.
    """
    return [
        other for other in ranks if peers[other].verified_acked != seq and not peers[other].ended
    ]
