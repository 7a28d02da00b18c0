"""`Part`: one rank's part of a distributed graph."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from testbed.exchange.cover import cover_halos
from testbed.exchange.halo import Halo, make_halos
from testbed.exchange.options import HaloChoice
from testbed.gnn.full.channel import Use
from testbed.gnn.full.vertex_cut import VertexCut
from testbed.gnn.graph import GraphData
from testbed.gnn.partition import Owners

__all__ = ["Part", "make_part", "transposed"]


@dataclass(frozen=True)
class Part:
    """One rank's vertices, in ascending order of their numbers, and their neighbours.

    :param forward: The rank's rows of the adjacency, along which embeddings go.
    :param backward: Its rows of the transposed adjacency, along which gradients go back; the same
        if the adjacency is symmetric.
    :param degrees: float32, shape (n, 1): neighbours of each vertex, here or elsewhere.
    :param x: float32, shape (n, d): features; `y`: int64, shape (n,): labels.
    :param sets: Positions of this rank's vertices of the sets ``train``, ``val`` and ``test``.
    :param sizes: Number of vertices in each of these sets, all ranks together.
    :param cut: With a vertex cut, what takes the place of `forward` and `backward` in sums.
    """

    forward: Halo
    backward: Halo
    degrees: Tensor
    x: Tensor
    y: Tensor
    sets: dict[str, Tensor]
    sizes: dict[str, int]
    cut: VertexCut | None = None

    @property
    def symmetric(self) -> bool:
        """Whether all neighbours are mutual."""
        return self.backward is self.forward

    def halo(self, use: Use) -> Halo:
        """Return the halo of an exchange."""
        if self.cut is not None:
            return self.cut.reduce if use == "reduce" else self.cut.broadcast
        return self.backward if use == "backward" else self.forward

    @property
    def rank(self) -> int:
        """This rank."""
        return self.forward.rank

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.forward.world


def make_part(
    graph: GraphData, owners: Owners, rank: int, world: int, halo: HaloChoice = "rows"
) -> Part:
    """Extract a rank's part of a graph.

    :param owners: Shape (n,): the rank that owns each vertex.
    :param halo: What travels between ranks.
    """

    def halo_of(indptr: NDArray[np.int64], indices: NDArray[np.int32]) -> Halo:
        halos = make_halos(indptr, indices, owners, world)
        return (cover_halos(halos) if halo == "cover" else halos)[rank]

    forward = halo_of(graph.indptr, graph.indices)
    indptr, indices = transposed(graph.indptr, graph.indices)
    symmetric = np.array_equal(indptr, graph.indptr) and np.array_equal(indices, graph.indices)
    backward = forward if symmetric else halo_of(indptr, indices)
    owned = forward.owned
    sets = {name: getattr(graph, name) for name in ("train", "val", "test")}
    return Part(
        forward,
        backward,
        torch.from_numpy(np.diff(graph.indptr)[owned].astype(np.float32)).unsqueeze(1),
        torch.from_numpy(graph.x[owned]),
        torch.from_numpy(graph.y[owned]),
        {
            name: torch.from_numpy(np.flatnonzero(np.isin(owned, numbers)))
            for name, numbers in sets.items()
        },
        {name: len(numbers) for name, numbers in sets.items()},
    )


def transposed(
    indptr: NDArray[np.int64], indices: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Transpose a square adjacency; indices ascend within each row of the result."""
    n = len(indptr) - 1
    rows: NDArray[Any] = np.repeat(np.arange(n, dtype=np.int32), np.diff(indptr))
    turned = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(indices, minlength=n), out=turned[1:])
    return turned, rows[np.argsort(indices, kind="stable")]
