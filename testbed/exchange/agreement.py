"""What ranks have to agree on before they exchange: one scale, and how many frames go from whom to whom.

An all-reduce of one-hot vectors and of digits, as sums are all that it can do: the largest exponent is the highest place that
anybody has marked; a number is written by one rank alone, in digits small enough for 16-bit lanes. It is a barrier, too:
whoever has its result knows that every rank has come.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.collectives.group import Member
from testbed.collectives.transport import Transport
from testbed.errors import CollectiveError

__all__ = ["LEAST_EXPONENT", "Agreed", "agree", "exponent_of"]

LEAST_EXPONENT = -149
"""Of the least float32 above 0; 0 itself has no less."""
_EXPONENTS = 128 - LEAST_EXPONENT + 1
_BASE, _DIGITS = 64, 5


def exponent_of(absmax: float) -> int:
    """The least e with ``absmax < 2**e``, for a finite magnitude."""
    return max(math.frexp(absmax)[1], LEAST_EXPONENT) if absmax else LEAST_EXPONENT


@dataclass(frozen=True)
class Agreed:
    """What all ranks know afterwards.

    :param exponent: The largest of any rank's.
    :param counts: int64, shape (world, world): what each rank has said of each other.
    """

    exponent: int
    counts: NDArray[np.int64]


def agree(transport: Transport, exponent: int | None, counts: NDArray[np.int64], members: tuple[Member, ...]) -> Agreed:
    """Meet all ranks.

    :param exponent: This rank's; None: it has values that are not finite.
    :param counts: int64, shape (world,), below 2**30: what this rank has to say of each rank.
    :raises CollectiveError: A rank has values that are not finite (all ranks raise it, the text names the rank); or the
        all-reduce failed.
    """
    world, rank = len(members), transport.spec.rank
    vector = np.zeros(_EXPONENTS + world + world * world * _DIGITS, np.float32)
    marks, faults, digits = np.split(vector, [_EXPONENTS, _EXPONENTS + world])
    if exponent is None:
        faults[rank] = 1
    else:
        marks[exponent - LEAST_EXPONENT] = 1
    places = _BASE ** np.arange(_DIGITS)
    digits.reshape(world, world, _DIGITS)[rank] = counts[:, None] // places % _BASE
    summed = np.rint(transport.all_reduce(vector)).astype(np.int64)
    marked, faulty, written = np.split(summed, [_EXPONENTS, _EXPONENTS + world])
    if faulty.any():
        names = ", ".join(f"rank {member.rank} ({member.name})" for member in members if faulty[member.rank])
        raise CollectiveError(f"exchange: {names} has embeddings that are not finite")
    return Agreed(int(np.flatnonzero(marked)[-1]) + LEAST_EXPONENT, written.reshape(world, world, _DIGITS) @ places)
