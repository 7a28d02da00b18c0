"""What a worker does in a data-parallel run, as functions that the controller calls.

Opening, training and closing are calls of their own, so that no rank takes its transport down while another
still needs an answer from it.
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.collectives.group import GroupSpec
from testbed.collectives.registry import open_transport
from testbed.collectives.transport import Transport
from testbed.gnn.graph import GraphData
from testbed.spec.scenario import Scenario

if TYPE_CHECKING:
    from testbed.gnn.result import EpochResult
    from testbed.gnn.train import Trainer
    from testbed.worker import WorkerContext

__all__ = ["StepDone", "close_rank", "closing", "open_rank", "prepare_rank", "test_rank", "train_rank"]

STEP_INTERVAL = 0.2  # seconds between two messages of progress, so that telling costs nothing worth mentioning


@dataclass(frozen=True)
class StepDone:
    """Progress: a rank has done `step` of an epoch's `steps`."""

    step: int
    steps: int


def prepare_rank(context: "WorkerContext", transport: str, scenario: Scenario, graph: str, rank: int, seed: int) -> None:
    """Map the graph and make the model that is trained with a transport, with its first weights.

    :param graph: Folder of the graph.
    """
    from testbed.gnn.train import Trainer

    def make() -> Trainer:
        return Trainer(data, scenario.model, scenario.training, rank, scenario.fabric.hosts, seed)

    data = GraphData.load(Path(graph))
    if not context.objects.setdefault("warm", False):
        make().warm_up()  # once a process
        context.objects["warm"] = True
    trainers(context)[transport] = make()


def open_rank(context: "WorkerContext", transport: str, group: GroupSpec) -> None:
    """Open the transport and meet the other ranks; a collective."""
    opened = closing(context).enter_context(open_transport(transport, context, group))
    context.objects["transport"] = opened
    opened.connect()


def closing(context: "WorkerContext") -> ExitStack:
    """Return a new stack of what `close_rank` closes, or the worker when it ends."""
    context.objects["open"] = context.resources.enter_context(ExitStack())
    opened: ExitStack = context.objects["open"]
    return opened


def train_rank(context: "WorkerContext", transport: str, epoch: int) -> "EpochResult":
    """Train the transport's model for an epoch; a collective. Rank 0 tells its steps as progress."""
    trainer = trainers(context)[transport]
    opened: Transport = context.objects["transport"]
    told = 0.0

    def on_step(step: int, steps: int) -> None:
        nonlocal told
        if trainer.rank == 0 and time.monotonic() - told >= STEP_INTERVAL:
            told = time.monotonic()
            context.progress(StepDone(step, steps))

    return trainer.epoch(opened, epoch, on_step)


def close_rank(context: "WorkerContext") -> None:
    """Close what has been opened."""
    context.objects.pop("open").close()


def test_rank(context: "WorkerContext", transport: str) -> tuple[float, float]:
    """Return the trained model's accuracy on the test set, 0..1, and the seconds that this took."""
    trainer = trainers(context)[transport]
    started = time.perf_counter()
    return trainer.test_accuracy(), time.perf_counter() - started


def trainers(context: "WorkerContext") -> "dict[str, Trainer]":
    """Return this rank's models in training, by transport."""
    found: dict[str, Trainer] = context.objects.setdefault("trainers", {})
    return found
