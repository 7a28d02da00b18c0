"""Embeddings as integers: the meaning of lanes and accumulators, and the C code that converts them
(``testbed/native/pinch.c``).

A lane is ``rint(x * limit / 2**exponent)``, where every rank's magnitudes are below
``2**exponent``; an accumulator has twice the width, or with packed sums the same. With weights an
accumulator sums lanes times ``rint(weight * scale)``.
"""

from __future__ import annotations

import ctypes
import math
from ctypes import c_double, c_uint32, c_void_p

import numpy as np
from numpy.typing import NDArray

from testbed.exchange.halo import Halo
from testbed.exchange.interface import Aggregation, Embeddings
from testbed.exchange.pinch.layout import Bundles, RowLayout
from testbed.kernel.abi import Struct
from testbed.native import load

__all__ = ["EXPONENTS", "LEAST_EXPONENT", "SLACK", "Numbers", "exponent_of"]

LEAST_EXPONENT = -149
"""Exponent of the smallest float32 above 0. 0 itself has the same."""
EXPONENTS = range(LEAST_EXPONENT, 129)
"""Exponents of all finite float32 values."""
SLACK = 1
"""Bits of precision that the scale of an exchange may waste, so that it does not change whenever
magnitudes do.
"""


def exponent_of(absmax: float) -> int:
    """The smallest e in `EXPONENTS` with ``absmax < 2**e``, for a finite magnitude."""
    return max(math.frexp(absmax)[1], LEAST_EXPONENT) if absmax else LEAST_EXPONENT


class Numbers:
    """The integers of one exchange.

    :param scale: Scale of weights; see `Tables`.
    :param halved: Lanes carry differences of two values, and so have half the range.
    :param slack: Bits by which exponents may exceed what magnitudes need.
    :param plain: Rows travel as they are, float32.
    """

    def __init__(
        self,
        layout: RowLayout,
        aggregation: Aggregation,
        scale: float,
        halved: bool = False,
        slack: int = SLACK,
        plain: bool = False,
    ) -> None:
        self.layout = layout
        self.slack = slack
        self.aggregation = aggregation
        self.scale = scale
        self.limit = layout.largest >> halved
        maximum = aggregation == "max"
        self.none = -(1 << (2 * layout.bits - 1)) if maximum else 0
        self.format = Struct(
            "pinch_format",
            bytes=layout.bits // 8,
            dim=layout.dim,
            words=layout.words,
            parts=layout.parts,
            rows=layout.rows,
            stride=layout.payload,
            maximum=maximum,
            limit=self.limit,
            plain=plain,
            packed=layout.packed,
        )
        self._address = self.format.address
        library = load("pinch")
        self._fill, self._collect, self._changed = (
            library.pinch_fill,
            library.pinch_collect,
            library.pinch_changed,
        )
        self._fill.argtypes = [
            c_void_p,
            c_void_p,
            c_void_p,
            c_void_p,
            c_uint32,
            c_uint32,
            c_void_p,
            c_void_p,
            c_double,
            c_void_p,
        ]
        self._fill.restype = None
        self._collect.argtypes = [
            c_void_p,
            c_void_p,
            c_void_p,
            c_uint32,
            c_uint32,
            c_void_p,
            c_double,
            ctypes.c_bool,
        ]
        self._collect.restype = None
        self._changed.argtypes = [
            c_void_p,
            c_void_p,
            c_void_p,
            c_uint32,
            c_double,
            c_void_p,
            ctypes.c_int64,
            c_void_p,
            c_uint32,
            c_void_p,
        ]
        self._changed.restype = c_uint32
        self._absmax = library.pinch_absmax
        self._absmax.argtypes, self._absmax.restype = (
            [
                c_void_p,
                c_void_p,
                c_void_p,
                c_uint32,
            ],
            c_uint32,
        )

    def factor(self, exponent: int) -> float:
        """The factor that values are multiplied by."""
        return self.limit / 2.0**exponent

    def absmax(self, x: Embeddings, positions: NDArray[np.int32]) -> float:
        """The largest magnitude in these rows; infinity or NaN if they contain one."""
        most = self._absmax(self._address, x.ctypes.data, positions.ctypes.data, len(positions))
        return float(np.uint32(most).view(np.float32))

    def reset(self, accumulators: NDArray[np.uint64]) -> None:
        """Reset all accumulators."""
        if not self.none:
            accumulators[:] = 0
        elif self.layout.bits == 32:
            accumulators[:] = 1 << 63
        else:
            accumulators[:] = 1 << 63 | 1 << 31

    def fill(
        self,
        x: Embeddings,
        bundles: Bundles,
        first: int,
        end: int,
        payloads: NDArray[np.uint8],
        frames: NDArray[np.void],
        exponent: int,
        last: NDArray[np.int32] | None = None,
    ) -> None:
        """Write the payloads of frames `first` to `end`, with their lengths and checks.

        :param last: int32, shape (owned, dim): the lanes sent last. If given, lanes are differences
            from these, which are updated.
        """
        self._fill(
            self._address,
            x.ctypes.data,
            bundles.order.ctypes.data,
            bundles.starts.ctypes.data,
            first,
            end,
            payloads.ctypes.data,
            frames.ctypes.data,
            self.factor(exponent),
            None if last is None else last.ctypes.data,
        )

    def changed(
        self,
        x: Embeddings,
        positions: NDArray[np.int32],
        exponent: int,
        last: NDArray[np.int32],
        bound: float,
        age: NDArray[np.uint32],
        staleness: int,
    ) -> NDArray[np.bool_]:
        """Which vertices have changed by more than a bound, or have changed at all and were last
        sent `staleness` exchanges ago.
        """
        found = np.zeros(len(positions), np.uint8)
        most = math.floor(min(bound * self.factor(exponent), 2.0**32))
        self._changed(
            self._address,
            x.ctypes.data,
            positions.ctypes.data,
            len(positions),
            self.factor(exponent),
            last.ctypes.data,
            most,
            age.ctypes.data,
            staleness,
            found.ctypes.data,
        )
        return found.astype(bool)

    def collect(
        self,
        accumulators: NDArray[np.uint64],
        targets: NDArray[np.int32],
        banks: int,
        out: Embeddings,
        exponent: int,
        clear: bool,
    ) -> None:
        """Read the aggregates, adding up all banks.

        :param targets: int32: the row of `out` for each accumulator; packed sums with the same row
            follow each other. Other rows become 0 (a maximum: -inf).
        :param clear: Reset the accumulators afterwards (always done for a maximum).
        """
        # A row may have several packed accumulators, so their number does not tell.
        if self.layout.packed or len(targets) < len(out):
            out.fill(-np.inf if self.none else 0)
        step = 1.0 / (self.factor(exponent) * self.scale)
        addresses = accumulators.ctypes.data, targets.ctypes.data
        self._collect(self._address, *addresses, len(targets), banks, out.ctypes.data, step, clear)

    def error_bound(self, halo: Halo, absmax: float, bound: float = 0.0) -> NDArray[np.float64]:
        """Largest error of each owned vertex's aggregate, shape (n, 1), if no element exceeds
        `absmax` in magnitude.

        It is the sum of these errors: half a step per summand (a maximum: half a step in all),
        because a lane is rounded to nearest, with a scale that may be `slack` bits higher than
        necessary; with weights, half a step of the weight unless they are whole numbers; with a
        cache, `bound` per summand; with partial sums, their rounding in float32; and the rounding
        of the result to float32, whose steps are coarse below its normal range.
        """
        degree = np.diff(halo.indptr).astype(np.float64)[:, None]
        step = 2.0 ** (math.frexp(absmax)[1] + self.slack) / self.limit if absmax else 0.0
        each = step / 2 * (1 + 2.0**-20) + bound
        least = np.where(degree > 0, 2.0**-118, 0.0)
        if self.aggregation == "max":
            return np.where(degree > 0, each + absmax * 2.0**-22 + least, 0.0)
        if self.aggregation == "weighted":
            assert halo.weights is not None
            sums = np.add.reduceat(
                np.append(np.abs(halo.weights), 0).astype(np.float64), halo.indptr[:-1]
            )[:, None]
            sums[degree == 0] = 0
            inexact = 0.0 if self.scale == 1 else 0.5 / self.scale  # of a weight
            formed = absmax * _rounding_of_sums(halo)
            return sums * (each + absmax * 2.0**-22) + degree * absmax * inexact + formed + least
        return degree * (each + absmax * 2.0**-22) + least


def _rounding_of_sums(halo: Halo) -> NDArray[np.float64]:
    """Largest error of the partial sums of each owned vertex, shape (n, 1), relative to the largest
    magnitude: n products and n - 1 sums in float32, n * 2^-24 of the sum of magnitudes (Higham,
    Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2).
    """
    if halo.sums is None or halo.weights is None:
        return np.zeros((halo.num_owned, 1))
    summands = halo.sums.halo_summands[halo.indices]
    # A partial sum's weight is at least the sum of the magnitudes of its summands' weights.
    error = np.where(
        summands > 1, summands * 2.0**-23 * np.abs(halo.weights.astype(np.float64)), 0.0
    )
    target = np.repeat(np.arange(halo.num_owned), np.diff(halo.indptr))
    total = np.zeros(halo.num_owned)
    np.add.at(total, target, error)
    return total[:, None]
