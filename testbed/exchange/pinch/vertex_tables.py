"""From a halo to the tables that programs read: the neighbours of other ranks' vertices, and the
receivers of this rank's. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import SpecError
from testbed.exchange.halo import Halo
from testbed.exchange.interface import Aggregation
from testbed.exchange.pinch.layout import HEADROOM, RowLayout
from testbed.kernel.abi import dtype
from testbed.protocol.wire import MAX_RANKS

__all__ = ["SLICE_WORDS", "Tables", "make_tables", "weight_scale"]

SLICE_WORDS = 1 << 13
"""Accumulator words to which a program adds for one vertex in one run, which takes some 10
microseconds. A vertex with more is a hub, added in slices.
"""


@dataclass(frozen=True)
class Tables:
    """What stays the same from one exchange to the next.

    :param outgoing: int32: positions of the vertices that other ranks need, ascending.
    :param masks: uint32: the ranks that need each of these, one bit each.
    :param vertices: `VERTEX`, one for every vertex of every other rank, ordered by rank and by
        position there.
    :param edges: `EDGE`: accumulators of the neighbours on this rank.
    :param targets: int32: the position of the vertex that each accumulator belongs to. Only
        vertices with neighbours on other ranks have one. Accumulators are in the order in which
        frames reach them, so that additions stay in the CPU's caches; most vertices have few
        neighbours. With packed sums, a vertex has one, in a row, for every ``2**HEADROOM``
        neighbours.
    :param hubs: Number of slots for the parts of vertices with many neighbours.
    :param slice: Neighbours to which one run adds a vertex.
    :param sources: Where each rank's vertices and frames begin in the tables.
    :param seen: Words of the bitmaps of received frames.
    :param scale: The integer that stands for a weight of 1; 1 without weights.
    :param landing: Maximum number of frames that land in one exchange; 0: programs add up rows.
    """

    outgoing: NDArray[np.int32]
    masks: NDArray[np.uint32]
    vertices: NDArray[Any]
    edges: NDArray[Any]
    targets: NDArray[np.int32]
    hubs: int
    slice: int
    sources: NDArray[np.void]
    seen: int
    scale: float
    landing: int = 0

    def for_landing(self, frames: int) -> Tables:
        """Return the tables without neighbours, which the process has: at most `frames` frames
        land.
        """
        return replace(
            self,
            vertices=self.vertices[:0],
            edges=self.edges[:0],
            targets=self.targets[:0],
            hubs=0,
            landing=max(frames, 1),
        )


def make_tables(halo: Halo, layout: RowLayout, aggregation: Aggregation) -> Tables:
    """Make a rank's tables.

    :raises SpecError: A vertex has more neighbours than an accumulator can add up.
    """
    degree = np.diff(halo.indptr)
    most = (1 << (2 * layout.bits - 1)) // ((1 << (layout.bits - 1)) - 1)
    if aggregation == "sum" and halo.num_owned and int(degree.max()) > most:
        raise SpecError(
            f"exchange: a vertex has {int(degree.max())} neighbours on other ranks: must be at most"
            f" {most} with lanes = int{layout.bits}; use int32"
        )
    masks = np.zeros(halo.sizes[halo.rank], np.uint32)
    for rank, positions in enumerate(halo.sends):
        masks[positions] |= np.uint32(1 << rank)
    outgoing = np.flatnonzero(masks)
    # List neighbours by vertex instead of vertices by neighbour.
    order = np.argsort(halo.indices, kind="stable")
    count = np.bincount(halo.indices, minlength=halo.num_halo)
    edges = np.zeros(len(order), dtype("pinch_edge"))
    target = np.repeat(np.arange(halo.num_owned), degree)[order]
    pieces = -(-degree >> HEADROOM) if layout.packed else np.minimum(degree, 1)
    touched, first_touch = np.unique(target, return_index=True)
    reached = touched[np.argsort(first_touch)]
    targets = np.repeat(reached, pieces[reached]).astype(np.int32)
    place = np.empty(halo.num_owned, np.uint32)
    place[reached] = np.cumsum(pieces[reached]) - pieces[reached]
    edges["target"] = place[target]
    if layout.packed:
        edges["target"] += _ranks_among_equals(target) >> HEADROOM
    scale = 1.0
    if aggregation == "weighted":
        assert halo.weights is not None
        scale = weight_scale(halo, layout.bits)
        edges["weight"] = np.rint(halo.weights.astype(np.float64) * scale)[order]
    slice_ = max(1, SLICE_WORDS // layout.sum_words)
    sources = np.zeros(MAX_RANKS, dtype("pinch_source"))
    first = seen = 0
    for rank, size in enumerate(halo.sizes):
        frames = size * layout.parts if rank != halo.rank else 0
        sources[rank] = size, first, seen, frames
        first += size if frames else 0
        seen += -(-frames // 32)
    vertices = np.zeros(first, dtype("pinch_vertex"))
    index = [
        int(sources["first"][rank]) + positions for rank, positions in enumerate(halo.positions)
    ]
    mine = vertices[np.concatenate(index) if index else []]
    mine["count"] = count
    mine["first"] = np.cumsum(count) - count
    large = count > slice_
    mine["hub"][large] = 1 + layout.parts * np.arange(int(large.sum()))
    vertices[np.concatenate(index)] = mine
    return Tables(
        outgoing.astype(np.int32),
        masks[outgoing],
        vertices,
        edges,
        targets,
        int(large.sum()) * layout.parts,
        slice_,
        sources,
        seen,
        scale,
    )


def _ranks_among_equals(values: NDArray[np.integer]) -> NDArray[np.uint32]:
    """Return how many earlier elements equal each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.searchsorted(ordered, ordered)
    ranks = np.empty(len(values), np.uint32)
    ranks[order] = np.arange(len(values)) - first
    return ranks


def weight_scale(halo: Halo, bits: int) -> float:
    """The factor for weights before rounding, such that no vertex's sum can overflow its
    accumulator.

    A lane's magnitude is below ``2**(bits - 1)`` and its accumulator's below ``2**(2 * bits - 1)``:
    the integer weights of a vertex may add up to ``2**bits`` in magnitude, and rounding may add
    half of one per edge; and a weight has 32 bits with its sign. Whole weights stay as they are if
    they fit.
    """
    assert halo.weights is not None
    magnitude = np.abs(halo.weights.astype(np.float64))
    if not magnitude.any():
        return 1.0
    degree = np.diff(halo.indptr)
    sums = np.add.reduceat(np.append(magnitude, 0.0), np.minimum(halo.indptr[:-1], len(magnitude)))[
        degree > 0
    ]
    room = (1 << bits) - degree[degree > 0] / 2
    if (room <= 0).any():
        raise SpecError(
            f"exchange: a vertex has {int(degree.max())} weighted neighbours: must be at most"
            f" {(2 << bits) - 1}"
        )
    largest = min((room[sums > 0] / sums[sums > 0]).min(), ((1 << 31) - 1) / magnitude.max())
    if largest >= 1 and not (magnitude % 1).any():
        return 1.0  # exact
    return float(largest)
