"""The tables of a scenario that trains a torch module."""

from typing import Annotated

from pydantic import Field

from testbed.collectives.registry import BACKENDS
from testbed.comm.options import CollectiveOptions
from testbed.core.tables import Named
from testbed.gnn.options import MinibatchSpec
from testbed.workloads.module.task import TASKS
from testbed.workloads.scenario import Scenario, SystemTable
from testbed.workloads.training.scenario import ToleranceSpec

__all__ = ["ModuleScenario", "ModuleTable"]


class ModuleTable(SystemTable, CollectiveOptions):
    """``[module]``: what is trained, and the backends that take turns."""

    backends: tuple[Annotated[str, Named(BACKENDS)], ...] = Field(
        default=("xdp-ring", "tcp-ring", "gloo"), min_length=1, strict=False
    )
    task: Annotated[str, Named(TASKS)] = Field(
        default="blobs", description="module and data, a testbed.workloads.module.task.Task"
    )
    arguments: dict[str, bool | int | float | str] = Field(
        default={}, description="of the task's constructor"
    )


class ModuleScenario(Scenario):
    """A scenario of workload ``module``."""

    module: ModuleTable = ModuleTable()
    training: MinibatchSpec = MinibatchSpec()
    tolerance: ToleranceSpec = ToleranceSpec()

    @property
    def epochs(self) -> int:
        """See `Scenario.epochs`."""
        return self.training.epochs
