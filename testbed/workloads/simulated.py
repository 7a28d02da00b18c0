"""What a workload does in the simulator, and which scenarios can be simulated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import create_model

from testbed.core.errors import SpecError
from testbed.core.tables import options
from testbed.faults.rules import Rule
from testbed.faults.spec import format_fault
from testbed.plan import MAX_HOSTS, LargeFabricOptions
from testbed.sim.calibration import hardware_of
from testbed.sim.group import SIMULATED, SimulatedGroup
from testbed.workloads.registry import WORKLOADS

if TYPE_CHECKING:
    from testbed.results import Table
    from testbed.workloads.measures import RankEpoch
    from testbed.workloads.scenario import Scenario
    from testbed.workloads.workload import Turn

__all__ = ["Simulation", "check_simulated", "simulated_model"]

S = TypeVar("S", bound="Scenario")


class Simulation(ABC, Generic[S]):
    """A workload whose ranks' times are computed.

    :ivar steps: Steps of an epoch, for the progress shown to the user.
    :ivar capacity: Elements of the largest tensor that is summed.
    """

    steps: int
    capacity: int

    def __init__(self, scenario: S) -> None:
        self.scenario = scenario

    def check(self) -> None:
        """Refuse bad input before anything is computed.

        :raises SpecError: The scenario asks for too much.
        """

    def facts(self) -> dict[str, Any]:
        """Return what the manifest says about the workload."""
        return {}

    @abstractmethod
    def epoch(self, group: SimulatedGroup, turn: Turn) -> Sequence[RankEpoch]:
        """Compute an epoch of all ranks, in rank order. Times begin at 0, where the group begins.

        :raises CollectiveError: A collective could not complete.
        """

    @abstractmethod
    def record(self, table: Table, turn: Turn, ranks: Sequence[RankEpoch]) -> str:
        """Record an epoch that `epoch` has computed, as that of `turn`; return a line for the
        user.
        """


@cache
def simulated_model(model: type[Scenario]) -> type[Scenario]:
    """Return a workload's schema for scenarios that are simulated: the fabric may be larger."""
    return create_model(
        model.__name__, __base__=model, fabric=(LargeFabricOptions, LargeFabricOptions())
    )


def check_simulated(scenario: Scenario) -> None:
    """Refuse what the simulator cannot do, before anything is computed.

    :raises SpecError: There is something; the text has a line for each.
    """
    if wrong := list(_unsupported(scenario)):
        raise SpecError("\n".join(wrong))
    hardware_of(scenario.simulation, "simulation.")
    scenario.fabric.plan()
    scenario.workload.simulate(scenario).check()


def _unsupported(scenario: Scenario) -> Iterator[str]:
    name, table = scenario.scenario.workload, scenario.workload.table
    if scenario.workload.simulation is None:
        known = [each for each in WORKLOADS if WORKLOADS[each].simulation]
        yield (
            f'scenario.engine = "simulation": workload {name} cannot be simulated: must be'
            f" emulation, or the workload {options(known)}"
        )
        return
    for backend in scenario.backends:
        if backend not in SIMULATED:
            yield f"{table}.backends: {backend} cannot be simulated: must be {options(SIMULATED)}"
    for index, fault in enumerate(scenario.faults):
        if not isinstance(fault, Rule) or fault.backend != "engine":
            yield (
                f"faults[{index}]: '{format_fault(fault)}' cannot be simulated: must be a rule on"
                " packets with backend = engine"
            )
    if scenario.faults and scenario.fabric.hosts > MAX_HOSTS:
        yield (
            f"fabric.hosts = {scenario.fabric.hosts}: must be at most {MAX_HOSTS} with faults, as"
            " many as a frame's identity tells apart"
        )
    if scenario.fabric.hosts < 2:
        yield f"fabric.hosts = {scenario.fabric.hosts}: must be at least 2 to be simulated"
    if scenario.telemetry.enabled:
        yield "telemetry.enabled = true: must be false, since nothing runs that could be sampled"
    if scenario.programs:
        yield "programs: must be left out, since there is no link to attach them to"
