"""What a workload is: its tables in a scenario, what it does in a run, and what a report calls
things.
"""

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

__all__ = ["Report", "Session", "Stage", "Turn", "Workload"]

S = TypeVar("S", bound="Scenario")


@dataclass(frozen=True)
class Report:
    """The terms of a workload's report.

    :param compute: Parts of an epoch's time that are computing, in order; the last is what comes
        after communication.
    :param communication: Parts that are communication, in order.
    :param noun: What communication is.
    :param every: What its amounts are given for: what the metric ``steps`` counts.
    :param about: Returns what the head of a report says of a run, beside its fabric, each as a
        clause.
    :param captions: What figures say, by the figure's name.
    """

    compute: tuple[str, ...]
    communication: tuple[str, ...]
    noun: str
    every: str
    about: Callable[[Run], Sequence[str]] = lambda run: ()
    captions: Mapping[str, str] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[str, ...]:
        """What an epoch's time is split into; the parts add up to it."""
        *before, last = self.compute
        return (*before, *self.communication, last, "other")


@dataclass(frozen=True)
class Workload:
    """A system that runs can measure. Importing it is cheap: heavy imports come with its session.

    :param table: Of a scenario file: it stands for the workload, and its key `backends` names what
        takes turns.
    :param scenario: The schema of its scenarios: a field `table`, a
        `testbed.workloads.scenario.SystemTable`, among others.
    :param backends: What `backends` are names of.
    :param session: ``module:class`` of its `Session`.
    :param report: What a report calls things.
    """

    table: str
    scenario: type[Scenario]
    backends: Registry[Any]
    session: str
    report: Report

    def entry(self, backend: str) -> Entry:
        """Return what a backend is."""
        found: Entry = self.backends[backend]
        return found

    def begin(self, scenario: Scenario) -> Session[Any]:
        """Return a session of a scenario."""
        made: Session[Any] = load(self.session)(scenario)
        return made


@dataclass(frozen=True)
class Turn:
    """When something happens: in an epoch of a trial, with a backend. Of a turn of several epochs,
    its first.
    """

    trial: int
    backend: str
    epoch: int


@dataclass
class Stage:
    """The fabric, workers and table of a session.

    :param table: Takes the measurements.
    :param say: Shows the user a line.
    :param step: Takes the number of steps that a backend has done in the trial.
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
    """The controller's side of one run. Methods are called in the order in which they stand here.

    For each trial, `ranks` is entered, backends take turns at `open` and `train`, and `finish` is
    called with each. Who comes first moves on from round to round, so that a drift of the machine
    meets all backends alike. A backend is open in its own turns only: links of socket baselines
    carry none of the testbed's programs.

    :cvar modules: What workers import before they are forked.
    :ivar steps: An epoch's, for what the user sees.
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
        """Read or make what all trials need, before there is a fabric; return what the manifest
        says of it.

        :param say: Shows the user a line.
        :raises SpecError: It cannot be as asked.
        """
        return {}

    @abstractmethod
    def ranks(self, stage: Stage, trial: int) -> AbstractContextManager[dict[str, list[str]]]:
        """Make ready for a trial, on all ranks; yield the names of each backend's workers in rank
        order, by backend.
        """

    @abstractmethod
    def open(self, stage: Stage, backend: str, names: list[str]) -> None:
        """Open a backend on all ranks, and let them meet. What they open,
        `testbed.workloads.calls.closing` has closed.
        """

    @abstractmethod
    def train(self, stage: Stage, turn: Turn, names: list[str]) -> str:
        """Work for an epoch, and record it (`testbed.workloads.measures.record_times`); return what
        to tell the user of it.
        """

    def finish(self, stage: Stage, trial: int, backend: str, names: list[str]) -> None:
        """Record what only the end of a trial shows. The backend is closed; `opened` opens it
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
        """Set links to what a backend needs, put faults in force on them, open it, and close it at
        the end.
        """
        from testbed.workloads.calls import close_rank

        set_datapath(stage.fabric, self.scenario.needs(backend))
        with faults or nullcontext():
            self.open(stage, backend, names)
            yield  # after an error the workers end, and close what they hold
            stage.workers.call_all(close_rank, names)
