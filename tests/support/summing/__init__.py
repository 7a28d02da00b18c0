"""A workload in another package: checked sums of whole numbers, without any training. It is one
folder and needs no edit elsewhere.
"""

from typing import Annotated

from pydantic import Field

from testbed.collectives.registry import BACKENDS
from testbed.comm.options import CollectiveOptions
from testbed.core.tables import Named
from testbed.workloads.scenario import Scenario, SystemTable
from testbed.workloads.workload import Report, Workload

__all__ = ["WORKLOAD"]


class SummingTable(SystemTable, CollectiveOptions):
    """``[summing]``."""

    backends: tuple[Annotated[str, Named(BACKENDS)], ...] = Field(
        default=("gloo",), min_length=1, strict=False
    )
    rounds: int = Field(default=3, ge=1, le=100, description="epochs")
    sums: int = Field(default=4, ge=1, le=1000, description="all-reduces per epoch")
    elements: int = Field(default=1000, ge=1, le=1 << 20, description="of a tensor")


class SummingScenario(Scenario):
    """A scenario of sums."""

    summing: SummingTable = SummingTable()

    @property
    def epochs(self) -> int:
        """See `Scenario.epochs`."""
        return self.summing.rounds


WORKLOAD = Workload(
    table="summing",
    scenario=SummingScenario,
    backends=BACKENDS,
    session=f"{__name__}.session:Summing",
    report=Report(
        compute=("drawing", "checking"),
        communication=("quantize", "communicate", "wait", "dequantize"),
        noun="all-reduce",
        every="a sum",
        about=lambda run: [f"{run.manifest['elements']:,} numbers summed at a time"],
    ),
)
