"""Which ranks are alive, which are gone, and which may still need this one, as far as a process can
tell from the frames that its programs have received.

A rank is alive if anything has arrived from it: a frame with data, a probe, an answer. It is called
silent only if it has been probed many times and nothing has arrived in all that time.
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
        """The word that programs keep and pass on."""
        return self.reason << 32 | sum(1 << rank for rank in self.ranks)

    @classmethod
    def of(cls, word: int) -> Self | None:
        """From the word that programs keep; None: no rank is known to have given up."""
        if not word:
            return None
        return cls(Reason(word >> 32), tuple(rank for rank in range(32) if word >> rank & 1))


class PeerState(Protocol):
    """What another rank has last said about itself: ``struct ring_rank``."""

    @property
    def seq(self) -> int:
        """The sequence number that it has entered; 0: none is known."""

    @property
    def verified(self) -> int:
        """The last sequence number whose results it has verified."""

    @property
    def verified_acked(self) -> int:
        """The latest sequence number that it knows this rank has verified."""

    @property
    def front(self) -> int:
        """The first chunk that it waits for."""

    @property
    def ended(self) -> int:
        """1: it knows that a rank has given up; 0: it has not said that it does."""


def silent(rank: int, ages: Sequence[float], patience: float) -> list[int]:
    """Ranks from which nothing has arrived for a while.

    :param ages: Seconds since the last frame from each rank.
    :param patience: Seconds after which a rank counts as silent: long enough for so many probes and
        answers that they cannot all have been lost.
    """
    return [other for other, age in enumerate(ages) if other != rank and age >= patience]


def to_blame(quiet: Sequence[int], seq: int, peers: Sequence[PeerState]) -> list[int]:
    """Of the silent ranks, those to blame for the failure of a collective. A rank that was done
    with it may simply have left, so such a rank is blamed only if all silent ranks were done.
    """
    return unverified(quiet, seq, peers) or list(quiet)


def absent(rank: int, seq: int, peers: Sequence[PeerState]) -> list[int]:
    """Ranks that, by what they last said, have not entered a collective."""
    return [
        other
        for other, peer in enumerate(peers)
        if other != rank and (not peer.seq or is_before(peer.seq, seq))
    ]


def unverified(ranks: Iterable[int], seq: int, peers: Sequence[PeerState]) -> list[int]:
    """Of some ranks, those that may still need data from this one: they are known neither to be
    done with a collective nor to have given up.
    """
    return [
        other
        for other in ranks
        if is_before(peers[other].verified, seq) or not peers[other].verified
        if not peers[other].seq or not is_before(seq, peers[other].seq)
        if not peers[other].ended
    ]


def unacknowledged(ranks: Iterable[int], seq: int, peers: Sequence[PeerState]) -> list[int]:
    """Of some ranks, those that may still wait for this one: they have neither confirmed that it is
    done with a collective nor given up.
    """
    return [
        other for other in ranks if peers[other].verified_acked != seq and not peers[other].ended
    ]
