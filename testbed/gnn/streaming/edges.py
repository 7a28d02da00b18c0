"""`Edges`: a graph that is read as a stream of edges, a batch at a time."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import SpecError
from testbed.gnn.graph import GraphData
from testbed.gnn.streaming.edge_policy import Vertices
from testbed.gnn.streaming.loops import draw_rmat

__all__ = [
    "MOST_VERTICES",
    "SAMPLE",
    "Adjacency",
    "Batch",
    "Edges",
    "Rmat",
    "check_vertices",
    "narrow",
]

Pair = tuple[Vertices, Vertices]
"""Sources and targets of edges, shape (k,) each."""

Batch = Callable[[], Pair]
"""Reads, decodes or draws a batch; called once, in any thread."""

SAMPLE = 1 << 16
"""Edges of a sample. A range of a part is off by a standard deviation of
sqrt(q (1 - q) / SAMPLE) of all edges, at a quantile q: 0.2 % at most.
"""

MOST_VERTICES = (1 << 32) - 1
"""Vertices are numbered in 32 bits."""


class Edges(ABC):
    """A directed graph; edges may repeat, and may be loops.

    :ivar name: What the user called it.
    :ivar num_edges: None if that is only known once all have been read.
    :ivar num_vertices: Likewise; greater than all numbers of vertices.
    :ivar indptr: int64, shape (num_vertices + 1,), if edges are ordered by source and the number of
        each is known; else None.
    :ivar nbytes: Bytes that are read in a pass; 0 if nothing is read.
    :ivar features: Shape (num_vertices, dim), or None; `labels` likewise, shape (num_vertices,).
    """

    name: str
    num_edges: int | None = None
    num_vertices: int | None = None
    indptr: NDArray[np.int64] | None = None
    nbytes: int = 0
    features: NDArray[Any] | None = None
    labels: NDArray[Any] | None = None

    @abstractmethod
    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the edges in order, about `size` at a time.

        :raises SpecError: The graph cannot be read.
        """

    @abstractmethod
    def sample(self) -> Pair:
        """Return about `SAMPLE` edges from everywhere in the stream, without reading all of it.

        :raises SpecError: The graph cannot be read.
        """


class Adjacency(Edges):
    """The adjacency of a data set in the testbed's cache, mapped into memory."""

    def __init__(self, name: str, graph: GraphData) -> None:
        rows = graph.indptr
        if not len(rows) or rows[0] or (np.diff(rows) < 0).any() or rows[-1] != graph.num_edges:
            raise SpecError(f"{name}: indptr: must ascend from 0 to the number of edges")
        self.name, self._graph = name, graph
        self.num_vertices, self.num_edges = graph.num_vertices, graph.num_edges
        self.indptr, self.nbytes = graph.indptr, graph.indptr.nbytes + graph.indices.nbytes
        self.features, self.labels = graph.x, graph.y

    def batches(self, size: int) -> Iterator[Batch]:
        """See `Edges.batches`."""
        for first in range(0, self._graph.num_edges, size):
            yield lambda first=first: self._take(first, first + size)  # type: ignore[misc]

    def sample(self) -> Pair:
        """See `Edges.sample`."""
        places = np.arange(0, self._graph.num_edges, max(1, self._graph.num_edges // SAMPLE))
        sources = np.searchsorted(self._graph.indptr, places, side="right") - 1
        return sources.astype(np.uint32), self._graph.indices[places].astype(np.uint32)

    def _take(self, first: int, last: int) -> Pair:
        return rows_of(self._graph.indptr, first, last), self._graph.indices[first:last].astype(
            np.uint32
        )


def rows_of(indptr: NDArray[np.int64], first: int, last: int) -> Vertices:
    """Return the sources of edges first..last-1 of an adjacency."""
    last = min(last, int(indptr[-1]))
    begin = int(np.searchsorted(indptr, first, side="right")) - 1
    end = int(np.searchsorted(indptr, last, side="left"))
    ends = np.clip(indptr[begin : end + 1], first, last)
    return np.repeat(np.arange(begin, end, dtype=np.uint32), np.diff(ends))


class Rmat(Edges):
    """A random graph with the skew of social networks and of the web (Chakrabarti et al., "R-MAT: A
    Recursive Model for Graph Mining", SDM 2004): 2**scale vertices, 16 edges per vertex.

    Shares and edges per vertex are Graph500's, which also permutes vertices. Each edge is a hash of
    the seed and its number: the graph does not depend on how it is read, and is never stored.
    """

    SHARES = 0.57, 0.19, 0.19
    PER_VERTEX = 16
    MOST = 31

    def __init__(self, scale: int, seed: int = 1) -> None:
        if not 1 <= scale <= self.MOST:
            raise SpecError(f"GRAPH: rmat:{scale}: the scale must be 1 to {self.MOST}")
        self.name, self._scale, self._seed = f"rmat:{scale}", scale, seed
        self.num_vertices: int = 1 << scale
        self.num_edges: int = self.PER_VERTEX << scale

    def batches(self, size: int) -> Iterator[Batch]:
        """See `Edges.batches`."""
        for first in range(0, self.num_edges, size):
            count = min(size, self.num_edges - first)
            yield lambda first=first, count=count: self._draw(first, 1, count)  # type: ignore[misc]

    def sample(self) -> Pair:
        """See `Edges.sample`."""
        count = min(SAMPLE, self.num_edges)
        return self._draw(0, self.num_edges // count, count)

    def _draw(self, first: int, step: int, count: int) -> Pair:
        return draw_rmat(self._scale, self._seed, self.SHARES, first, step, count)


def check_vertices(ends: Vertices, count: int, name: str) -> None:
    """Check that numbers of vertices are less than `count`.

    :param name: The graph's, for the error.
    :raises SpecError: One is not.
    """
    if len(ends) and (most := int(ends.max())) >= count:
        raise SpecError(f"{name}: vertex {most}: must be 0 to {count - 1}")


def narrow(values: NDArray[np.generic], place: str) -> Vertices:
    """Return numbers of vertices in 32 bits.

    :param place: File and column, for the error.
    :raises SpecError: They are no whole numbers, or out of range.
    """
    if values.dtype.kind not in "iu":
        raise SpecError(f"{place}: has {values.dtype}: must be whole numbers")
    if len(values) and not (int(values.min()) >= 0 and int(values.max()) < MOST_VERTICES):
        wrong = int(values.min()) if int(values.min()) < 0 else int(values.max())
        raise SpecError(f"{place}: vertex {wrong}: must be 0 to {MOST_VERTICES - 1}")
    return np.ascontiguousarray(values, np.uint32)
