"""The options of sampled training, each defined once."""

from typing import Annotated, Literal

from pydantic import Field

from testbed.core.tables import Named, Table
from testbed.gnn.options import SampledModelSpec
from testbed.gnn.partition.registry import PARTITIONERS

__all__ = ["DistributedModelSpec", "SamplingTerms"]


class SamplingTerms(Table):
    """How a graph is distributed, and how much is prepared at a time."""

    partitioner: Annotated[str, Named(PARTITIONERS)] = Field(
        default="metis-balanced", description="which rank owns a vertex"
    )
    group: int | None = Field(
        default=None,
        ge=1,
        le=1 << 20,
        description=(
            "minibatches that katana prepares together; default: as many as `memory` has room for"
        ),
    )
    overlap: bool = Field(
        default=True,
        description="rpc-ahead and katana prepare the next minibatches while others are used",
    )
    memory: int = Field(
        default=1024,
        ge=1,
        le=1 << 20,
        description="MiB of each rank for minibatches that are prepared and not used yet",
    )
    cache: int = Field(
        default=0,
        ge=0,
        le=1 << 20,
        description="MiB of each rank for features of other ranks' vertices; rpc has no such cache",
    )
    policy: Literal["next-use", "inclusion"] = Field(
        default="next-use",
        description=(
            "which of these katana keeps: those that it knows to be needed next, or those that are"
            " most probably needed"
        ),
    )
    horizon: int = Field(
        default=4,
        ge=1,
        le=1024,
        description="groups that are sampled in advance, for next-use",
    )


class DistributedModelSpec(SampledModelSpec):
    """``[model]`` of sampled training of a distributed graph."""

    kernels: Literal["native", "torch"] = Field(
        default="native",
        description=(
            "what computes layers: functions of our own, which read features where they are; or"
            " torch-geometric"
        ),
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description=(
            "of features, on the way too, and of what native layers compute in; weights are float32"
        ),
    )
