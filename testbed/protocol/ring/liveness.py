"""Who is there, who is gone, and who may still need this rank: what a process concludes from what
its programs have heard.

A rank is alive if anything of it has been seen: a frame with data, a probe, an answer. Only what
has been probed often, and has not been seen all that time, is called silent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from testbed.protocol.sequence import is_before

__all__ = ["PeerState", "absent", "silent", "unacknowledged", "unverified"]


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


def silent(rank: int, ages: Sequence[float], patience: float) -> list[int]:
    """Ranks of which nothing has been seen for a while.

    :param ages: How long ago each rank was last seen.
    :param patience: From when on a rank is silent: many questions and answers, so that not all of
        them can have been lost.
    """
    return [other for other, age in enumerate(ages) if other != rank and age >= patience]


def absent(rank: int, seq: int, peers: Sequence[PeerState]) -> list[int]:
    """Ranks that have not entered a collective, by what they said last."""
    return [
        other
        for other, peer in enumerate(peers)
        if other != rank and (not peer.seq or is_before(peer.seq, seq))
    ]


def unverified(ranks: Sequence[int], seq: int, peers: Sequence[PeerState]) -> list[int]:
    """Of some ranks, those not known to be done with a collective: they may ask this one for what
    they lack.
    """
    return [
        other
        for other in ranks
        if is_before(peers[other].verified, seq) or not peers[other].verified
        if not peers[other].seq or not is_before(seq, peers[other].seq)
    ]


def unacknowledged(ranks: Sequence[int], seq: int, peers: Sequence[PeerState]) -> list[int]:
    """Of some ranks, those not known to know that this one is done with a collective: they may wait
    for it to be.
    """
    return [other for other in ranks if peers[other].verified_acked != seq]
