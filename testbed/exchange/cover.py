"""`cover_halos`: what travels between two ranks is a minimum vertex cover of the edges between
them. Pure.

For an edge from a vertex of one rank to a vertex of another, either the source's row travels, and
the target's rank adds it, or the source's rank adds it to a partial sum for the target, and that
sum travels. Every edge needs one of the two, so the fewest rows that serve all edges between two
ranks are a minimum vertex cover of a bipartite graph. By Koenig's theorem it is as large as a
maximum matching, and a matching gives the cover: Bondy and Murty, "Graph Theory" (2008), theorem
8.32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_bipartite_matching

from testbed.exchange.halo import Halo, Sums

__all__ = ["cover_halos", "minimum_cover"]


def minimum_cover(
    sources: NDArray[np.integer], targets: NDArray[np.integer], shape: tuple[int, int]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Find a minimum vertex cover of a bipartite graph.

    The matching is Hopcroft and Karp's, in O(edges * sqrt(vertices)). With Z the vertices that
    alternating paths reach from unmatched sources, the cover is the sources outside Z and the
    targets inside it.

    :param sources: Shape (edges,); `targets` likewise. Edges may repeat.
    :param shape: Numbers of sources and of targets.
    :returns: Which sources and which targets are in the cover.
    """
    rows, columns = shape
    if not len(sources):
        return np.zeros(rows, bool), np.zeros(columns, bool)
    edges = csr_array((np.ones(len(sources), np.int8), (sources, targets)), shape)
    match = maximum_bipartite_matching(edges, perm_type="column")  # of each source; -1: none
    matched = np.flatnonzero(match >= 0)
    free = np.flatnonzero(match < 0)
    # Directed: from a root to unmatched sources, along edges to targets, and back along the
    # matching.
    root = rows + columns
    tails = [np.full(len(free), root), sources, rows + match[matched]]
    heads = [free, rows + np.asarray(targets), matched]
    pairs = np.concatenate(tails), np.concatenate(heads)
    paths = csr_array((np.ones(len(pairs[0]), np.int8), pairs), (root + 1, root + 1))
    reached = np.zeros(root + 1, bool)
    reached[breadth_first_order(paths, root, return_predecessors=False)] = True
    return ~reached[:rows], reached[rows:root]


@dataclass(frozen=True)
class _Cut:
    """The edges from one rank to another, in the order of the other's adjacency.

    :param target: Positions at the other rank.
    :param source: Positions at this rank.
    :param weights: None if the adjacency has none.
    :param edges: Where they are in the other rank's `Halo.indices`.
    :param rows: Positions here of the vertices whose rows travel, ascending.
    :param summed: Whether an edge is part of a partial sum.
    """

    target: NDArray[np.int64]
    source: NDArray[np.int64]
    weights: NDArray[np.float32] | None
    edges: NDArray[np.int64]
    rows: NDArray[np.int64]
    summed: NDArray[np.bool_]

    @property
    def sums(self) -> NDArray[np.int64]:
        """Positions at the other rank of the vertices whose partial sums travel, ascending."""
        return np.unique(self.target[self.summed])


def _cut(source: Halo, target: Halo) -> _Cut:
    first = sum(len(target.sources[rank]) for rank in range(source.rank))
    count = len(target.sources[source.rank])
    halo_of = target.indices.astype(np.int64) - first
    edges = np.flatnonzero((halo_of >= 0) & (halo_of < count))
    rows = np.repeat(np.arange(target.num_owned), np.diff(target.indptr))[edges]
    columns = halo_of[edges]
    positions = target.positions[source.rank]
    travel, summed = minimum_cover(columns, rows, (count, target.num_owned))
    return _Cut(
        rows,
        positions[columns],
        None if target.weights is None else target.weights[edges],
        edges,
        positions[travel],
        # An edge that both ends cover goes into the sum: it is added once either way.
        summed[rows],
    )


def cover_halos(halos: Sequence[Halo]) -> tuple[Halo, ...]:
    """Make the halos in which each pair of ranks sends a minimum vertex cover of its edges.

    What a rank sends are rows of `Sums`: those of single vertices, and partial sums. Local
    neighbours stay as they are.

    :param halos: All ranks', as `make_halos` makes them.
    """
    cuts = [[_cut(source, target) for target in halos] for source in halos]
    # Partial sums are numbered after all vertices: rank after rank, and by their targets.
    vertices = sum(halo.num_owned for halo in halos)
    formed = [_form(halo, cuts[halo.rank], halos, (1 + halo.rank) * vertices) for halo in halos]
    return tuple(_receive(halo, halos, cuts, formed) for halo in halos)


@dataclass(frozen=True)
class _Formed:
    """What a rank forms of its vertices, and the positions of what it sends, by rank: rows of
    single vertices first.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    weights: NDArray[np.float32] | None
    numbers: NDArray[np.int64]
    reach: NDArray[np.float64]
    rows: tuple[NDArray[np.int64], ...]
    sums: tuple[NDArray[np.int64], ...]

    def sends(self, rank: int) -> NDArray[np.int64]:
        """Positions of what goes to a rank, ascending."""
        return np.concatenate([self.rows[rank], self.sums[rank]])


def _form(halo: Halo, cuts: Sequence[_Cut], halos: Sequence[Halo], first: int) -> _Formed:
    travelling = np.unique(np.concatenate([cut.rows for cut in cuts]))
    # A target belongs to one rank only, so its number in the graph identifies its partial sum.
    targets = [halos[rank].owned[cut.sums] for rank, cut in enumerate(cuts)]
    numbers = np.sort(np.concatenate(targets))
    row = [np.arange(len(travelling))]
    column = [travelling]
    weights = [np.ones(len(travelling), np.float32)]
    for rank, cut in enumerate(cuts):
        chosen = cut.summed
        summed = halos[rank].owned[cut.target[chosen]]
        row.append(len(travelling) + np.searchsorted(numbers, summed))
        column.append(cut.source[chosen])
        if cut.weights is not None:
            weights.append(cut.weights[chosen])
    order = np.argsort(np.concatenate(row), kind="stable")
    count = np.bincount(np.concatenate(row), minlength=len(travelling) + len(numbers))
    indptr = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    weighted = halo.weights is not None
    values = np.concatenate(weights)[order] if weighted else None
    reach = count.astype(np.float64)
    if values is not None and len(values):
        reach = np.add.reduceat(np.abs(values.astype(np.float64)), indptr[:-1])
    return _Formed(
        indptr,
        np.concatenate(column)[order].astype(np.int32),
        values,
        np.concatenate([halo.owned[travelling], first + numbers]),
        reach,
        tuple(np.searchsorted(travelling, cut.rows) for cut in cuts),
        tuple(len(travelling) + np.searchsorted(numbers, each) for each in targets),
    )


def _receive(
    halo: Halo, halos: Sequence[Halo], cuts: Sequence[Sequence[_Cut]], formed: Sequence[_Formed]
) -> Halo:
    target, column, weights, sources, positions, summands, reach = [], [], [], [], [], [], []
    first = 0
    for rank, each in enumerate(formed):
        cut, sends = cuts[rank][halo.rank], each.sends(halo.rank)
        rows = ~cut.summed
        sums = cut.sums
        target += [cut.target[rows], sums]
        column += [
            first + np.searchsorted(cut.rows, cut.source[rows]),
            first + len(cut.rows) + np.arange(len(sums)),
        ]
        if cut.weights is not None:
            weights += [cut.weights[rows], np.ones(len(sums), np.float32)]
        sources.append(each.numbers[sends])
        positions.append(sends)
        summands.append(np.diff(each.indptr)[sends])
        reach.append(each.reach[sends])
        first += len(sends)
    targets = np.concatenate(target)
    order = np.argsort(targets, kind="stable")
    count = np.bincount(targets, minlength=halo.num_owned)
    mine = formed[halo.rank]
    return replace(
        halo,
        sends=tuple(mine.sends(rank) for rank in range(halo.world)),
        sources=tuple(sources),
        positions=tuple(positions),
        sizes=tuple(len(each.numbers) for each in formed),
        indptr=np.concatenate([[0], np.cumsum(count)]).astype(np.int64),
        indices=np.concatenate(column)[order].astype(np.int32),
        weights=None if halo.weights is None else np.concatenate(weights)[order],
        sums=Sums(
            mine.indptr,
            mine.indices,
            mine.weights,
            mine.numbers,
            mine.reach,
            np.concatenate(summands),
            np.concatenate(reach),
        ),
    )
