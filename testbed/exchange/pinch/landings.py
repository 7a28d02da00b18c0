"""`Landings`: rows that programs have put into memory, aggregated by the process in float32."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import CollectiveError
from testbed.exchange.adjacency import Adjacency
from testbed.exchange.halo import Halo
from testbed.exchange.interface import Aggregation, Embeddings
from testbed.exchange.pinch.fixed_point import Numbers
from testbed.exchange.pinch.layout import RowLayout
from testbed.exchange.pinch.maps import Maps
from testbed.kernel.abi import Struct
from testbed.native import load
from testbed.protocol.wire import MAX_RANKS

__all__ = ["Landings", "frame_bound"]


def frame_bound(halo: Halo, layout: RowLayout) -> int:
    """Maximum number of frames that a rank receives in one exchange.

    A rank sends the rows that go to the same set of ranks in full frames and at most one that is
    partly filled, so it sends at most as many of those as there are sets with this rank; see
    `bundle`.
    """
    sets = 1 << min(halo.world - 2, MAX_RANKS) if halo.world > 1 else 0
    frames = 0
    for sources in halo.sources:
        if count := len(sources):
            frames += min(count, count // layout.rows + min(sets, count) + 1)
    return frames * layout.parts


class Landings:
    """What one rank has received in an exchange.

    :param halo: The rank's.
    :param banks: Number of CPUs on which frames land.
    """

    def __init__(
        self, halo: Halo, numbers: Numbers, aggregation: Aggregation, maps: Maps, banks: int
    ) -> None:
        layout = numbers.layout
        sizes = [size if rank != halo.rank else 0 for rank, size in enumerate(halo.sizes)]
        first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint32)
        halo_of = np.full(max(int(first[-1]), 1), -1, np.int32)
        halo_of[
            np.concatenate(
                [first[rank] + positions for rank, positions in enumerate(halo.positions)]
            ).astype(np.int64)
        ] = np.arange(halo.num_halo)
        self._rows = np.zeros(max(halo.num_halo, 1), np.uint64)
        self._matrix = (
            np.zeros((halo.num_halo, layout.dim), np.float32) if layout.parts > 1 else None
        )
        self._expected = halo.num_halo * layout.parts
        self._landings = Struct(
            "pinch_landings",
            frames=maps.landing.ctypes.data,
            landed=maps.landed.ctypes.data,
            first=first.ctypes.data,
            halo_of=halo_of.ctypes.data,
            rows=self._rows.ctypes.data,
            matrix=0 if self._matrix is None else self._matrix.ctypes.data,
            banks=banks,
            slots=maps.slots,
            stride=maps.stride,
            halo=halo.num_halo,
        )
        self._format = numbers.format
        self._memory = maps, first, halo_of  # kept alive because native code has addresses in them
        self._adjacency = Adjacency(
            *(halo.indptr, halo.indices, halo.weights, layout.dim, aggregation, self._rows),
            received=True,
        )
        self._find = load("landings").pinch_find_rows
        self._find.argtypes, self._find.restype = [ctypes.c_void_p] * 2, ctypes.c_uint64

    @property
    def redundant(self) -> int:
        """Rows that have landed but are not needed, cumulative."""
        return int(self._landings.redundant)

    def aggregate(self, out: Embeddings) -> None:
        """Aggregate everything that has landed in this exchange.

        :raises CollectiveError: Rows are missing.
        """
        found = self._find(self._landings.address, self._format.address)
        if found != self._expected:
            raise CollectiveError(
                f"exchange: {self._expected - found} rows are missing: ranks differ in halos"
            )
        self._adjacency.aggregate(self._matrix, out)

    @staticmethod
    def error_bound(halo: Halo, absmax: float, aggregation: Aggregation) -> NDArray[np.float64]:
        """Largest error of float32 arithmetic; see `Numbers.error_bound`.

        ``gamma(n) * sum of magnitudes`` for n products and their sum (Higham, Accuracy and
        Stability of Numerical Algorithms, 2nd ed., section 3.1).
        """
        target = np.repeat(np.arange(halo.num_owned), np.diff(halo.indptr))
        summands = (
            np.ones(len(target)) if halo.sums is None else halo.sums.halo_summands[halo.indices]
        )
        reach = np.ones(len(target)) if halo.sums is None else halo.sums.halo_reach[halo.indices]
        weighted = aggregation == "weighted" and halo.weights is not None
        magnitudes = (
            np.abs(halo.weights.astype(np.float64)) * (reach if halo.sums is not None else 1.0)
            if weighted and halo.weights is not None
            else summands.astype(np.float64)
        )
        count, total = np.zeros(halo.num_owned), np.zeros(halo.num_owned)
        np.add.at(count, target, summands)
        np.add.at(total, target, magnitudes)
        if aggregation == "max":
            return np.zeros((halo.num_owned, 1))
        k = (count + 1) * 2.0**-24
        bound: NDArray[np.float64] = k / (1 - k) * total * absmax
        return bound[:, None]
