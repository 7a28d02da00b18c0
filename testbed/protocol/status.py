"""The status: what ranks tell each other with every collective, in lanes of its own behind the
tensor's.

The same ring sums the status and the tensor, so the status needs no extra collective. A histogram
has a byte for each exponent, and every rank increments one of them: the highest nonzero byte gives
the exponent of the group's largest magnitude, so a sum computes a maximum. Behind the histogram,
each rank has a record to which no other rank adds: which tensor it reduces, and what is wrong with
its values.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from testbed.kernel.abi import dtype
from testbed.protocol.lanes import EXPONENTS

__all__ = [
    "Fault",
    "Kind",
    "Operation",
    "Status",
    "decode",
    "describe",
    "encode",
    "finite_absmax",
    "identity_of",
    "inspect",
    "status_bytes",
]

_RECORD = dtype("ring_status_record")


class Kind(IntEnum):
    """What is wrong with a rank's values."""

    FINE = 0
    NAN = 1
    INFINITY = 2

    @property
    def noun(self) -> str:
        """Its name in error messages."""
        return {"FINE": "a finite value", "NAN": "NaN", "INFINITY": "infinity"}[self.name]


@dataclass(frozen=True)
class Fault:
    """A rank has values that are not finite.

    :param index: Index of the first such value in the flat tensor.
    :param count: Number of such values, at most 2**32 - 1.
    """

    rank: int
    kind: Kind
    index: int
    count: int


@dataclass(frozen=True)
class Status:
    """The decoded status of a collective.

    :param exponent: Exponent of the group's largest finite magnitude.
    :param identities: What each rank reduces, as `identity_of` encodes it.
    :param faults: At most one for each rank.
    """

    exponent: int
    identities: tuple[int, ...]
    faults: tuple[Fault, ...]


def status_bytes(ranks: int) -> int:
    """Length of the status: a whole number of 64-bit words."""
    return len(EXPONENTS) + ranks * _RECORD.itemsize


class Operation(IntEnum):
    """What a collective does with its tensor."""

    ALL_REDUCE = 0
    REDUCE_SCATTER = 1
    ALL_GATHER = 2
    BROADCAST = 3

    @property
    def noun(self) -> str:
        """Its name in error messages."""
        return self.name.lower().replace("_", "-")


def identity_of(size: int, bits: int, operation: Operation = Operation.ALL_REDUCE) -> int:
    """What ranks must agree on, as one number: elements of the whole tensor, bits of a lane, and
    the operation.
    """
    return size << 8 | operation << 6 | bits


def describe(identity: int) -> str:
    """Describe an identity, as made by `identity_of`, for an error message."""
    operation = Operation(identity >> 6 & 3)
    text = f"{identity >> 8} elements in int{identity & 0x3F}"
    return text if operation is Operation.ALL_REDUCE else f"{operation.noun} of {text}"


def encode(
    ranks: int, rank: int, exponent: int, identity: int, fault: Fault | None = None
) -> bytes:
    """One rank's summand of the status."""
    histogram, records = np.zeros(len(EXPONENTS), np.uint8), np.zeros(ranks, _RECORD)
    histogram[exponent - EXPONENTS.start] = 1
    records[rank]["identity"] = identity
    if fault is not None:
        records[rank]["kind"] = fault.kind
        records[rank]["count"] = min(fault.count, 0xFFFFFFFF)
        records[rank]["index"] = fault.index
    return histogram.tobytes() + records.tobytes()


def decode(ranks: int, data: bytes) -> Status:
    """Decode the sum of all ranks' statuses.

    :raises ValueError: The histogram does not count every rank once, so this is not a sum of
        statuses.
    """
    histogram = np.frombuffer(data, np.uint8, len(EXPONENTS))
    present = np.flatnonzero(histogram)
    if int(histogram.sum(dtype=np.int64)) != ranks:
        raise ValueError(f"status counts {int(histogram.sum(dtype=np.int64))} ranks, not {ranks}")
    records = np.frombuffer(data, _RECORD, ranks, len(EXPONENTS))
    faults = tuple(
        Fault(rank, Kind(record["kind"]), int(record["index"]), int(record["count"]))
        for rank, record in enumerate(records)
        if record["kind"]
    )
    return Status(EXPONENTS[int(present[-1])], tuple(records["identity"].tolist()), faults)


def inspect(values: NDArray[np.float32], rank: int) -> Fault | None:
    """What is wrong with this rank's flat tensor, if anything."""
    bad = np.flatnonzero(~np.isfinite(values))
    if not bad.size:
        return None
    kind = Kind.NAN if np.isnan(values[bad[0]]) else Kind.INFINITY
    return Fault(rank, kind, int(bad[0]), int(bad.size))


def finite_absmax(values: NDArray[np.float32]) -> float:
    """Largest magnitude of the finite values; 0 if there are none."""
    return float(np.max(np.abs(values), initial=0.0, where=np.isfinite(values)))
