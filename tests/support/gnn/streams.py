"""Graphs as streams of edges, and a policy of someone else's."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from testbed.gnn.streaming.edge_policy import Degrees, Masters, Needs, Policy, State, Vertices
from testbed.gnn.streaming.partition_folder import Part, PartitionFolder

__all__ = ["Deaf", "Greedy", "Parity", "edges_of", "global_edges", "write_npz"]


def write_npz(path: Path, src: Any, dst: Any, **more: Any) -> Path:
    """Write edges as an NPZ file."""
    np.savez(path, src=np.asarray(src, np.int64), dst=np.asarray(dst, np.int64), **more)
    return path


def global_edges(part: Part) -> NDArray[np.uint32]:
    """A part's edges, shape (m, 2), as vertices of the whole graph."""
    return np.stack([part.vertices[part.src], part.vertices[part.dst]], axis=1)


def edges_of(folder: Path) -> NDArray[np.uint32]:
    """All edges of a partition, in an order that only depends on what they are."""
    opened = PartitionFolder(folder)
    found = np.concatenate([global_edges(opened.part(number)) for number in range(opened.parts)])
    return found[np.lexsort((found[:, 1], found[:, 0]))]


class Parity(Policy):
    """Even and odd vertices; edges between them go to the last part."""

    name: ClassVar[str] = "parity"

    def get_master(self, vertices: Vertices, degrees: Degrees | None, state: State) -> Masters:
        assert degrees is None
        return (vertices % 2).astype(np.uint16)

    def get_edge_owner(
        self, src: Vertices, dst: Vertices, degrees: Degrees | None, masters: Masters
    ) -> Masters:
        between = masters[src] != masters[dst]
        return np.where(between, self.parts - 1, masters[src]).astype(np.uint16)


class Greedy(Parity):
    """A vertex follows its first source among those of its edges that enter it."""

    name: ClassVar[str] = "greedy"
    needs: ClassVar[Needs] = "neighbours"
    side = "target"

    def get_master(self, vertices: Vertices, degrees: Degrees | None, state: State) -> Masters:
        assert degrees is not None
        assert np.array_equal(np.diff(state.indptr), degrees)
        firsts = [
            int(state.indices[begin]) if count else int(vertex)
            for vertex, begin, count in zip(vertices, state.indptr, degrees, strict=False)
        ]
        return (np.array(firsts) % self.parts).astype(np.uint16)


class Deaf(Parity):
    """Has more parts than it was given."""

    def get_master(self, vertices: Vertices, degrees: Degrees | None, state: State) -> Masters:
        return np.full(len(vertices), self.parts, np.uint16)
