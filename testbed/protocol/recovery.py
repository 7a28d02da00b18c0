"""Which chunks to ask for when results stay away.

Results of one owner come in the order in which they were launched, but for loss: a chunk is overtaken once a later one of the
same owner is there. An overtaken chunk may be just behind (its frame was worked on by another CPU), so it is asked for at
the second look. When nothing moves at all there is nothing to be overtaken by: whatever has been launched may be lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Plea", "missing", "plead", "slots_of"]

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Plea:
    """What one look at the results calls for.

    :param request: Chunks to ask their owners for.
    :param resend: Own chunks that were launched, to be launched again.
    :param claim: Own slots to claim and launch that no token is left for.
    :param overtaken: For each chunk, whether it is overtaken now: `plead` wants it at the next look.
    """

    request: list[int]
    resend: list[int]
    claim: int
    overtaken: Bools


def slots_of(rank: int, ranks: int, total: int) -> int:
    """Chunks below ``total`` that a rank owns: its slots."""
    return max(0, -(-(total - rank) // ranks))


def missing(done: NDArray[np.unsignedinteger], generation: int) -> Bools:
    """For each chunk, whether its result is not stored, from the generations of those that are."""
    absent: Bools = done != generation
    return absent


def plead(rank: int, ranks: int, window: int, absent: Bools, overdue: Bools, launched: int, stalled: bool) -> Plea:
    """Decide what to ask for, at most a window an owner.

    :param absent: For each chunk of the collective, whether this rank lacks its result (`missing`).
    :param overdue: Chunks that were overtaken at the last look.
    :param launched: Slots of its own that this rank has given to tokens (``next``).
    :param stalled: Nothing has come since the last look.
    """
    total = absent.size
    chunks = np.arange(total)
    # The latest result of each owner: what its earlier chunks have been overtaken by.
    latest = np.full(-(-total // ranks) * ranks, -1)
    latest[:total] = np.where(absent, -1, chunks)
    latest = latest.reshape(-1, ranks).max(axis=0)
    overtaken = absent & (chunks < latest[chunks % ranks])
    wanted = np.flatnonzero(overtaken & overdue)
    if stalled:
        wanted = np.union1d(wanted, np.flatnonzero(absent)[: window * ranks])
    wanted = wanted[: window * ranks]
    own = wanted % ranks == rank
    return Plea(
        request=wanted[~own].tolist(),
        resend=wanted[own & (wanted // ranks < launched)].tolist(),
        claim=min(window, max(0, slots_of(rank, ranks, total) - launched)) if stalled else 0,
        overtaken=overtaken,
    )
