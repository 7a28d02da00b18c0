"""What a worker does before a torch module is trained; then it is as in `data_parallel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from testbed.workloads.data_parallel.calls import State

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from testbed.worker import WorkerContext
    from testbed.workloads.module.scenario import ModuleScenario
    from testbed.workloads.module.train import ModuleTrainer

__all__ = ["prepare_rank", "restore_rank", "snapshot_rank"]


def prepare_rank(
    context: WorkerContext, backend: str, scenario: ModuleScenario, rank: int, seed: int
) -> None:
    """Make the module that is trained with a backend, with its initial weights."""
    from testbed.workloads.module.train import ModuleTrainer

    state = context.state(State)

    def make() -> ModuleTrainer:
        world = len(context.fabric_plan.hosts)
        return ModuleTrainer(scenario.module, scenario.training, rank, world, seed)

    state.start(backend, make)


def snapshot_rank(context: WorkerContext, backend: str) -> NDArray[np.uint8]:
    """Return all values of the module that is trained with a backend."""
    return _trainer(context, backend).snapshot()


def restore_rank(context: WorkerContext, backend: str, values: NDArray[np.uint8]) -> None:
    """Let the module that is trained with a backend begin with the values of another's."""
    _trainer(context, backend).restore(values)


def _trainer(context: WorkerContext, backend: str) -> ModuleTrainer:
    return cast("ModuleTrainer", context.state(State).trainers[backend])
