"""Ranks that are threads of one process: an exchange and a backend over shared memory, for tests
without a network.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array

from testbed.comm.collective import Counters
from testbed.exchange.halo import Halo
from testbed.exchange.interface import PHASES, Embeddings
from testbed.gnn.full.channel import Channel, plan_exchanges
from testbed.gnn.full.part import Part, make_part
from testbed.gnn.full.train import FullTrainer
from testbed.gnn.full.vertex_cut import VertexCut
from testbed.gnn.graph import GraphData
from testbed.gnn.options import ModelSpec, TrainingSpec
from testbed.gnn.partition import Owners
from testbed.gnn.result import FullResult

__all__ = ["Ranks", "train"]

TIMEOUT = 30  # seconds, for a rank that has failed


class Ranks:
    """What threads share: the barrier at which they meet, and the array that each contributes."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world)
        self.brought: list[np.ndarray | None] = [None] * world

    def meet(
        self, rank: int, array: np.ndarray, use: Callable[[list[np.ndarray]], np.ndarray]
    ) -> np.ndarray:
        """Contribute an array, and combine the arrays of all ranks before any of them goes on."""
        self.brought[rank] = array
        self.barrier.wait(TIMEOUT)
        made = use([brought for brought in self.brought if brought is not None])
        self.barrier.wait(TIMEOUT)
        return made


class ThreadBackend:
    """The part of `Backend` that training uses; sums in rank order, so all get the same bits."""

    needs = "xdp"

    def __init__(self, ranks: Ranks, rank: int) -> None:
        self.ranks, self.rank = ranks, rank

    def all_reduce(self, tensor: np.ndarray, out: np.ndarray) -> np.ndarray:
        out[:] = self.ranks.meet(
            self.rank, tensor.copy(), lambda all_: np.sum(all_, axis=0, dtype=np.float32)
        )
        return out

    def counters(self) -> Counters:
        return Counters(packets=1)


class ThreadExchange:
    """The part of `Exchange` that training uses."""

    def __init__(self, ranks: Ranks, halo: Halo, dim: int) -> None:
        self.ranks, self.halo, self.dim = ranks, halo, dim
        self.phases = dict.fromkeys(PHASES, 0.0)
        self.calls = 0

    def aggregate(self, x: Embeddings, out: Embeddings) -> Embeddings:
        assert x.shape == out.shape == (self.halo.num_owned, self.dim)
        sent = [x[positions] for positions in self.halo.sends]

        def received(everyone: list[np.ndarray]) -> np.ndarray:
            return np.concatenate([brought[self.halo.rank] for brought in everyone])

        rows = self.ranks.meet(self.halo.rank, sent, received)  # type: ignore[arg-type]
        ones = np.ones(len(self.halo.indices), np.float32)
        out[:] = (
            csr_array((ones, self.halo.indices, self.halo.indptr), shape=(len(x), len(rows))) @ rows
        )
        self.calls += 1
        return out

    def counters(self) -> Counters:
        return Counters(packets=10 * self.calls, wire_bytes=100 * self.calls)

    def measures(self) -> dict[str, float]:
        return {"redundant_bytes": 7.0 * self.calls}


def channel(
    ranks: Ranks, part: Part, model: ModelSpec, num_classes: int, cached: bool = False
) -> Channel:
    """Make a rank's channel over threads."""
    planned = plan_exchanges(model, part.x.shape[1], num_classes, cached, part.cut is not None)
    exchanges = {
        slot: ThreadExchange(ranks, part.halo(slot.use), dim) for slot, dim in planned.items()
    }
    return Channel(ThreadBackend(ranks, part.rank), exchanges)  # type: ignore[arg-type]


def train(
    graph: GraphData,
    owners: Owners,
    model: ModelSpec,
    training: TrainingSpec,
    seed: int = 1,
    cached: bool = False,
    cuts: Sequence[VertexCut] = (),
) -> tuple[list[FullTrainer], list[list[FullResult]]]:
    """Train with a thread per rank; one rank has no channel at all.

    :param cuts: Each rank's, with a vertex cut.

    :returns: Each rank's trainer, and its results by epoch.
    """
    world = int(owners.max()) + 1
    ranks = Ranks(world)
    parts = [make_part(graph, owners, rank, world) for rank in range(world)]
    if cuts:
        parts = [replace(part, cut=cut) for part, cut in zip(parts, cuts, strict=True)]
    # One after another: torch's seed is global to the process, which ranks share here.
    trainers = [FullTrainer(part, graph.num_classes, model, training, seed) for part in parts]
    single = [Channel()] if world == 1 else None
    channels = single or [channel(ranks, part, model, graph.num_classes, cached) for part in parts]

    def run(rank: int) -> list[FullResult]:
        return [trainers[rank].epoch(channels[rank], epoch) for epoch in range(training.epochs)]

    with ThreadPoolExecutor(world) as pool:
        return trainers, list(pool.map(run, range(world)))
