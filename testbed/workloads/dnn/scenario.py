"""The table of a scenario that trains a deep network."""

from typing import Annotated

from pydantic import Field

from testbed.collectives.registry import BACKENDS
from testbed.comm.options import CollectiveOptions
from testbed.core.tables import Named
from testbed.workloads.dnn.architectures import ARCHITECTURES, Architecture
from testbed.workloads.dnn.buckets import Bucket, make_buckets
from testbed.workloads.scenario import Scenario, SystemTable

__all__ = ["DNNScenario", "DNNTable"]


class DNNTable(SystemTable, CollectiveOptions):
    """``[dnn]``: the network, how long it computes, and the backends that take turns."""

    backends: tuple[Annotated[str, Named(BACKENDS)], ...] = Field(
        default=("xdp-ring", "tcp-ring", "gloo"), min_length=1, strict=False
    )
    model: Annotated[str, Named(ARCHITECTURES)] = Field(
        default="resnet50", description="architecture whose gradient is summed"
    )
    compute: float = Field(
        default=0.1,
        ge=0,
        le=60,
        description=(
            "seconds of matrix work in a rank's step, a third of it forward, on a CPU of its own"
        ),
    )
    bucket_mb: float = Field(
        default=25, gt=0, le=4096, description="MiB that close a bucket (DDP's bucket_cap_mb)"
    )
    overlap: bool = Field(
        default=True, description="whether buckets are summed while backward goes on"
    )
    epochs: int = Field(default=5, ge=1, le=1000, description="epochs of each backend")
    steps: int = Field(default=4, ge=1, le=10_000, description="steps of an epoch")

    @property
    def architecture(self) -> Architecture:
        """The network."""
        return ARCHITECTURES[self.model]

    @property
    def buckets(self) -> list[Bucket]:
        """What is summed together, in order."""
        return make_buckets(self.architecture.tensors, int(self.bucket_mb * (1 << 20)))


class DNNScenario(Scenario):
    """A scenario of workload ``dnn``."""

    dnn: DNNTable = DNNTable()

    @property
    def epochs(self) -> int:
        """See `Scenario.epochs`."""
        return self.dnn.epochs
