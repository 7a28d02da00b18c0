"""What a worker does in a data-parallel run, as functions that the controller calls.

Opening, training and closing are calls of their own, so that no rank takes its transport down while another
still needs an answer from it.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.collectives.group import GroupSpec
from testbed.collectives.registry import open_transport
from testbed.collectives.transport import Transport
from testbed.gnn.graph import GraphData
from testbed.spec.scenario import Scenario

if TYPE_CHECKING:
    from testbed.gnn.train import EpochResult, Trainer
    from testbed.worker import WorkerContext

__all__ = ["StepDone", "close_rank", "open_rank", "prepare_rank", "test_rank", "train_rank"]

STEP_INTERVAL = (
    0.2  # seconds between two messages of progress, so that telling costs nothing worth mentioning
)


@dataclass(frozen=True)
class StepDone:
    """Progress: a rank has done `step` of `steps` in an epoch."""

    epoch: int
    step: int
    steps: int


def prepare_rank(
    context: "WorkerContext", scenario: Scenario, graph: str, rank: int, seed: int, warm: bool
) -> None:
    """Map the graph and make the model with its first weights.

    :param graph: Folder of the graph.
    :param warm: Compute one gradient more than is needed, first, so that no transport pays for warming up.
    """
    from testbed.gnn.train import Trainer

    def make() -> "Trainer":
        return Trainer(data, scenario.model, scenario.training, rank, scenario.fabric.hosts, seed)

    data = GraphData.load(Path(graph))
    if warm:
        make().warm_up()
    context.objects["trainer"] = make()


def open_rank(context: "WorkerContext", transport: str, group: GroupSpec) -> None:
    """Open the transport and meet the other ranks; a collective."""
    opened = open_transport(transport, context, group)
    context.resources.callback(opened.close)
    context.objects["transport"] = opened
    opened.connect()


def train_rank(context: "WorkerContext") -> list["EpochResult"]:
    """Train with what was prepared and opened; a collective. Steps and epochs are told as progress."""
    trainer: Trainer = context.objects["trainer"]
    transport: Transport = context.objects["transport"]
    told = 0.0

    def on_step(epoch: int, step: int, steps: int) -> None:
        nonlocal told
        if trainer.rank == 0 and time.monotonic() - told >= STEP_INTERVAL:
            told = time.monotonic()
            context.progress(StepDone(epoch, step, steps))

    results = []
    for result in trainer.epochs(transport, on_step):
        context.progress(result)
        results.append(result)
    return results


def test_rank(context: "WorkerContext") -> tuple[float, float]:
    """Return the trained model's accuracy on the test set, 0..1, and the seconds that this took."""
    trainer: Trainer = context.objects["trainer"]
    started = time.perf_counter()
    return trainer.test_accuracy(), time.perf_counter() - started


def close_rank(context: "WorkerContext") -> None:
    """Close the transport."""
    context.objects.pop("transport").close()
