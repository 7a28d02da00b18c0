"""`Halo`: what one rank of a partitioned graph owns, sends to others and receives from
them. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import SpecError

__all__ = ["Halo", "Sums", "make_halos"]


@dataclass(frozen=True)
class Sums:
    """The rows that one rank sends, each a sum (weighted sum, maximum) over its own vertices; see
    `testbed.exchange.cover`.

    :param indptr: int64, shape (m + 1,): row i is made of the vertices at the positions
        ``indices[indptr[i]:indptr[i + 1]]``.
    :param indices: int32: positions.
    :param weights: float32, one per entry of `indices`, or None.
    :param numbers: int64, shape (m,): how other ranks call these rows, ascending: the row of a
        single vertex by that vertex, and a partial sum by a number that no other row has.
    :param reach: float64, shape (m,): sum of the magnitudes of each row's weights.
    :param halo_summands: int64, shape (h,): how many vertices of other ranks each halo row sums up.
    :param halo_reach: float64, shape (h,): `reach` of each halo row.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    weights: NDArray[np.float32] | None
    numbers: NDArray[np.int64]
    reach: NDArray[np.float64]
    halo_summands: NDArray[np.int64]
    halo_reach: NDArray[np.float64]

    def arranged(
        self, sends: Sequence[NDArray[np.int64]]
    ) -> tuple[Sums, Sequence[NDArray[np.int64]]]:
        """Put rows into the order in which they are sent, so that their summands are read one
        after the other.

        :param sends: For each rank, the rows that it gets.
        :returns: The rows, one for each that is sent, and which of them each rank gets.
        """
        rows = np.concatenate(sends)
        counts = np.diff(self.indptr)[rows]
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        chosen = np.repeat(self.indptr[rows] - indptr[:-1], counts) + np.arange(indptr[-1])
        made = replace(
            self,
            indptr=indptr,
            indices=self.indices[chosen],
            weights=None if self.weights is None else self.weights[chosen],
            numbers=self.numbers[rows],
            reach=self.reach[rows],
        )
        ends = np.cumsum([len(each) for each in sends])
        return made, tuple(np.split(np.arange(len(rows)), ends[:-1]))


@dataclass(frozen=True)
class Halo:
    """One rank's part of a graph whose vertices are distributed over ranks.

    Positions number the rank's own vertices, 0..n-1, in ascending order of their numbers in the
    graph. Halo vertices are neighbours that others own, numbered 0..h-1: those of rank 0 first, and
    each rank's in ascending order.

    With `sums`, ranks send rows of these instead of vertices: then `sends`, `positions` and `sizes`
    refer to rows of `sums`, and `sources` and halo vertices are rows of other ranks.

    :param rank: This rank, of `world`.
    :param owned: int64, shape (n,): the rank's vertices, ascending.
    :param sends: For each rank, int64: the positions of the vertices that it needs, ascending; none
        for this rank.
    :param sources: For each rank, int64: the vertices that this rank needs from it, ascending,
        which is the order in which they are sent.
    :param positions: For each rank, int64: their positions there, that is its `sends` to this rank.
    :param sizes: For each rank, the number of vertices that it owns.
    :param indptr: int64, shape (n + 1,): the halo neighbours of position v are
        ``indices[indptr[v]:indptr[v + 1]]``.
    :param indices: int32: numbers of halo vertices.
    :param weights: float32, one per entry of `indices`, or None.
    :param local_indptr: int64, shape (n + 1,): the same for neighbours that this rank owns.
    :param local_indices: int32: positions.
    :param local_weights: float32, one per entry of `local_indices`, or None.
    :param sums: What this rank sends if not the rows of its vertices.
    """

    rank: int
    world: int
    owned: NDArray[np.int64]
    sends: tuple[NDArray[np.int64], ...]
    sources: tuple[NDArray[np.int64], ...]
    positions: tuple[NDArray[np.int64], ...]
    sizes: tuple[int, ...]
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    weights: NDArray[np.float32] | None
    local_indptr: NDArray[np.int64]
    local_indices: NDArray[np.int32]
    local_weights: NDArray[np.float32] | None
    sums: Sums | None = None

    @property
    def num_owned(self) -> int:
        """Number of vertices that this rank owns."""
        return len(self.owned)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """What other ranks call the rows that this rank may send, by position."""
        return self.owned if self.sums is None else self.sums.numbers

    @property
    def num_halo(self) -> int:
        """Number of vertices of other ranks that this rank needs."""
        return sum(len(vertices) for vertices in self.sources)

    def in_sending_order(self) -> tuple[Sums | None, Sequence[NDArray[np.int64]]]:
        """Return what the rank forms, and the positions of what each rank gets: see
        `Sums.arranged`.
        """
        return (None, self.sends) if self.sums is None else self.sums.arranged(self.sends)


def make_halos(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    owner: NDArray[np.int32],
    world: int,
    weights: NDArray[np.float32] | None = None,
) -> tuple[Halo, ...]:
    """Make the halos of all ranks.

    :param indptr: int64, shape (n + 1,): vertex v aggregates ``indices[indptr[v]:indptr[v + 1]]``.
    :param owner: Shape (n,): the rank that owns each vertex.
    :param weights: float32, one per entry of `indices`.
    :raises SpecError: The owner of a vertex is not a rank.
    """
    n = len(indptr) - 1
    if len(owner) != n or (n and not 0 <= int(owner.min()) <= int(owner.max()) < world):
        raise SpecError(
            f"halo: owner has {len(owner)} entries: must be one for each of {n} vertices, each"
            f" 0..{world - 1}"
        )
    position = np.empty(n, np.int64)
    owned = [np.flatnonzero(owner == rank) for rank in range(world)]
    for vertices in owned:
        position[vertices] = np.arange(len(vertices))
    target = np.repeat(np.arange(n), np.diff(indptr))
    parts = [
        _Part(rank, world, owned[rank], target, indices, owner, weights, position)
        for rank in range(world)
    ]
    return tuple(part.halo(parts, position) for part in parts)


class _Part:
    """A halo without its `sends`, which depend on what the other ranks need."""

    def __init__(
        self,
        rank: int,
        world: int,
        owned: NDArray[np.int64],
        target: NDArray[np.int64],
        source: NDArray[np.int32],
        owner: NDArray[np.int32],
        weights: NDArray[np.float32] | None,
        position: NDArray[np.int64],
    ) -> None:
        self.rank, self.world, self.owned = rank, world, owned
        mine = owner[target] == rank
        here = mine & (owner[source] == rank)
        there = mine & ~here
        needed = np.unique(source[there]).astype(np.int64)
        of = owner[needed]
        self.sources = tuple(needed[of == other] for other in range(world))
        number = np.empty(len(owner), np.int32)  # of a halo vertex
        number[np.concatenate(self.sources)] = np.arange(len(needed), dtype=np.int32)
        rows = position[target]
        self.remote = _rows(
            rows[there],
            number[source[there]],
            None if weights is None else weights[there],
            len(owned),
        )
        self.local = _rows(
            rows[here],
            position[source[here]],
            None if weights is None else weights[here],
            len(owned),
        )

    def halo(self, parts: list[_Part], position: NDArray[np.int64]) -> Halo:
        sends = tuple(position[part.sources[self.rank]] for part in parts)
        positions = tuple(position[vertices] for vertices in self.sources)
        sizes = tuple(len(part.owned) for part in parts)
        return Halo(
            self.rank,
            self.world,
            self.owned,
            sends,
            self.sources,
            positions,
            sizes,
            *self.remote,
            *self.local,
        )


def _rows(
    rows: NDArray[np.int64],
    columns: NDArray[np.integer],
    weights: NDArray[np.float32] | None,
    count: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32] | None]:
    indptr = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=count), out=indptr[1:])
    return (
        indptr,
        columns.astype(np.int32),
        None if weights is None else np.ascontiguousarray(weights, np.float32),
    )
