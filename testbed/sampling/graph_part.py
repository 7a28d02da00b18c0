"""`Part`: what one rank has of a graph that is distributed over ranks. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import SpecError
from testbed.gnn.graph import GraphData
from testbed.gnn.sampling import Drawn, Vertices, draw_neighbours
from testbed.protocol.rows import pack_bfloat16

__all__ = ["Part"]


@dataclass(frozen=True)
class Part:
    """The vertices that one rank owns, with all of their neighbours, features and labels.

    Vertices have the numbers that they have in the graph, here and in what ranks ask one another.

    :param owned: int32, ascending; a vertex's place among them is its row.
    :param owners: uint16, by vertex of the graph: the rank that owns it.
    :param rows: int32, by vertex of the graph: its row here; -1: another rank's.
    :param indptr: int64, shape (owned + 1,): the neighbours of a row's vertex are
        ``indices[indptr[row]:indptr[row + 1]]``; int32.
    :param x: The features of each row: float32, or bfloat16 as its 16 bits; `y`: int64, the labels.
    :param train: int32: the training vertices that this rank owns; `val` and `test` likewise.
    """

    rank: int
    world: int
    owned: Vertices
    owners: NDArray[np.uint16]
    rows: NDArray[np.int32]
    indptr: NDArray[np.int64]
    indices: Vertices
    x: NDArray[np.float32] | NDArray[np.uint16]
    y: NDArray[np.int64]
    train: Vertices
    val: Vertices
    test: Vertices

    @classmethod
    def of(
        cls,
        graph: GraphData,
        owners: NDArray[np.integer[Any]],
        rank: int,
        world: int,
        halves: bool = False,
    ) -> Part:
        """Take a rank's part of a graph.

        :param owners: By vertex: 0..world-1.
        :param halves: Round features to bfloat16.
        :raises SpecError: A vertex has no owner.
        """
        n = graph.num_vertices
        if len(owners) != n or (n and not 0 <= int(owners.min()) <= int(owners.max()) < world):
            raise SpecError(f"owners: must be one for each of {n} vertices, 0..{world - 1}")
        owned = np.flatnonzero(owners == rank).astype(np.int32)
        rows = np.full(n, -1, np.int32)
        rows[owned] = np.arange(len(owned), dtype=np.int32)
        whole = draw_neighbours(graph.indptr, graph.indices, owned, None, 0)
        sets, x = (graph.train, graph.val, graph.test), np.ascontiguousarray(graph.x[owned])
        return cls(
            *(rank, world, owned, owners.astype(np.uint16), rows),
            *(whole.indptr, whole.neighbours, pack_bfloat16(x) if halves else x),
            np.ascontiguousarray(graph.y[owned]),
            *(some[rows[some] >= 0].astype(np.int32) for some in sets),
        )

    def draw(self, vertices: Vertices, fanout: int, key: int) -> Drawn:
        """Draw neighbours of vertices that this rank owns."""
        rows = self.rows[vertices]
        return draw_neighbours(self.indptr, self.indices, rows, fanout, key, vertices)

    def by_owner(self, vertices: Vertices) -> tuple[list[Vertices], NDArray[np.int32]]:
        """Divide vertices among the ranks that own them.

        :returns: Those of each rank, in their order; and the place of each vertex in all of these,
            one rank's after the other's.
        """
        owners = self.owners[vertices]
        order = np.argsort(owners, kind="stable")
        ends = np.searchsorted(owners[order], np.arange(1, self.world))
        places = np.empty(len(vertices), np.int32)
        places[order] = np.arange(len(vertices), dtype=np.int32)
        return np.split(vertices[order], ends), places
