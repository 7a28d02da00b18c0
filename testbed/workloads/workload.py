"""A workload: its tables in a scenario, its session in a run, and the terms of its report."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from testbed.core.registry import Registry, load
from testbed.datapath import set_datapath

if TYPE_CHECKING:
    from testbed.comm.entry import Entry
    from testbed.comm.group import GroupSpec
    from testbed.fabric import Fabric
    from testbed.results import Run, Table
    from testbed.worker import Workers
    from testbed.workloads.scenario import Scenario
    from testbed.workloads.simulated import Simulation

__all__ = ["OPTIMIZERS", "Report", "Session", "Stage", "Turn", "Workload"]

S = TypeVar("S", bound="Scenario")

OPTIMIZERS = "torch._dynamo"
"""What torch imports when a process makes its first optimizer; it takes a second."""


@dataclass(frozen=True)
class Report:
    """The terms of a workload's report.

    :param compute: Parts of an epoch's time that are computing, in order; the last one follows
        communication.
    :param communication: Parts that are communication, in order.
    :param noun: The word for communication.
    :param every: The unit to which its amounts refer: what the metric ``steps`` counts.
    :param about: Returns what the head of a report says about a run in addition to its fabric, as
        clauses.
    :param captions: Captions by the figure's name.
    :param overlapped: Whether collectives run beside computing: then the parts `communication` are
        what computing does not hide of them.
    """

    compute: tuple[str, ...]
    communication: tuple[str, ...]
    noun: str
    every: str
    about: Callable[[Run], Sequence[str]] = lambda run: ()
    captions: Mapping[str, str] = field(default_factory=dict)
    overlapped: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of an epoch's time, which add up to it."""
        *before, last = self.compute
        return (*before, *self.communication, last, "other")


@dataclass(frozen=True)
class Workload:
    """A system that runs can measure. Importing it is cheap: heavy imports belong in its session.

    :param table: The table of a scenario file that selects the workload; its key `backends` names
        the backends that take turns.
    :param scenario: The schema of its scenarios: a field `table`, a
        `testbed.workloads.scenario.SystemTable`, among others.
    :param backends: What `backends` are names of.
    :param session: ``module:class`` of its `Session`.
    :param report: The terms of its report.
    :param summary: One line for `testbed list`.
    :param simulation: ``module:class`` of its `testbed.workloads.simulated.Simulation`; None: it
        cannot be simulated.
    """

    table: str
    scenario: type[Scenario]
    backends: Registry[Any]
    session: str
    report: Report
    summary: str = ""
    simulation: str | None = None

    def entry(self, backend: str) -> Entry:
        """Return the properties of a backend."""
        found: Entry = self.backends[backend]
        return found

    def begin(self, scenario: Scenario) -> Session[Any]:
        """Return a session of a scenario."""
        made: Session[Any] = load(self.session)(scenario)
        return made

    def simulate(self, scenario: Scenario) -> Simulation[Any]:
        """Return what computes the times of a scenario that `check_simulated` accepts."""
        assert self.simulation is not None
        made: Simulation[Any] = load(self.simulation)(scenario)
        return made


@dataclass(frozen=True)
class Turn:
    """When something happens: in an epoch of a trial, with a backend. For a turn of several epochs,
    it is the first.
    """

    trial: int
    backend: str
    epoch: int


@dataclass
class Stage:
    """The fabric, workers and table of a session.

    :param table: Collects the measurements.
    :param say: Shows the user a line.
    :param step: Receives the number of steps that a backend has done in the trial.
    """

    fabric: Fabric
    workers: Workers
    table: Table
    say: Callable[[str], None]
    step: Callable[[str, int], None]
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def hosts(self) -> list[str]:
        """Names of the hosts, in rank order."""
        return [host.name for host in self.fabric.plan.hosts]

    def groups(self, **options: Any) -> tuple[GroupSpec, ...]:
        """Return a new group of all hosts, one spec per rank, with an unused number.

        :param options: Further fields of `GroupSpec`.
        """
        from testbed.comm.group import MAX_GROUP_ID, make_groups

        plan, number = self.fabric.plan, next(self._numbers) % (MAX_GROUP_ID + 1)
        rendezvous = str(self.fabric.directory)
        return make_groups(
            plan.hosts, group_id=number, mtu=plan.mtu, rendezvous=rendezvous, **options
        )


class Session(ABC, Generic[S]):
    """The controller's side of one run. Methods are called in the order of their definition.

    For each trial, `ranks` is entered, backends take turns at `open` and `train`, and `finish` is
    called with each. The order rotates from round to round, so that a drift in the machine's speed
    affects all backends alike. A backend is open only during its own turns, so that the links of
    socket baselines run none of the testbed's programs.

    :cvar modules: Modules to import before workers are forked.
    :ivar steps: Steps of an epoch, for the progress shown to the user.
    """

    modules: ClassVar[tuple[str, ...]] = ()
    steps: int = 1

    def __init__(self, scenario: S) -> None:
        self.scenario = scenario

    def check(self) -> None:
        """Refuse bad input before anything is read or built.

        :raises SpecError: The scenario asks for too much.
        """

    def prepare(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Read or create what all trials need, before the fabric is built; return facts about it
        for the manifest.

        :param say: Shows the user a line.
        :raises SpecError: It cannot be as asked.
        """
        return {}

    @abstractmethod
    def ranks(self, stage: Stage, trial: int) -> AbstractContextManager[dict[str, list[str]]]:
        """Prepare a trial on all ranks; yield the names of each backend's workers in rank order, by
        backend.
        """

    @abstractmethod
    def open(self, stage: Stage, backend: str, names: list[str]) -> None:
        """Open a backend on all ranks, and connect them. `testbed.workloads.calls.closing` closes
        what they open.
        """

    @abstractmethod
    def train(self, stage: Stage, turn: Turn, names: list[str]) -> str:
        """Work for an epoch, and record it (`testbed.workloads.measures.record_times`); return a
        line for the user.
        """

    def finish(self, stage: Stage, trial: int, backend: str, names: list[str]) -> None:
        """Record what is only known at the end of a trial. The backend is closed; `opened` opens it
        again.
        """

    @contextmanager
    def opened(
        self,
        stage: Stage,
        backend: str,
        names: list[str],
        faults: AbstractContextManager[None] | None = None,
    ) -> Iterator[None]:
        """Set the datapath that a backend needs, put faults in force, open the backend, and close
        it at the end.
        """
        from testbed.workloads.calls import close_rank

        set_datapath(stage.fabric, self.scenario.needs(backend))
        with faults or nullcontext():
            self.open(stage, backend, names)
            yield  # after an error the workers end, and close their resources
            stage.workers.call_all(close_rank, names)
