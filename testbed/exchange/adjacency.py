"""Rows as they travel, and `Adjacency`, which aggregates received rows into those of this rank's
vertices, in user space.
"""

from __future__ import annotations

import ctypes
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from testbed.exchange.halo import Halo, Sums
from testbed.kernel.abi import Struct, constant
from testbed.native import load

if TYPE_CHECKING:
    from testbed.exchange.interface import Aggregation, Embeddings

__all__ = ["LARGE", "Adjacency", "RowFormat", "RowLanes", "row_source"]

RowLanes = Literal["float32", "bfloat16", "int16", "fixed16", "fixed32"]
"""How the elements of a row travel; the last two, if programs add them up."""

_WORDS = constant("TOKEN_WORDS")

LARGE = 2.0**108
"""Magnitudes from which on sums of float32 may pass through infinity, so that they are formed in
float64 (``rows.h``).
"""


@dataclass(frozen=True)
class RowFormat:
    """The shape of rows in a message; ``bpf/shared/rows_native_abi.h`` describes it.

    :param stepped: Each row has a step, a power of two by which its lanes are multiplied: all rows
        of int16 have one; others, if they may be sums that are too large for a float32. Fixed
        lanes have one for a whole message.
    :param marked: A message begins with a bit for each row: whether it has that row.
    """

    lanes: RowLanes
    dim: int
    stepped: bool
    marked: bool = False

    @classmethod
    def of(cls, lanes: RowLanes, dim: int, halo: Halo, marked: bool = False) -> RowFormat:
        """Return the format of an exchange's rows."""
        stepped = lanes == "int16" or (halo.sums is not None and not lanes.startswith("fixed"))
        return cls(lanes, dim, stepped, marked)

    @property
    def is_fixed(self) -> bool:
        """Whether programs add rows up."""
        return self.lanes.startswith("fixed")

    @property
    def lane_bytes(self) -> int:
        """Bytes of an element."""
        return 4 if self.lanes in ("float32", "fixed32") else 2

    @property
    def lane_bits(self) -> int:
        """Bits of a fixed lane, which leaves one."""
        return constant("TOKEN_WIDE_BITS" if self.lane_bytes == 4 else "TOKEN_BITS")

    @property
    def blocks(self) -> int:
        """Of fixed lanes: how often a program adds words of a row, as many as it can at once."""
        return -(-self.dim * self.lane_bytes // (8 * _WORDS))

    @property
    def words(self) -> int:
        """Of fixed lanes: 64-bit words of a row that a program adds at once."""
        return min(-(-self.dim * self.lane_bytes // 8), _WORDS)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, without its step."""
        if self.is_fixed:
            return 8 * self.words * self.blocks
        return (self.dim * self.lane_bytes + 3) // 4 * 4

    def message_bytes(self, rows: int) -> int:
        """Bytes of a message with so many rows, all of them."""
        marks = (rows + 63) // 64 * 8 if self.marked else 0
        steps = bool(rows) if self.is_fixed else rows * self.stepped
        return marks + rows * self.row_bytes + 4 * steps

    def tag(self, aggregation: Aggregation, halo: Halo) -> int:
        """Return 16 bits that differ for formats that are used differently."""
        kind = f"{self} {aggregation} {halo.sums is not None}"
        return zlib.crc32(kind.encode()) & 0xFFFF

    @property
    def number(self) -> int:
        """``enum row_lanes``."""
        return constant(f"ROW_{self.lanes.upper()}")


def row_source(form: RowFormat, sums: Sums | None, aggregation: Aggregation) -> Struct:
    """What a rank sends, for native code: ``struct row_source``. The sums must outlive it."""
    source = Struct(
        "row_source",
        lanes=form.number,
        dim=form.dim,
        row_bytes=form.row_bytes,
        summed=sums is not None,
    )
    if sums is not None:
        source.sums = Struct(
            "adjacency",
            targets=len(sums.indptr) - 1,
            dim=form.dim,
            indptr=sums.indptr.ctypes.data,
            indices=sums.indices.ctypes.data,
            weights=0 if sums.weights is None else sums.weights.ctypes.data,
            lanes=constant("ROW_FLOAT32"),
            sum=constant(f"ADJACENCY_{aggregation.upper()}"),
        ).value
    return source


def _are_heavy(weights: NDArray[np.float32]) -> bool:
    """Whether products of rows below `LARGE` with weights may pass through infinity, or with steps
    leave the normal numbers: then they are formed in float64, too.
    """
    magnitudes = np.abs(weights[weights != 0])
    least, most = magnitudes.min(initial=1.0), magnitudes.max(initial=1.0)
    return not 2.0**-48 <= least <= most <= 2.0**12


class Adjacency:
    """A sparse matrix whose rows are targets and whose columns are sources.

    The product is in C (``testbed/native/aggregate.c``): for 16 to 512 columns it takes half the
    time of scipy's or torch's.

    :param indptr: int64, shape (n + 1,).
    :param indices: int32: row numbers in the matrix that is aggregated.
    :param weights: float32, one per entry of `indices`, or None: only for ``weighted``.
    :param dim: Columns of that matrix.
    :param places: uint64: the address of each row, if rows are not in a matrix.
    :param form: The format of rows that are in a message; their `offsets`, uint32, in units of 4
        bytes, one per source; and their `steps`, float32, one per source, if they have any.
    :param received: Rows have come from other ranks, in a message as a rule, and may be as large as
        float32 can be, whatever their weights.
    """

    def __init__(
        self,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int32],
        weights: NDArray[np.float32] | None,
        dim: int,
        aggregation: Aggregation,
        places: NDArray[np.uint64] | None = None,
        form: RowFormat | None = None,
        offsets: NDArray[np.uint32] | None = None,
        steps: NDArray[np.float32] | None = None,
        received: bool | None = None,
    ) -> None:
        received = (form is not None if received is None else received) and (
            aggregation == "weighted"
        )
        by_index = None if offsets is None else np.ascontiguousarray(offsets[indices])
        numbers = np.flatnonzero(np.diff(indptr))
        starts = np.append(indptr[numbers], indptr[-1:])
        self._heavy = received and weights is not None and _are_heavy(weights)
        # Kept alive because the structure points to them.
        self._arrays = numbers, starts, indices, weights, places, by_index, steps
        self._call = load("aggregate").aggregate
        self._call.argtypes = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p]
        self._call.restype = None
        self._struct = Struct(
            "adjacency",
            rows=len(indptr) - 1,
            targets=len(numbers),
            numbers=numbers.ctypes.data,
            dim=dim,
            indptr=starts.ctypes.data,
            indices=indices.ctypes.data,
            weights=0 if weights is None else weights.ctypes.data,
            places=0 if places is None else places.ctypes.data,
            offsets=0 if by_index is None else by_index.ctypes.data,
            lanes=constant("ROW_FLOAT32") if form is None else form.number,
            sum=constant(f"ADJACENCY_{aggregation.upper()}"),
            steps=0 if steps is None else steps.ctypes.data,
        )

    def aggregate(
        self, rows: NDArray[np.generic] | None, out: Embeddings, large: bool = False
    ) -> None:
        """Aggregate rows.

        :param rows: A C-contiguous float32 matrix with `dim` columns, or the memory in which
            `offsets` lead to rows; None: rows are at `places`.
        :param out: C-contiguous float32 of shape (n, dim): 0 (``max``: -inf) for a target without
            sources.
        :param large: Some magnitudes are `LARGE` or more.
        """
        source = None if rows is None else rows.ctypes.data
        self._call(self._struct.address, large or self._heavy, source, out.ctypes.data)
