"""What a worker does in full-graph training, as functions that the controller calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.collectives.registry import open_backend
from testbed.comm.group import GroupSpec
from testbed.core.errors import TestbedError
from testbed.exchange.interface import ExchangeSpec
from testbed.exchange.registry import open_exchange
from testbed.gnn.graph import GraphData
from testbed.gnn.partition import Owners, Quality, cached_owners, measure
from testbed.gnn.streaming.partition_folder import FORMAT, PartitionFolder
from testbed.kernel.syscalls import SyscallCounter
from testbed.workloads.calls import closing
from testbed.workloads.full_graph.scenario import FullGraphScenario

if TYPE_CHECKING:
    from testbed.gnn.full.channel import Channel, Slot
    from testbed.gnn.full.part import Part
    from testbed.gnn.full.train import FullTrainer
    from testbed.gnn.result import FullResult
    from testbed.worker import WorkerContext

__all__ = ["open_rank", "partition", "prepare_rank", "quality_of", "train_rank", "vertex_cut"]


@dataclass
class State:
    """What a rank keeps.

    :param part: Its part of the graph.
    :param trainers: Its models in training, by backend.
    :param channel: What is open.
    """

    part: Part | None = None
    trainers: dict[str, FullTrainer] = field(default_factory=dict)
    channel: Channel | None = None
    warm: bool = False


def partition(scenario: FullGraphScenario, graph: Path) -> Owners:
    """Return the rank that owns each vertex, the same in all trials."""
    if scenario.exchange.policy is not None:
        from testbed.gnn.full.vertex_cut import read_masters

        return read_masters(vertex_cut(scenario, graph))
    return cached_owners(
        graph, scenario.exchange.partitioner, scenario.fabric.hosts, scenario.scenario.seed
    )


def quality_of(scenario: FullGraphScenario, folder: Path, data: GraphData) -> Quality:
    """Return the measures of the partition."""
    if scenario.exchange.policy is None:
        owners = partition(scenario, folder)
        return measure(data.indptr, data.indices, owners, scenario.fabric.hosts)
    manifest = PartitionFolder(vertex_cut(scenario, folder)).manifest
    return Quality(
        manifest["cut_edges"] // 2,
        manifest["cut_share"],
        manifest["replication_factor"],
        manifest["vertex_balance"],
        manifest["edge_balance"],
    )


def vertex_cut(scenario: FullGraphScenario, graph: Path) -> Path:
    """Return the folder of a vertex cut, which is kept with the graph; partition it first if
    necessary.

    :raises SpecError: The graph cannot be partitioned so.
    """
    from testbed.gnn.streaming.edges import Adjacency
    from testbed.gnn.streaming.options import PartitionOptions
    from testbed.gnn.streaming.partitioning import partition

    policy, hosts = str(scenario.exchange.policy), scenario.fabric.hosts
    seed = scenario.scenario.seed
    folder = graph / f"cut-{policy}-{hosts}-seed{seed}-v{FORMAT['version']}"
    if not folder.exists():
        options = PartitionOptions(policy=policy, parts=hosts, seed=seed, threads=1)
        edges = Adjacency(str(graph), GraphData.load(graph))
        edges.features = edges.labels = None  # ranks map those of the graph
        try:
            partition(edges, options, folder)
        except TestbedError:
            if not folder.exists():  # otherwise another run was first, with the same content
                raise
    return folder


def prepare_rank(
    context: WorkerContext,
    backend: str,
    scenario: FullGraphScenario,
    graph: str,
    rank: int,
    seed: int,
) -> None:
    """Extract this rank's part of the graph, and create the model that is trained with a backend,
    with its initial weights.

    :param graph: Folder of the graph.
    """
    from testbed.gnn.full.part import make_part
    from testbed.gnn.full.train import FullTrainer
    from testbed.gnn.full.vertex_cut import read_vertex_cut

    state, data = context.state(State), GraphData.load(Path(graph))
    if state.part is None:
        owners, hosts = partition(scenario, Path(graph)), scenario.fabric.hosts
        state.part = make_part(data, owners, rank, hosts, scenario.exchange.halo)
        if scenario.exchange.policy is not None:
            cut = read_vertex_cut(vertex_cut(scenario, Path(graph)), rank)
            state.part = replace(state.part, cut=cut)
    part = state.part

    def make() -> FullTrainer:
        return FullTrainer(part, data.num_classes, scenario.model, scenario.training, seed)

    if not state.warm:
        make().warm_up()  # once per process
        state.warm = True
    state.trainers[backend] = make()


def open_rank(
    context: WorkerContext,
    backend: str,
    group: GroupSpec,
    exchange: str,
    exchanges: Mapping[Slot, dict[str, Any]],
) -> None:
    """Open the all-reduce and a model's exchanges, and connect each to the other ranks; a
    collective.

    :param backend: The name of the all-reduce; `exchange`: that of the exchanges.
    :param exchanges: The fields of each `ExchangeSpec` except the halo.
    """
    from testbed.gnn.full.channel import Channel

    state = context.state(State)
    assert state.part
    stack = closing(context)
    reduce = stack.enter_context(open_backend(backend, context, group))
    reduce.connect()
    opened = {}
    for slot, terms in exchanges.items():
        halo = state.part.halo(slot.use)
        opened[slot] = stack.enter_context(
            open_exchange(exchange, context, ExchangeSpec(halo=halo, **terms))
        )
        opened[slot].connect()
    state.channel = Channel(reduce, opened)


def train_rank(
    context: WorkerContext, backend: str, epoch: int, counted: bool = False
) -> FullResult:
    """Train a backend's model for an epoch, and evaluate it; a collective.

    :param counted: Also count system calls in collectives, which makes the times meaningless.
    """
    state = context.state(State)
    trainer, channel = state.trainers[backend], state.channel
    assert channel
    if not counted:
        return trainer.epoch(channel, epoch)
    with SyscallCounter() as calls:
        return trainer.epoch(channel, epoch, calls)
