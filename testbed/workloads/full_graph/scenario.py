"""The tables of a scenario of full-graph training."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from testbed.comm.options import Window
from testbed.core.tables import Named
from testbed.exchange.options import ExchangeTerms, HaloOptions
from testbed.exchange.registry import EXCHANGES
from testbed.gnn.partition.registry import PARTITIONERS
from testbed.gnn.streaming.registry import POLICIES
from testbed.workloads.scenario import SystemTable
from testbed.workloads.training.scenario import TrainingScenario

__all__ = ["FullGraphScenario", "FullGraphSpec"]


class FullGraphSpec(SystemTable, ExchangeTerms, HaloOptions):
    """``[exchange]``: the exchanges that take turns, and their common options."""

    backends: tuple[Annotated[str, Named(EXCHANGES)], ...] = Field(
        default=("pinch", "tcp-pull", "tcp-push", "gloo"), min_length=1, strict=False
    )
    window: Window = 32
    partitioner: Annotated[str, Named(PARTITIONERS)] = "metis"
    policy: Annotated[str, Named(POLICIES)] | None = Field(
        default=None,
        description="policy of the streaming partitioner, in place of a partitioner",
    )
    turn: int = Field(default=5, ge=1, le=10_000, description="epochs that a backend's turn lasts")

    @model_validator(mode="after")
    def _what_a_vertex_cut_has(self) -> Self:
        for key, usual in (("bound", None), ("halo", "rows")):
            if self.policy is not None and getattr(self, key) != usual:
                raise ValueError(f"{key}: must be left out with exchange.policy, a vertex cut")
        return self


class FullGraphScenario(TrainingScenario):
    """A scenario of workload ``gnn``."""

    exchange: FullGraphSpec = FullGraphSpec()

    @property
    def epochs_a_turn(self) -> int:
        """See `Scenario.epochs_a_turn`."""
        return self.exchange.turn

    @model_validator(mode="after")
    def _somebody_to_exchange_with(self) -> Self:
        if self.fabric.hosts == 1:
            raise ValueError("fabric.hosts = 1: must be at least 2 with [exchange]")
        return self
