"""Who is there, who is gone, and who may still need this rank: what a process concludes from what its programs have heard.

A rank is alive if anything of it has been seen since nothing has come any more: a frame with data, a probe, an answer. Only what has
been silent all that time, and probed often, is called so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from testbed.protocol.generation import is_before

__all__ = ["PeerState", "absent", "silent", "untold", "unsettled"]


class PeerState(Protocol):
    """What another rank has said of itself last: ``struct ring_rank``."""

    generation: int
    settled: int
    told: int
    front: int


def silent(rank: int, before: Sequence[int], heard: Sequence[int]) -> list[int]:
    """Ranks of which nothing has been seen.

    :param before: Frames from each rank, as counted when the last progress was made.
    :param heard: As counted now.
    """
    return [other for other in range(len(heard)) if other != rank and heard[other] == before[other]]


def absent(rank: int, generation: int, peers: Sequence[PeerState]) -> list[int]:
    """Ranks that have not entered a collective, by what they said last."""
    return [
        other
        for other, peer in enumerate(peers)
        if other != rank and (not peer.generation or is_before(peer.generation, generation))
    ]


def unsettled(ranks: Sequence[int], generation: int, peers: Sequence[PeerState]) -> list[int]:
    """Of some ranks, those not known to be done with a collective: they may ask this one for what they lack."""
    return [
        other
        for other in ranks
        if is_before(peers[other].settled, generation) or not peers[other].settled
        if not peers[other].generation or not is_before(generation, peers[other].generation)
    ]


def untold(ranks: Sequence[int], generation: int, peers: Sequence[PeerState]) -> list[int]:
    """Of some ranks, those not known to know that this one is done with a collective: they may wait for it to be."""
    return [other for other in ranks if peers[other].told != generation]
