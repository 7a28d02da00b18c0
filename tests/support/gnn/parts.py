"""Ranks that own parts of a graph, in one process, over pairs of sockets."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from testbed.gnn.graph import GraphData
from testbed.sampling.graph_part import Part
from testbed.sampling.peers import Peers

__all__ = ["owners_of", "ranks"]


def owners_of(graph: GraphData, world: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, world, graph.num_vertices)


@contextmanager
def ranks(
    graph: GraphData, owners: np.ndarray, world: int, timeout: float = 10.0, halves: bool = False
) -> Iterator[list[Peers]]:
    """All ranks in this process, over pairs of sockets."""
    ends: dict[tuple[int, int], tuple[socket.socket, socket.socket]] = {}
    with ExitStack() as stack:
        for one in range(world):
            for other in range(world):
                if one != other:
                    ends[one, other] = asks, answers = socket.socketpair()
                    stack.enter_context(asks)
                    stack.enter_context(answers)
        names = [f"rank {rank}" for rank in range(world)]
        found = []
        for rank in range(world):
            others = [other for other in range(world) if other != rank]
            part = Part.of(graph, owners, rank, world, halves)
            asks = {other: ends[rank, other][0] for other in others}
            answers = {other: ends[other, rank][1] for other in others}
            found.append(stack.enter_context(Peers(part, asks, answers, timeout, names)))
        yield found
