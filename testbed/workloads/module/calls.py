"""What a worker does before a torch module is trained; then it is as in `data_parallel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.workloads.data_parallel.calls import State

if TYPE_CHECKING:
    from testbed.worker import WorkerContext
    from testbed.workloads.module.scenario import ModuleScenario

__all__ = ["prepare_rank"]


def prepare_rank(
    context: WorkerContext, backend: str, scenario: ModuleScenario, rank: int, seed: int
) -> None:
    """Make the module that is trained with a backend, with its initial weights."""
    from testbed.workloads.module.train import ModuleTrainer

    state = context.state(State)

    def make() -> ModuleTrainer:
        world = len(context.fabric_plan.hosts)
        return ModuleTrainer(scenario.module, scenario.training, rank, world, seed)

    if not state.warm:
        make().warm_up()  # once per process
        state.warm = True
    state.trainers[backend] = make()
