"""The testbed's policies: pairs of a rule for masters and a rule for edges.

| policy      | masters             | owner of an edge                                    |
| ----------- | ------------------- | --------------------------------------------------- |
| eec, oec    | ranges              | the source's master                                 |
| iec         | ranges, by in-edges | the target's master                                 |
| hvc, hovc   | ranges              | hybrid: the target's master if the source is a hub  |
| hivc        | ranges, by in-edges | hybrid: the source's master if the target is a hub  |
| cvc         | ranges              | Cartesian: the source's row, the target's column    |
| fec, fennel | Fennel              | the source's master                                 |
| gvc, ginger | Fennel              | hybrid                                              |
| svc, sugar  | Fennel              | Cartesian                                           |
| dbh         | hash                | the master of the end with the lower degree         |
| hdrf        | its first edge's    | the part with the highest score                     |
| hash        | hash                | the source's master                                 |
| metis       | METIS               | the source's master                                 |

These are CuSP's table II (IPDPS 2019), and Fennel's score as there (Tsourakakis et al., WSDM
2014); and two vertex cuts that others compare with: degree-based hashing (Xie et al., "Distributed
Power-law Graph Computing", NIPS 2014) and HDRF (Petroni et al., "HDRF: Stream-Based Partitioning
for Power-Law Graphs", CIKM 2015).
Inner loops are in C (`testbed.gnn.streaming.loops`), which `owner` and `fennel` select; the methods
here are the same rules in numpy, for reference and for subclasses.
"""

import math
from collections import Counter, defaultdict
from typing import ClassVar, Literal

import numpy as np

from testbed.gnn.graph import from_edges
from testbed.gnn.mix import GOLDEN, mix
from testbed.gnn.partition.registry import make_owners
from testbed.gnn.streaming.edge_policy import (
    Degrees,
    Masters,
    Needs,
    Policy,
    Side,
    State,
    Vertices,
)

__all__ = ["GAMMA", "HUB", "BuiltIn", "grid_columns"]

HUB = 1000
"""A vertex of a higher degree is a hub."""

GAMMA = 1.5
"""Fennel's exponent: the cost of a part with load L is alpha L**gamma."""

Owner = Literal["source", "target", "hybrid_out", "hybrid_in", "cartesian", "lower"]


def grid_columns(parts: int) -> int:
    """Return the columns of the grid of parts: the largest divisor up to the square root."""
    return max(c for c in range(1, math.isqrt(parts) + 1) if parts % c == 0)


def alpha(num_vertices: int, num_edges: int, parts: int) -> float:
    """Return the factor of Fennel's cost: |E| parts**(gamma - 1) / |V|**gamma."""
    return float(num_edges * parts ** (GAMMA - 1) / max(num_vertices, 1) ** GAMMA)


class BuiltIn(Policy):
    """Masters by ranges, and an owner for edges that C knows as well."""

    owner: ClassVar[Owner] = "source"
    fennel: ClassVar[bool] = False

    def get_master(self, vertices: Vertices, degrees: Degrees | None, state: State) -> Masters:
        """Contiguous ranges with the same number of edges each."""
        found = np.searchsorted(state.bounds[1:-1], vertices.astype(np.uint64), side="right")
        return found.astype(np.uint16)

    def get_edge_owner(
        self, src: Vertices, dst: Vertices, degrees: Degrees | None, masters: Masters
    ) -> Masters:
        """See the table above."""
        source, target = masters[src], masters[dst]
        if self.owner == "source":
            return source
        if self.owner == "target":
            return target
        if self.owner == "cartesian":
            columns = np.uint16(grid_columns(self.parts))
            return source // columns * columns + target % columns
        assert degrees is not None
        if self.owner == "lower":
            return np.where(degrees[src] <= degrees[dst], source, target)
        if self.owner == "hybrid_out":
            return np.where(degrees[src] > HUB, target, source)
        return np.where(degrees[dst] > HUB, source, target)


class ByFennel(BuiltIn):
    """Masters by Fennel's score; those of hubs by ranges, since they have neighbours everywhere."""

    needs: ClassVar[Needs] = "neighbours"
    fennel: ClassVar[bool] = True

    def get_master(self, vertices: Vertices, degrees: Degrees | None, state: State) -> Masters:
        """The part with the most neighbours, less what its load costs: nodes and edges count half
        each. Among equals, the first.
        """
        assert degrees is not None
        ranges = super().get_master(vertices, degrees, state)
        weight = GAMMA * alpha(state.num_vertices, state.num_edges, self.parts)
        per_edge = state.num_vertices / max(state.num_edges, 1)
        for i, vertex in enumerate(vertices):
            best = int(ranges[i])
            if degrees[i] <= HUB:
                near = state.masters[state.indices[state.indptr[i] : state.indptr[i + 1]]]
                votes = np.bincount(near[near < self.parts], minlength=self.parts)
                load = (state.nodes + per_edge * state.edges) / 2
                best = int(np.argmax(votes - weight * np.sqrt(load)))  # L**(gamma - 1)
            state.masters[vertex] = best
            state.nodes[best] += 1
            state.edges[best] += degrees[i]
        return state.masters[vertices]


class Eec(BuiltIn):
    """Edge cut: ranges of vertices with all edges that leave them."""

    name: ClassVar[str] = "eec"


class Iec(BuiltIn):
    """Edge cut: ranges of vertices with all edges that enter them."""

    name: ClassVar[str] = "iec"
    side: ClassVar[Side] = "target"
    owner: ClassVar[Owner] = "target"


class Hvc(BuiltIn):
    """Hybrid vertex cut: the edges that leave a hub go to the masters of their targets."""

    name: ClassVar[str] = "hvc"
    needs: ClassVar[Needs] = "degrees"
    owner: ClassVar[Owner] = "hybrid_out"


class Hivc(BuiltIn):
    """Hybrid vertex cut: the edges that enter a hub go to the masters of their sources."""

    name: ClassVar[str] = "hivc"
    needs: ClassVar[Needs] = "degrees"
    side: ClassVar[Side] = "target"
    owner: ClassVar[Owner] = "hybrid_in"


class Cvc(BuiltIn):
    """Cartesian vertex cut: parts are a grid, and a block of the adjacency matrix goes to each."""

    name: ClassVar[str] = "cvc"
    owner: ClassVar[Owner] = "cartesian"


class Fec(ByFennel):
    """Fennel's masters, each with all edges that leave it."""

    name: ClassVar[str] = "fec"


class Gvc(ByFennel):
    """Ginger: Fennel's masters, and the hybrid vertex cut."""

    name: ClassVar[str] = "gvc"
    owner: ClassVar[Owner] = "hybrid_out"


class Svc(ByFennel):
    """Sugar: Fennel's masters, and the Cartesian vertex cut."""

    name: ClassVar[str] = "svc"
    owner: ClassVar[Owner] = "cartesian"


class Hash(BuiltIn):
    """A vertex's part is a hash of its number; it has all edges that leave it."""

    name: ClassVar[str] = "hash"

    def get_master(self, vertices: Vertices, degrees: Degrees | None, state: State) -> Masters:
        """The same parts as the partitioner ``hash`` has."""
        drawn = mix(vertices.astype(np.uint64) + np.uint64((self.seed + 1) * GOLDEN % 2**64))
        return (drawn % np.uint64(self.parts)).astype(np.uint16)


class Dbh(Hash):
    """Degree-based hashing: an edge goes to the end with the lower degree, and hubs are cut."""

    name: ClassVar[str] = "dbh"
    needs: ClassVar[Needs] = "degrees"
    side: ClassVar[Side] = "both"
    owner: ClassVar[Owner] = "lower"


class Hdrf(BuiltIn):
    """High-degree replicated first: an edge goes to the part with the highest score, where lambda
    and epsilon are 1.

    A part's score is, for each end that it has, 1 and the other end's share of the two degrees so
    far; and how far it is from the largest part, relative to the smallest one.
    """

    name: ClassVar[str] = "hdrf"
    in_order: ClassVar[bool] = True

    def __init__(self, parts: int, seed: int = 0) -> None:
        super().__init__(parts, seed)
        self._sizes = np.zeros(parts, np.int64)
        self._degrees: Counter[int] = Counter()
        self._held: defaultdict[int, set[int]] = defaultdict(set)

    def get_edge_owner(
        self, src: Vertices, dst: Vertices, degrees: Degrees | None, masters: Masters
    ) -> Masters:
        """Choose the owners of the next edges; among equals, the first part."""
        found = np.empty(len(src), np.uint16)
        for i, (s, d) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
            self._degrees[s] += 1
            self._degrees[d] += 1
            share = self._degrees[s] / (self._degrees[s] + self._degrees[d])
            most = self._sizes.max()
            scores = (most - self._sizes) / (1 + most - self._sizes.min())
            for part in self._held[s]:
                scores[part] += 2 - share
            for part in self._held[d]:
                scores[part] += 1 + share
            best = found[i] = int(np.argmax(scores))
            self._sizes[best] += 1
            self._held[s].add(best)
            self._held[d].add(best)
        return found


class Metis(BuiltIn):
    """METIS's masters, each with all edges that leave it: for comparison, since it needs the whole
    graph in memory.
    """

    name: ClassVar[str] = "metis"
    needs: ClassVar[Needs] = "neighbours"
    whole: ClassVar[bool] = True

    def get_master(self, vertices: Vertices, degrees: Degrees | None, state: State) -> Masters:
        """Owners of the graph's symmetric form, without loops and repeated edges.

        :raises SpecError: A part would have no vertex.
        """
        sources = np.repeat(vertices, np.diff(state.indptr))
        adjacency = from_edges(sources, state.indices, len(vertices))
        return make_owners("metis", *adjacency, self.parts, self.seed).astype(np.uint16)
