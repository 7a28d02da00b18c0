"""What the ranks tell each other with every collective, in lanes of its own behind the tensor's.

The status is summed by the same ring as the tensor, which costs no collective of its own. A
histogram has a byte for each exponent, in which every rank counts itself once: the highest byte
that is not zero is the exponent of the group's largest magnitude, since what a sum can do, a
maximum can be made of. Behind it each rank has a record that no other rank writes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from testbed.protocol.lanes import EXPONENTS

__all__ = [
    "Fault",
    "Kind",
    "Status",
    "decode",
    "encode",
    "finite_absmax",
    "inspect",
    "status_bytes",
]

_RECORD = struct.Struct("<B3xIQ")


class Kind(IntEnum):
    """What was wrong with a rank's values."""

    FINE = 0
    NAN = 1
    INFINITY = 2

    @property
    def noun(self) -> str:
        """As an error names it."""
        return {"FINE": "a finite value", "NAN": "NaN", "INFINITY": "infinity"}[self.name]


@dataclass(frozen=True)
class Fault:
    """A rank has values that are not finite.

    :param index: Of the first such value in the flat tensor.
    :param count: How many there are, at most 2**32 - 1.
    """

    rank: int
    kind: Kind
    index: int
    count: int


@dataclass(frozen=True)
class Status:
    """What a collective's status says.

    :param exponent: Of the group's largest finite magnitude.
    :param faults: One for each rank that has one.
    """

    exponent: int
    faults: tuple[Fault, ...]


def status_bytes(ranks: int) -> int:
    """Length of the status: a whole number of 64-bit words."""
    return len(EXPONENTS) + ranks * _RECORD.size


def encode(ranks: int, rank: int, exponent: int, fault: Fault | None = None) -> bytes:
    """One rank's summand."""
    data = bytearray(status_bytes(ranks))
    data[exponent - EXPONENTS.start] = 1
    if fault is not None:
        _RECORD.pack_into(
            data,
            len(EXPONENTS) + rank * _RECORD.size,
            fault.kind,
            min(fault.count, 0xFFFFFFFF),
            fault.index,
        )
    return bytes(data)


def decode(ranks: int, data: bytes) -> Status:
    """The sum of all ranks' statuses.

    :raises ValueError: the histogram does not count every rank once: this is no sum of statuses.
    """
    histogram = np.frombuffer(data, np.uint8, len(EXPONENTS))
    present = np.flatnonzero(histogram)
    if int(histogram.sum(dtype=np.int64)) != ranks:
        raise ValueError(f"status counts {int(histogram.sum(dtype=np.int64))} ranks, not {ranks}")
    faults = []
    for rank in range(ranks):
        kind, count, index = _RECORD.unpack_from(data, len(EXPONENTS) + rank * _RECORD.size)
        if kind:
            faults.append(Fault(rank, Kind(kind), index, count))
    return Status(EXPONENTS[int(present[-1])], tuple(faults))


def inspect(values: NDArray[np.float32], rank: int) -> Fault | None:
    """What is wrong with a flat tensor of this rank's, if anything is."""
    bad = np.flatnonzero(~np.isfinite(values))
    if not bad.size:
        return None
    kind = Kind.NAN if np.isnan(values[bad[0]]) else Kind.INFINITY
    return Fault(rank, kind, int(bad[0]), int(bad.size))


def finite_absmax(values: NDArray[np.float32]) -> float:
    """Largest magnitude of the finite values; 0 if there are none."""
    return float(np.max(np.abs(values), initial=0.0, where=np.isfinite(values)))
