"""What a worker does in data-parallel training, as functions that the controller calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.collectives.registry import open_backend
from testbed.comm.backend import Backend
from testbed.comm.group import GroupSpec
from testbed.gnn.graph import GraphData
from testbed.workloads.calls import closing
from testbed.workloads.data_parallel.scenario import DataParallelScenario

if TYPE_CHECKING:
    from testbed.gnn.result import EpochResult
    from testbed.gnn.train import Minibatches
    from testbed.worker import WorkerContext

__all__ = ["StepDone", "open_rank", "prepare_rank", "test_rank", "train_rank"]

STEP_INTERVAL = 0.2  # seconds between two messages of progress, so that their cost is negligible


@dataclass(frozen=True)
class StepDone:
    """Progress: a rank has done `step` of an epoch's `steps`."""

    step: int
    steps: int


@dataclass
class State:
    """What a rank keeps.

    :param trainers: Its models in training, by backend.
    :param backend: What is open.
    """

    trainers: dict[str, Minibatches] = field(default_factory=dict)
    backend: Backend | None = None
    warm: bool = False

    def start(self, backend: str, make: Callable[[], Minibatches]) -> None:
        """Make the model that is trained with a backend; before the first one of this process, warm
        up with another.
        """
        if not self.warm:
            make().warm_up()
            self.warm = True
        self.trainers[backend] = make()


def prepare_rank(
    context: WorkerContext,
    backend: str,
    scenario: DataParallelScenario,
    graph: str,
    rank: int,
    seed: int,
) -> None:
    """Map the graph and create the model that is trained with a backend, with its initial weights.

    :param graph: Folder of the graph.
    """
    from testbed.gnn.train import Trainer

    state, data = context.state(State), GraphData.load(Path(graph))

    def make() -> Trainer:
        return Trainer(data, scenario.model, scenario.training, rank, scenario.fabric.hosts, seed)

    state.start(backend, make)


def open_rank(context: WorkerContext, backend: str, group: GroupSpec) -> None:
    """Open the backend and connect to the other ranks; a collective."""
    opened = closing(context).enter_context(open_backend(backend, context, group))
    context.state(State).backend = opened
    opened.connect()


def train_rank(context: WorkerContext, backend: str, epoch: int) -> EpochResult:
    """Train the backend's model for an epoch; a collective. Rank 0 reports its steps as
    progress.
    """
    state = context.state(State)
    trainer, opened = state.trainers[backend], state.backend
    assert opened
    told = 0.0

    def on_step(step: int, steps: int) -> None:
        nonlocal told
        if trainer.rank == 0 and time.monotonic() - told >= STEP_INTERVAL:
            told = time.monotonic()
            context.progress(StepDone(step, steps))

    return trainer.epoch(opened, epoch, on_step)


def test_rank(context: WorkerContext, backend: str) -> tuple[float | None, float]:
    """Return the trained model's accuracy on the test set, 0..1 or None if that is empty, and the
    seconds that this took.
    """
    trainer = context.state(State).trainers[backend]
    started = time.perf_counter()
    return trainer.test_accuracy(), time.perf_counter() - started
