"""Neighbour sampling on a CSR adjacency, vectorised: minibatches as bipartite blocks, one per
layer.

GraphSAGE's sampling (Hamilton, Ying and Leskovec, NeurIPS 2017): each target samples at most
`fanout` of its neighbours, drawn without replacement by Floyd's algorithm (Bentley and Floyd, CACM
30(9), 1987), all targets at once. Draws depend only on the generator: the same seed gives the same
minibatches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.gnn.graph import GraphData

__all__ = ["Block", "Sampler", "draw_neighbours", "shares"]

Vertices = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Block:
    """One layer's messages: from `sources` to the targets, which are the first `num_targets`
    sources.

    :param sources: int64, shape (s,): vertices, no repeats.
    :param edge_index: int64, shape (2, e): positions in `sources` of each message's sender and
        receiver.
    """

    sources: NDArray[np.int64]
    num_targets: int
    edge_index: NDArray[np.int64]


def draw_neighbours(
    graph: GraphData, targets: Vertices, fanout: int | None, rng: np.random.Generator | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw up to `fanout` neighbours of each target, uniformly, without replacement; None takes
    all.

    :returns: The neighbours, and for each the position in `targets` that it was drawn for
        (ascending).
    """
    first = graph.indptr[targets]
    degree = graph.indptr[targets + 1] - first
    count = degree if fanout is None else np.minimum(degree, fanout)
    row = np.repeat(np.arange(len(targets)), count)
    place = np.arange(len(row)) - np.repeat(
        np.cumsum(count) - count, count
    )  # 0..count-1 in each row
    if fanout is not None and rng is not None:
        many = np.flatnonzero(degree > fanout)
        if len(many):
            place[np.isin(row, many, assume_unique=False)] = _floyd(
                degree[many], fanout, rng
            ).reshape(-1)
    return graph.indices[first[row] + place].astype(np.int64), row


def _floyd(degree: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw `count` distinct numbers below each degree, all more than `count`; shape (len(degree),
    count).
    """
    drawn = np.empty((len(degree), count), np.int64)
    for column in range(count):
        last = degree - count + column
        candidate = rng.integers(0, last + 1)
        taken = (drawn[:, :column] == candidate[:, None]).any(axis=1)
        drawn[:, column] = np.where(taken, last, candidate)
    return drawn


class Sampler:
    """Makes blocks from a graph; keeps a scratch array of one number per vertex."""

    def __init__(self, graph: GraphData) -> None:
        self.graph = graph
        self._position = np.full(graph.num_vertices, -1, np.int64)

    def block(
        self, targets: Vertices, fanout: int | None, rng: np.random.Generator | None = None
    ) -> Block:
        """Return the block of messages to `targets` (distinct); a fanout of None takes all
        neighbours.
        """
        neighbours, row = draw_neighbours(self.graph, targets, fanout, rng)
        position = self._position
        position[targets] = np.arange(len(targets))
        new = np.unique(neighbours[position[neighbours] < 0])
        position[new] = len(targets) + np.arange(len(new))
        sources = np.concatenate([targets, new])
        edge_index = np.stack([position[neighbours], row])
        position[sources] = -1
        return Block(sources, len(targets), edge_index)

    def blocks(
        self, seeds: Vertices, fanout: Sequence[int], rng: np.random.Generator
    ) -> list[Block]:
        """Return a minibatch's blocks in the order in which layers use them.

        :param seeds: Vertices whose labels are learned, distinct.
        :param fanout: Neighbours sampled per vertex, from the seeds outwards, one number per layer.
        """
        made: list[Block] = []
        targets = seeds
        for limit in fanout:
            made.append(self.block(targets, limit, rng))
            targets = made[-1].sources
        return made[::-1]


def shares(vertices: Vertices, world: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Shuffle vertices and distribute them over `world` ranks in equal shares; fewer than `world`
    are left out.

    Equal shares give every rank the same steps and batch sizes, so that the mean of the ranks'
    gradients is the gradient of the mean loss over all of their batches.
    """
    order = rng.permutation(vertices).astype(np.int64)
    size = len(order) // world
    return [order[rank * size : (rank + 1) * size] for rank in range(world)]
