"""Edges grouped by the vertex whose master is chosen: with the neighbours of each side by side.

A graph whose edges are ordered by source (CSR) is grouped already. Any other is first written to
temporary files, each with the edges of some consecutive vertices, as many as fit into memory.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from testbed.gnn.streaming.edge_policy import Vertices
from testbed.gnn.streaming.edges import Batch, Edges, Pair, check_vertices
from testbed.gnn.streaming.loops import group, scatter
from testbed.gnn.streaming.memory_plan import vertex_table

__all__ = ["Block", "Spill", "blocks_of"]

MOST_FILES = 256


@dataclass(frozen=True)
class Block:
    """Vertices first..last-1 with all their neighbours.

    :param indptr: int64, shape (last - first + 1,), from 0.
    """

    first: int
    last: int
    indptr: NDArray[np.int64]
    indices: Vertices


def blocks_of(edges: Edges, size: int) -> Iterator[Block]:
    """Yield a graph whose edges are ordered by source, about `size` edges at a time.

    :raises SpecError: A neighbour is none of the graph's vertices.
    """
    assert edges.indptr is not None
    count = len(edges.indptr) - 1
    kept: list[Vertices] = []
    vertex = done = seen = 0
    for batch in edges.batches(size):
        _, dst = batch()
        check_vertices(dst, count, edges.name)
        kept.append(dst)
        seen += len(dst)
        last = int(np.searchsorted(edges.indptr, seen, side="right")) - 1
        if last > vertex:
            whole = np.concatenate(kept)
            rows = edges.indptr[vertex : last + 1] - done
            yield Block(vertex, last, np.ascontiguousarray(rows), whole[: rows[-1]])
            kept, vertex, done = [whole[rows[-1] :]], last, done + int(rows[-1])
    if vertex < len(edges.indptr) - 1:  # vertices without edges, in a graph that has none
        rows = edges.indptr[vertex:] - done
        yield Block(
            vertex, len(rows) - 1 + vertex, np.ascontiguousarray(rows), np.zeros(0, np.uint32)
        )


class Spill:
    """A graph in temporary files by ranges of vertices.

    :param place: An empty folder.
    :param bounds: uint64, shape (files + 1,): the first vertex of each file.
    :param target: Whether edges are grouped by target.
    """

    def __init__(self, edges: Edges, place: Path, bounds: NDArray[np.uint64], target: bool) -> None:
        self.num_edges = 0
        self._bounds, self._target, self._place = bounds, target, place
        self._files = len(bounds) - 1
        self._lock, self._filled = threading.Lock(), 0
        self._table = vertex_table(np.uint16, edges.num_vertices)
        self._counts = np.zeros(self._files, np.int64)
        self._open: list[IO[bytes]] = [
            (place / f"{name}-{number}").open("wb")
            for number in range(self._files)
            for name in ("key", "other")
        ]

    def sort(self, pair: Pair, most: int) -> tuple[Vertices, Vertices, NDArray[np.int64]]:
        """Return edges by file, and how many each has; called by any thread.

        :param most: The largest number of a vertex in them.
        """
        with self._lock:
            if most >= self._filled:
                ids = np.arange(self._filled, most + 1).astype(np.uint64)
                found = np.searchsorted(self._bounds[1:-1], ids, side="right")
                self._table[self._filled : most + 1] = found
                self._filled = most + 1
        key, other = pair[::-1] if self._target else pair
        chosen = self._table[key]
        counts = np.bincount(chosen, minlength=self._files)
        if self._files > 1:
            key, other = scatter(key, other, chosen, counts.astype(np.uint64))
        return key, other, counts

    def write(self, key: Vertices, other: Vertices, counts: NDArray[np.int64]) -> None:
        """Append what `sort` has returned."""
        begin = 0
        for number in np.flatnonzero(counts).tolist():
            end = begin + int(counts[number])
            self._open[2 * number].write(key[begin:end].data)
            self._open[2 * number + 1].write(other[begin:end].data)
            begin = end
        self._counts += counts
        self.num_edges += len(key)

    def close(self) -> None:
        """Write no more."""
        for file in self._open:
            file.close()

    def finish(self, num_vertices: int) -> None:
        """All edges are there."""
        self.close()
        self.num_vertices = num_vertices
        self._bounds[-1] = num_vertices
        self._bounds = np.minimum(self._bounds, np.uint64(num_vertices))

    def blocks(self) -> Iterator[Block]:
        """Yield the vertices in order, a file at a time."""
        for number in range(self._files):
            first, last = (int(bound) for bound in self._bounds[number : number + 2])
            if last > first:
                key, other = (self._read(name, number) for name in ("key", "other"))
                yield Block(first, last, *group(key, other, first, last))

    def batches(self, size: int) -> Iterator[Batch]:
        """See `Edges.batches`; a file after the other."""
        for number in range(self._files):
            for first in range(0, int(self._counts[number]), size):
                yield lambda number=number, first=first: self._pair(number, first, size)  # type: ignore[misc]

    def _pair(self, number: int, first: int, size: int) -> Pair:
        key, other = (self._read(name, number, first, size) for name in ("key", "other"))
        return (other, key) if self._target else (key, other)

    def _read(self, name: str, number: int, first: int = 0, size: int = -1) -> NDArray[Any]:
        path = self._place / f"{name}-{number}"
        return np.fromfile(path, np.uint32, count=size, offset=4 * first)
