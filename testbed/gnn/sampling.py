"""Neighbour sampling on a CSR adjacency: minibatches as bipartite blocks, one per layer.

GraphSAGE's sampling (Hamilton, Ying and Leskovec, NeurIPS 2017): each target samples at most
`fanout` of its neighbours, without replacement. What a vertex draws is a hash of a key, of its
number and of the slot (`testbed/native/sampling.c`), so it depends neither on the minibatch that
it is in nor on the order of draws.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.gnn.graph import GraphData
from testbed.gnn.mix import GOLDEN, mix
from testbed.native import load

__all__ = [
    "Block",
    "Drawn",
    "Numbering",
    "Rows",
    "Sampler",
    "addresses",
    "draw_neighbours",
    "key_of",
    "shares",
]

Vertices = NDArray[np.int32]

_P, _U32, _U64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
_SIGNATURES: dict[str, list[Any]] = {
    "sampling_draw": [_P, _P, _P, _P, _U64, _U32, _U64, _P, _P],
    "sampling_number": [_P, _P, _U64, _P, _U64, _P, _P],
    "sampling_select": [_P, _P, _P, _U64, _P, _P],
    "sampling_gather": [_P, _P, _U64, _U64, _P],
}


@cache
def _function(name: str) -> Any:
    function = getattr(load("sampling"), name)
    function.restype, function.argtypes = _U64, _SIGNATURES[name]
    return function


def key_of(*numbers: int) -> int:
    """Return 64 bits that decide about draws: a hash of seed, purpose, epoch, layer, ..."""
    key = np.zeros(1, np.uint64)
    for number in numbers:
        key = mix(key + np.uint64((number + 1) * GOLDEN % 2**64))
    return int(key[0])


@dataclass(frozen=True)
class Drawn:
    """Neighbours of some vertices.

    :param indptr: int64, shape (n + 1,): those of the i-th are
        ``neighbours[indptr[i]:indptr[i + 1]]``.
    :param neighbours: int32.
    """

    indptr: NDArray[np.int64]
    neighbours: Vertices

    def select(self, rows: NDArray[np.int32]) -> "Drawn":
        """Take those of some of the vertices, by their places among all."""
        count = int((self.indptr[rows + 1] - self.indptr[rows]).sum())
        indptr, found = np.zeros(len(rows) + 1, np.int64), np.empty(count, np.int32)
        _function("sampling_select")(
            *(_at(self.indptr), _at(self.neighbours), _at(rows), len(rows)),
            *(_at(indptr[1:]), _at(found)),
        )
        return Drawn(indptr, found)


def _at(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


def draw_neighbours(
    indptr: NDArray[np.int64],
    indices: Vertices,
    rows: Vertices,
    fanout: int | None,
    key: int,
    names: Vertices | None = None,
) -> Drawn:
    """Draw up to `fanout` neighbours of each vertex, uniformly, without replacement; None takes
    all.

    :param rows: The vertices, as rows of the adjacency; `names`: as draws know them, if that is not
        the same.
    :param key: See `key_of`.
    """
    degrees = indptr[rows + 1] - indptr[rows]
    room = int(degrees.sum() if fanout is None else np.minimum(degrees, fanout).sum())
    ends, found = np.zeros(len(rows) + 1, np.int64), np.empty(room, np.int32)
    names = rows if names is None else names
    _function("sampling_draw")(
        *(_at(indptr), _at(indices), _at(rows), _at(names), len(rows), fanout or 0, key),
        *(_at(ends[1:]), _at(found)),
    )
    return Drawn(ends, found)


def addresses(table: NDArray[Any]) -> NDArray[np.uint64]:
    """Return where the rows of a matrix are."""
    first, step = np.uint64(_at(table)), np.uint64(table.strides[0])
    return first + step * np.arange(len(table), dtype=np.uint64)


@dataclass(frozen=True)
class Rows:
    """Rows that are anywhere in memory.

    :param places: uint64: addresses; `numbers`: int32: which of them each row is at.
    :param memory: What holds them.
    """

    places: NDArray[np.uint64]
    numbers: NDArray[np.int32]
    memory: Sequence[NDArray[Any]]

    def __len__(self) -> int:
        return len(self.numbers)

    def gather(self, out: NDArray[Any]) -> None:
        """Copy them into a matrix."""
        row_bytes = out.itemsize * out.shape[1]
        _function("sampling_gather")(
            *(_at(self.places), _at(self.numbers), len(self.numbers), row_bytes, _at(out))
        )


class Numbering:
    """Numbers the distinct ones of some vertices.

    :param count: Vertices of the graph.
    """

    def __init__(self, count: int) -> None:
        self._places = np.zeros(count, np.int32)

    def number(
        self, vertices: Vertices, first: Vertices | None = None
    ) -> tuple[Vertices, NDArray[np.int32]]:
        """Return the distinct vertices, and which of them each is.

        :param first: Distinct vertices that come first.
        """
        first = vertices[:0] if first is None else first
        distinct = np.empty(len(first) + len(vertices), np.int32)
        numbers = np.empty(len(vertices), np.int32)
        count = _function("sampling_number")(
            *(_at(self._places), _at(first), len(first), _at(vertices), len(vertices)),
            *(_at(distinct), _at(numbers)),
        )
        return distinct[:count], numbers


@dataclass(frozen=True)
class Block:
    """One layer's messages: from `sources` to the targets, which are the first `num_targets`
    sources.

    :param sources: int32, shape (s,): vertices, no repeats.
    :param indptr: int64, shape (num_targets + 1,): the senders of target i's messages are
        ``senders[indptr[i]:indptr[i + 1]]``.
    :param senders: int32: positions in `sources`.
    """

    sources: Vertices
    num_targets: int
    indptr: NDArray[np.int64]
    senders: NDArray[np.int32]

    @classmethod
    def of(cls, targets: Vertices, drawn: Drawn, numbering: Numbering) -> "Block":
        """Make the block of targets, which are distinct, and what they have drawn."""
        sources, senders = numbering.number(drawn.neighbours, targets)
        return cls(sources, len(targets), drawn.indptr, senders)

    @property
    def edge_index(self) -> NDArray[np.int64]:
        """Positions in `sources` of each message's sender and receiver, shape (2, e)."""
        receivers = np.repeat(np.arange(self.num_targets), np.diff(self.indptr))
        return np.stack([self.senders.astype(np.int64), receivers])


class Sampler:
    """Makes blocks from a graph; keeps a scratch array of one number per vertex."""

    def __init__(self, graph: GraphData) -> None:
        self.graph = graph
        self._numbering = Numbering(graph.num_vertices)

    def block(self, targets: NDArray[np.integer[Any]], fanout: int | None, key: int = 0) -> Block:
        """Return the block of messages to `targets` (distinct); a fanout of None takes all
        neighbours.
        """
        rows = np.ascontiguousarray(targets, np.int32)
        drawn = draw_neighbours(self.graph.indptr, self.graph.indices, rows, fanout, key)
        return Block.of(rows, drawn, self._numbering)

    def blocks(
        self, seeds: NDArray[np.integer[Any]], fanout: Sequence[int], key: int
    ) -> list[Block]:
        """Return a minibatch's blocks in the order in which layers use them.

        :param seeds: Vertices whose labels are learned, distinct.
        :param fanout: Neighbours sampled per vertex, from the seeds outwards, one number per layer.
        """
        made: list[Block] = []
        targets = seeds
        for depth, limit in enumerate(fanout):
            made.append(self.block(targets, limit, key_of(key, depth)))
            targets = made[-1].sources
        return made[::-1]


def shares(
    vertices: NDArray[np.integer[Any]], world: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Shuffle vertices and distribute them over `world` ranks in equal shares; fewer than `world`
    are left out.

    Equal shares give every rank the same steps and batch sizes, so that the mean of the ranks'
    gradients is the gradient of the mean loss over all of their batches.
    """
    order = rng.permutation(vertices).astype(np.int64)
    size = len(order) // world
    return [order[rank * size : (rank + 1) * size] for rank in range(world)]
