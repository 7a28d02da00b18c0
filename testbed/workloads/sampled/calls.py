"""What a worker does in sampled training of a distributed graph; the rest is as in
`data_parallel`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from testbed.collectives.registry import open_backend
from testbed.comm.group import GroupSpec
from testbed.gnn.graph import GraphData
from testbed.gnn.partition import cached_owners
from testbed.gnn.sampling import Vertices
from testbed.sampling.cache import inclusion
from testbed.sampling.graph_part import Part
from testbed.sampling.peers import Peers
from testbed.sampling.registry import WAYS
from testbed.workloads.calls import closing
from testbed.workloads.data_parallel.calls import State
from testbed.workloads.sampled.scenario import SampledScenario

if TYPE_CHECKING:
    from testbed.sampling.train import SampledTrainer
    from testbed.worker import WorkerContext

__all__ = ["open_rank", "prepare_rank", "test_rank"]

ALL_REDUCE = "tcp-ring"
"""Sums gradients, with whichever way minibatches are prepared."""


@dataclass
class Owned:
    """What a rank keeps, whichever way is open.

    :param share: Training vertices of the rank that has the fewest.
    :param likely: See `SampledTrainer`.
    """

    part: Part
    share: int
    classes: int
    likely: Vertices | None


def owned(context: WorkerContext, scenario: SampledScenario, graph: str, rank: int) -> Owned:
    """Take this rank's part of the graph, once."""
    if found := context.kept.get(Owned):
        return cast(Owned, found)
    data, hosts = GraphData.load(Path(graph)), scenario.fabric.hosts
    owners = cached_owners(
        Path(graph), scenario.sampling.partitioner, hosts, scenario.scenario.seed
    )
    share = int(np.bincount(owners[data.train], minlength=hosts).min())
    part = Part.of(data, owners, rank, hosts, scenario.model.precision == "bfloat16")
    likely = None
    if scenario.sampling.cache:
        chances = inclusion(
            *(data.indptr, data.indices, part.train),
            *(scenario.training.batch_size, scenario.model.fanout),
        )
        foreign = np.flatnonzero(part.rows < 0)
        likely = foreign[np.argsort(-chances[foreign], kind="stable")].astype(np.int32)
    return context.keep(Owned(part, share, data.num_classes, likely))


def prepare_rank(
    context: WorkerContext,
    backend: str,
    scenario: SampledScenario,
    graph: str,
    rank: int,
    seed: int,
) -> None:
    """Take this rank's part of the graph, and create the model that is trained with a way of
    preparing minibatches, with its initial weights.

    :param graph: Folder of the graph.
    """
    from testbed.sampling.train import SampledTrainer

    state, mine = context.state(State), owned(context, scenario, graph, rank)

    def make() -> SampledTrainer:
        return SampledTrainer(
            *(mine.part, mine.classes, mine.share, WAYS[backend], scenario.sampling),
            *(scenario.model, scenario.training, seed, mine.likely),
        )

    state.start(backend, make)


def open_rank(context: WorkerContext, backend: str, group: GroupSpec, sampling: GroupSpec) -> None:
    """Connect to the other ranks, for gradients and for samples; a collective."""
    stack, state = closing(context), context.state(State)
    trainer = cast("SampledTrainer", state.trainers[backend])
    opened = stack.enter_context(open_backend(ALL_REDUCE, context, group))
    state.backend = opened
    opened.connect()
    trainer.join(stack.enter_context(Peers.connect(trainer.part, sampling)))


def test_rank(context: WorkerContext, backend: str) -> tuple[int, int]:
    """Return the numbers of right answers and of all test vertices that this rank owns; all ranks
    at once.
    """
    return cast("SampledTrainer", context.state(State).trainers[backend]).test()
