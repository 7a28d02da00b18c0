"""What the ranks tell each other with every collective, in lanes of its own behind the tensor's.

The status is summed by the same ring as the tensor, which costs no collective of its own. A
histogram has a byte for each exponent, in which every rank counts itself once: the highest byte
that is not zero is the exponent of the group's largest magnitude, since what a sum can do, a
maximum can be made of. Behind it each rank has a record that no other rank writes: what tensor it
reduces, and what is wrong with its values.
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
    :param identities: What each rank reduces, as `identity_of` says it.
    :param faults: One for each rank that has one.
    """

    exponent: int
    identities: tuple[int, ...]
    faults: tuple[Fault, ...]


def status_bytes(ranks: int) -> int:
    """Length of the status: a whole number of 64-bit words."""
    return len(EXPONENTS) + ranks * _RECORD.itemsize


def identity_of(size: int, bits: int) -> int:
    """What ranks must agree on, in a number: elements of the tensor, and bits of a lane."""
    return size << 8 | bits


def describe(identity: int) -> str:
    """What `identity_of` has put together, as an error says it."""
    return f"{identity >> 8} elements in int{identity & 0xFF}"


def encode(
    ranks: int, rank: int, exponent: int, identity: int, fault: Fault | None = None
) -> bytes:
    """One rank's summand."""
    histogram, records = np.zeros(len(EXPONENTS), np.uint8), np.zeros(ranks, _RECORD)
    histogram[exponent - EXPONENTS.start] = 1
    records[rank]["identity"] = identity
    if fault is not None:
        records[rank]["kind"] = fault.kind
        records[rank]["count"] = min(fault.count, 0xFFFFFFFF)
        records[rank]["index"] = fault.index
    return histogram.tobytes() + records.tobytes()


def decode(ranks: int, data: bytes) -> Status:
    """The sum of all ranks' statuses.

    :raises ValueError: the histogram does not count every rank once: this is no sum of statuses.
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
    """What is wrong with a flat tensor of this rank's, if anything is."""
    bad = np.flatnonzero(~np.isfinite(values))
    if not bad.size:
        return None
    kind = Kind.NAN if np.isnan(values[bad[0]]) else Kind.INFINITY
    return Fault(rank, kind, int(bad[0]), int(bad.size))


def finite_absmax(values: NDArray[np.float32]) -> float:
    """Largest magnitude of the finite values; 0 if there are none."""
    return float(np.max(np.abs(values), initial=0.0, where=np.isfinite(values)))
