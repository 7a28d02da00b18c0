"""The tables of a scenario of sampled training of a distributed graph."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from testbed.core.tables import Named
from testbed.gnn.options import MinibatchSpec
from testbed.sampling.options import DistributedModelSpec, SamplingTerms
from testbed.sampling.registry import WAYS
from testbed.workloads.scenario import SystemTable
from testbed.workloads.training.scenario import TrainingScenario

__all__ = ["SampledScenario", "SamplingSpec"]


class SamplingSpec(SystemTable, SamplingTerms):
    """``[sampling]``: the ways that take turns, and their common options."""

    backends: tuple[Annotated[str, Named(WAYS)], ...] = Field(
        default=("rpc", "rpc-ahead", "katana"), min_length=1, strict=False
    )


class SampledScenario(TrainingScenario):
    """A scenario of workload ``sampled``."""

    sampling: SamplingSpec = SamplingSpec()
    model: DistributedModelSpec = DistributedModelSpec()
    training: MinibatchSpec = MinibatchSpec()

    @model_validator(mode="after")
    def _cache_where_one_is_needed(self) -> Self:
        if "rpc-cached" in self.sampling.backends and not self.sampling.cache:
            raise ValueError("sampling.cache = 0: must be at least 1 with rpc-cached")
        return self
