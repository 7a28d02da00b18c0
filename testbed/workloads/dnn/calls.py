"""What a worker does in the training of a deep network, as functions that the controller calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.collectives.registry import open_backend
from testbed.comm.backend import Backend
from testbed.comm.group import GroupSpec
from testbed.workloads.calls import closing

if TYPE_CHECKING:
    from testbed.worker import WorkerContext
    from testbed.workloads.dnn.epoch import DNNEpoch
    from testbed.workloads.dnn.scenario import DNNTable
    from testbed.workloads.dnn.train import Trainer

__all__ = ["open_rank", "prepare_rank", "train_rank"]


@dataclass
class State:
    """What a rank keeps: its gradient and weights, which all backends use in turn, and what is
    open.
    """

    trainer: Trainer | None = None
    backend: Backend | None = None


def prepare_rank(
    context: WorkerContext, table: DNNTable, units: int, rank: int, world: int, seed: int
) -> None:
    """Begin a trial.

    :param units: Matrix multiplications of a step.
    """
    from testbed.workloads.dnn.train import Trainer

    context.state(State).trainer = None  # its memory is free before another's is taken
    context.state(State).trainer = Trainer(table, units, rank, world, seed)


def open_rank(context: WorkerContext, backend: str, group: GroupSpec) -> None:
    """Open the backend and connect to the other ranks; a collective."""
    opened = closing(context).enter_context(open_backend(backend, context, group))
    context.state(State).backend = opened
    opened.connect()


def train_rank(context: WorkerContext, epoch: int) -> DNNEpoch:
    """Train for an epoch; a collective. Rank 0 reports its steps as progress."""
    state = context.state(State)
    trainer, opened = state.trainer, state.backend
    assert trainer
    assert opened

    def on_step(step: int, _steps: int) -> None:
        if trainer.rank == 0:
            context.progress(step)

    return trainer.epoch(opened, epoch, on_step)
