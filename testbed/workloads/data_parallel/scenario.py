"""The tables of a scenario of data-parallel training."""

from typing import Annotated

from pydantic import Field

from testbed.collectives.registry import BACKENDS
from testbed.comm.options import CollectiveOptions
from testbed.core.tables import Named
from testbed.gnn.options import MinibatchSpec, SampledModelSpec
from testbed.workloads.scenario import SystemTable
from testbed.workloads.training.scenario import TrainingScenario

__all__ = ["CollectiveSpec", "DataParallelScenario"]


class CollectiveSpec(SystemTable, CollectiveOptions):
    """``[collective]``: the backends that take turns, and their common options."""

    backends: tuple[Annotated[str, Named(BACKENDS)], ...] = Field(
        default=("xdp-ring", "tcp-ring", "gloo"), min_length=1, strict=False
    )


class DataParallelScenario(TrainingScenario):
    """A scenario of workload ``ddp``."""

    collective: CollectiveSpec = CollectiveSpec()
    model: SampledModelSpec = SampledModelSpec()
    training: MinibatchSpec = MinibatchSpec()
