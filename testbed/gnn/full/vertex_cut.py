"""`VertexCut`: a rank's edges where a vertex's edges are on several ranks.

A part has proxies of vertices: of those that it is master of, and mirrors of others. To sum over
neighbours, masters send their rows to their mirrors (broadcast), each rank sums along its own
edges, and mirrors send what they got to their masters, which add it (reduce). Both are exchanges of
a graph of proxies. The gradient goes the same way along the transposed edges, since either step is
the transpose of the other.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from testbed.exchange.halo import Halo, make_halos
from testbed.gnn.full.adjacency_matrix import matrix_of_ones
from testbed.gnn.streaming.partition_folder import PartitionFolder

__all__ = ["VertexCut", "read_masters", "read_vertex_cut"]


@dataclass(frozen=True)
class VertexCut:
    """One rank's proxies: its masters in ascending order of their numbers, then its mirrors.

    :param broadcast: Mirrors get the rows of their masters; `reduce`: the other way.
    :param adjacency: By direction, the rank's edges: a sparse matrix, shape (k, k), whose rows are
        proxies that sum over others.
    """

    broadcast: Halo
    reduce: Halo
    adjacency: dict[Literal["forward", "backward"], Tensor]

    @property
    def num_proxies(self) -> int:
        """Number of masters and mirrors."""
        return self.broadcast.num_owned


def read_masters(folder: Path) -> NDArray[np.int32]:
    """Return the master of each vertex of a partition.

    :raises SpecError: It cannot be read.
    """
    opened = PartitionFolder(folder)
    owners = np.zeros(opened.num_vertices, np.int32)
    for number in range(opened.parts):
        vertices, masters = opened.vertices(number)
        owners[vertices] = masters
    return owners


def read_vertex_cut(folder: Path, rank: int) -> VertexCut:
    """Read a rank's part of a partition of a data set, whose edges lead from a vertex to those that
    it sums over.

    :raises SpecError: It cannot be read.
    """
    opened = PartitionFolder(folder)
    parts = [opened.vertices(number) for number in range(opened.parts)]
    vertices, masters = (np.concatenate(each) for each in zip(*parts, strict=True))
    holder = np.repeat(np.arange(opened.parts, dtype=np.int32), [len(each) for each, _ in parts])
    of_master = np.empty(opened.num_vertices, np.int64)  # the proxy that is a vertex's master
    mine = masters == holder
    of_master[vertices[mine]] = np.flatnonzero(mine)
    mirrors = np.flatnonzero(~mine)
    sources = of_master[vertices[mirrors]]
    part = opened.part(rank)
    count = len(part.vertices)
    return VertexCut(
        _halo(mirrors, sources, holder, opened.parts, rank),
        _halo(sources, mirrors, holder, opened.parts, rank),
        {
            "forward": _matrix(part.src, part.dst, count),
            "backward": _matrix(part.dst, part.src, count),
        },
    )


def _halo(
    target: NDArray[np.int64],
    source: NDArray[np.int64],
    holder: NDArray[np.int32],
    world: int,
    rank: int,
) -> Halo:
    indptr = np.zeros(len(holder) + 1, np.int64)
    np.cumsum(np.bincount(target, minlength=len(holder)), out=indptr[1:])
    order = np.argsort(target, kind="stable")
    return make_halos(indptr, source[order].astype(np.int32), holder, world)[rank]


def _matrix(rows: NDArray[np.int64], columns: NDArray[np.int64], count: int) -> Tensor:
    indptr = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=count), out=indptr[1:])
    return matrix_of_ones(indptr, columns[np.argsort(rows, kind="stable")])
