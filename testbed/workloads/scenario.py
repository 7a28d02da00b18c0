"""`Scenario`: the tables of a scenario file that all workloads have; each adds its own."""

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, field_serializer, model_validator

from testbed.comm.options import AffinityOf, GroupOptions, Timeout
from testbed.core.tables import Named, Table
from testbed.faults.spec import Fault, format_fault
from testbed.plan import TAKES_K, FabricOptions
from testbed.sim.options import SimulationOptions
from testbed.telemetry.options import TelemetryOptions
from testbed.workloads.programs import ProgramSpec
from testbed.workloads.registry import WORKLOADS
from testbed.workloads.validate import check_faults
from testbed.workloads.workload import Workload

if TYPE_CHECKING:
    from testbed.plan import Datapath

__all__ = ["Scenario", "ScenarioSpec", "SystemTable"]


class ScenarioSpec(Table):
    """``[scenario]``: what is run, and how often."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=60)
    workload: Annotated[str, Named(WORKLOADS)] = Field(
        description="workload to run; default: the one whose table is there"
    )
    description: str = ""
    engine: Literal["emulation", "simulation"] = Field(
        default="emulation",
        description="emulation builds the fabric, simulation computes times by models",
    )
    seed: int = Field(default=1, ge=0, lt=1 << 32)
    trials: int = Field(default=1, ge=1, le=100)
    fault_seed: int | None = Field(
        default=None, ge=0, lt=1 << 64, description="seed of the faults' fates; default: `seed`"
    )


class SystemTable(GroupOptions):
    """The table that selects a workload: the backends that take turns, and their common options.

    Each workload's subclass says what `backends` are names of (`testbed.core.tables.Named`), and
    its defaults.
    """

    backends: tuple[str, ...] = Field(
        min_length=1, strict=False, description="backends that take turns"
    )
    timeout: Timeout = 30.0
    affinity: AffinityOf = "rank"

    @model_validator(mode="after")
    def _no_repeats(self) -> Self:
        if len(set(self.backends)) != len(self.backends):
            raise ValueError("backends: each may be named once")
        return self


class Scenario(Table):
    """A whole scenario file. Each workload's subclass adds its table, under the name
    `Workload.table`.
    """

    scenario: ScenarioSpec
    fabric: FabricOptions = FabricOptions()
    simulation: SimulationOptions = SimulationOptions()
    telemetry: TelemetryOptions = TelemetryOptions()
    faults: tuple[Fault, ...] = Field(default=(), strict=False)
    programs: tuple[ProgramSpec, ...] = Field(default=(), strict=False)

    @property
    @abstractmethod
    def epochs(self) -> int:
        """How many epochs each backend works in a trial."""

    @property
    def epochs_a_turn(self) -> int:
        """How long a backend's turn lasts."""
        return 1

    @property
    def workload(self) -> Workload:
        """What is run."""
        return WORKLOADS[self.scenario.workload]

    @property
    def system(self) -> SystemTable:
        """The workload's own table."""
        found: SystemTable = getattr(self, self.workload.table)
        return found

    @property
    def simulated(self) -> bool:
        """Whether nothing is built."""
        return self.scenario.engine == "simulation"

    @property
    def fault_seed(self) -> int:
        """The seed of the faults' fates."""
        return self.scenario.seed if self.scenario.fault_seed is None else self.scenario.fault_seed

    @property
    def backends(self) -> tuple[str, ...]:
        """The names of the backends that take turns."""
        return self.system.backends

    def needs(self, backend: str) -> "Datapath":
        """Return the datapath that one of `backends` needs."""
        return self.workload.entry(backend).needs

    def resolve(self, base: Path) -> Self:
        """Return the scenario with paths relative to the folder `base`."""
        return self

    def located(self, folder: Path) -> Self:
        """Return the scenario with the files of programs and hardware relative to the folder of its
        file.
        """
        programs = tuple(
            each.model_copy(update={"file": str(folder / each.file)}) for each in self.programs
        )
        simulation = self.simulation.located(folder)
        return self.model_copy(update={"programs": programs, "simulation": simulation})

    @field_serializer("faults")
    def _faults_in_words(self, faults: tuple[Fault, ...]) -> list[str]:
        return [format_fault(fault) for fault in faults]

    @model_validator(mode="after")
    def _shape_fits(self) -> Self:
        if self.fabric.k is not None and self.fabric.topology not in TAKES_K:
            raise ValueError(
                f"fabric.k: only topologies {' and '.join(TAKES_K)} have it, not"
                f" {self.fabric.topology}"
            )
        return self

    @model_validator(mode="after")
    def _faults_fit(self) -> Self:
        check_faults(self.fabric, self.faults, {name: self.needs(name) for name in self.backends})
        return self
