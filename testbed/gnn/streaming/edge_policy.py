"""The interface of all policies: which part is a vertex's master, and which owns an edge.

The model is CuSP's (Hoang et al., "CuSP: A Customizable Streaming Edge Partitioner for Distributed
Graph Analytics", IPDPS 2019, section III), for whole arrays instead of single vertices and edges.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Degrees", "Masters", "Needs", "Policy", "Side", "State", "Vertices"]

Vertices = NDArray[np.uint32]
"""Shape (k,): numbers of vertices."""

Masters = NDArray[np.uint16]
"""Parts, 0..parts-1; 65,535 for a vertex that has no master so far."""

Degrees = NDArray[np.uint32]
"""How many edges leave each vertex, or enter it, or both: see the policy's `side`."""

Needs = Literal["nothing", "degrees", "neighbours"]
Side = Literal["source", "target", "both"]


@dataclass
class State:
    """What `Policy.get_master` may look at, and what it may keep.

    :param num_vertices: Vertices of the graph, as far as they are known.
    :param num_edges: Edges of the graph; of a file of CSV without degrees, an estimate.
    :param bounds: uint64, shape (parts + 1,): part h has vertices bounds[h]..bounds[h + 1]-1 if
        masters are contiguous ranges with the same number of edges each.
    :param masters: Masters chosen so far, by vertex.
    :param nodes: float64, shape (parts,): vertices of each part so far; `edges`: edges that leave
        (enter) them. The policy adds to them, if it needs them.
    :param indptr: With ``neighbours``: those of the i-th vertex of the call are
        ``indices[indptr[i]:indptr[i + 1]]``.
    """

    num_vertices: int
    num_edges: int
    bounds: NDArray[np.uint64]
    masters: Masters
    nodes: NDArray[np.float64]
    edges: NDArray[np.float64]
    indptr: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    indices: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))


class Policy(ABC):
    """A pair of rules, made for a number of parts.

    :cvar needs: What has to be known before the first edge is assigned. ``nothing``: the graph is
        read once. ``degrees``: twice. ``neighbours``: of each vertex, when its master is chosen.
    :cvar side: The end whose edges are counted as a vertex's degree and balanced among ranges;
        ``both``: all edges of a vertex.
    :cvar in_order: Edges come first: `get_edge_owner` is called for edges in their order, by one
        thread, and a vertex's master is the owner of its first edge. `get_master` is asked about
        vertices without edges alone.
    :cvar whole: With ``neighbours``: whether `get_master` is called once, for all vertices.
    :param parts: Number of parts, 1 to 1,024.
    :param seed: Of all draws.
    """

    name: ClassVar[str] = ""
    needs: ClassVar[Needs] = "nothing"
    side: ClassVar[Side] = "source"
    in_order: ClassVar[bool] = False
    whole: ClassVar[bool] = False

    def __init__(self, parts: int, seed: int = 0) -> None:
        self.parts, self.seed = parts, seed

    @abstractmethod
    def get_master(self, vertices: Vertices, degrees: Degrees | None, state: State) -> Masters:
        """Choose the masters of the next vertices, which are consecutive and ascending.

        :param degrees: Shape (k,), those of `vertices`; None if the policy needs nothing.
        :returns: Shape (k,).
        """

    @abstractmethod
    def get_edge_owner(
        self, src: Vertices, dst: Vertices, degrees: Degrees | None, masters: Masters
    ) -> Masters:
        """Choose the parts that own edges; called by several threads at once, unless `in_order`.

        :param degrees: Shape (num_vertices,); None if the policy needs nothing.
        :param masters: Shape (num_vertices,), all of them; with `in_order`, those known so far.
        :returns: Shape (k,).
        """
