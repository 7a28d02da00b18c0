"""What a worker does in a full-graph run, as functions that the controller calls; `testbed.run.rank` has what closes."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.bench.syscalls import SyscallCounter
from testbed.collectives.group import GroupSpec
from testbed.collectives.registry import open_transport
from testbed.exchange.interface import ExchangeSpec
from testbed.exchange.registry import open_exchange
from testbed.gnn.graph import GraphData
from testbed.gnn.partition import Owners, cached_owners
from testbed.run.rank import closing
from testbed.spec.scenario import Scenario

if TYPE_CHECKING:
    from testbed.gnn.full.channel import Slot
    from testbed.gnn.full.part import Part
    from testbed.gnn.full.train import FullTrainer
    from testbed.gnn.result import FullResult
    from testbed.worker import WorkerContext

__all__ = ["open_rank", "partition", "prepare_rank", "train_rank"]


def partition(scenario: Scenario, graph: Path) -> Owners:
    """Return the rank that owns each vertex, the same in all trials."""
    assert scenario.exchange is not None
    return cached_owners(graph, scenario.exchange.partitioner, scenario.fabric.hosts, scenario.scenario.seed)


def prepare_rank(context: "WorkerContext", transport: str, scenario: Scenario, graph: str, rank: int, seed: int) -> None:
    """Take this rank's part out of the graph, and make the model that is trained with a transport, with its first weights.

    :param graph: Folder of the graph.
    """
    from testbed.gnn.full.part import make_part
    from testbed.gnn.full.train import FullTrainer

    data = GraphData.load(Path(graph))
    if "part" not in context.objects:
        owners = partition(scenario, Path(graph))
        context.objects["part"] = make_part(data, owners, rank, scenario.fabric.hosts)

    def make() -> FullTrainer:
        return FullTrainer(context.objects["part"], data.num_classes, scenario.model, scenario.training, seed)

    if not context.objects.setdefault("warm", False):
        make().warm_up()  # once a process
        context.objects["warm"] = True
    trainers(context)[transport] = make()


def open_rank(
    context: "WorkerContext",
    transport: str,
    group: GroupSpec,
    exchange: str,
    exchanges: "Mapping[Slot, dict[str, Any]]",
) -> None:
    """Open the all-reduce and a model's exchanges, and meet the other ranks in each; a collective.

    :param transport: The name of the all-reduce; `exchange`: of the exchanges.
    :param exchanges: Each one's fields of `ExchangeSpec`, but for the halo.
    """
    from testbed.gnn.full.channel import Channel

    part: Part = context.objects["part"]
    stack = closing(context)
    reduce = stack.enter_context(open_transport(transport, context, group))
    reduce.connect()
    opened = {}
    for slot, terms in exchanges.items():
        halo = part.backward if slot.use == "backward" else part.forward
        opened[slot] = stack.enter_context(open_exchange(exchange, context, ExchangeSpec(halo=halo, **terms)))
        opened[slot].connect()
    context.objects["channel"] = Channel(reduce, opened)


def train_rank(context: "WorkerContext", transport: str, epoch: int, counted: bool = False) -> "FullResult":
    """Train a transport's model for an epoch, and evaluate it; a collective.

    :param counted: Count system calls in collectives meanwhile, which makes times worthless.
    """
    trainer = trainers(context)[transport]
    if not counted:
        return trainer.epoch(context.objects["channel"], epoch)
    with SyscallCounter() as calls:
        return trainer.epoch(context.objects["channel"], epoch, calls)


def trainers(context: "WorkerContext") -> "dict[str, FullTrainer]":
    """Return this rank's models in training, by transport."""
    found: dict[str, FullTrainer] = context.objects.setdefault("trainers", {})
    return found
