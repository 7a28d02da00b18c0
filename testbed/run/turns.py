"""A scenario on a fabric that is up: each trial trains one model a transport, and transports take turns."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from testbed.collectives.group import MAX_GROUP_ID, GroupSpec, make_groups
from testbed.fabric import Fabric
from testbed.gnn.graph import GraphData
from testbed.gnn.result import EpochResult
from testbed.results import Table
from testbed.run import measures
from testbed.run.faults import Faults, Turn
from testbed.run.progress import Display
from testbed.run.rank import close_rank
from testbed.spec.scenario import Scenario
from testbed.worker import Workers

__all__ = ["Stage", "Turns"]


@dataclass(frozen=True)
class Stage:
    """What a run works with.

    :param graph: Folder of the graph, which workers map.
    :param data: The graph.
    """

    scenario: Scenario
    fabric: Fabric
    workers: Workers
    graph: Path
    data: GraphData
    table: Table
    faults: Faults
    display: Display


class Turns(ABC):
    """What both kinds of training share.

    Who comes first moves on from round to round, so that a drift of the machine meets all transports alike. A transport is
    open in its own turns only: links of socket baselines carry none of the testbed's programs.

    :cvar modules: What workers import; torch takes seconds.
    :cvar epochs_a_turn: How long a turn lasts.
    :cvar steps: An epoch's.
    """

    modules: ClassVar[tuple[str, ...]] = ()
    epochs_a_turn: int = 1
    steps: int = 1

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.scenario, self.workers, self.table = stage.scenario, stage.workers, stage.table
        self.hosts = [host.name for host in stage.fabric.plan.hosts]
        self._groups = -1

    @abstractmethod
    def prepared(self, trial: int) -> AbstractContextManager[dict[str, list[str]]]:
        """Make each transport's model on all ranks; return its workers' names in rank order, by transport."""

    @abstractmethod
    def open(self, transport: str, names: list[str]) -> None:
        """Open a transport on all ranks, and let them meet."""

    @abstractmethod
    def train(self, transport: str, epoch: int, names: list[str]) -> list[EpochResult]:
        """Train for an epoch; return the ranks' results."""

    @abstractmethod
    def finish(self, trial: int, transport: str, names: list[str]) -> None:
        """Record what a transport's trained model is worth."""

    def all(self) -> None:
        """Run all trials."""
        for trial in range(self.scenario.scenario.trials):
            self.trial(trial)

    def trial(self, trial: int) -> None:
        """Train one model a transport from the same seed, some epochs with each in turn."""
        transports, epochs = self.scenario.transports, self.scenario.training.epochs
        with self.prepared(trial) as ranks:
            self.stage.display.start(transports, self.steps * epochs)
            for number, begin in enumerate(range(0, epochs, self.epochs_a_turn)):
                first = number % len(transports)
                for transport in (*transports[first:], *transports[:first]):
                    self._turn(Turn(trial, transport, begin), ranks[transport])
            for transport in transports:
                self.finish(trial, transport, ranks[transport])

    @contextmanager
    def opened(self, transport: str, names: list[str], faults: AbstractContextManager[None] | None = None) -> Iterator[None]:
        """Set the links to what the transport needs, put faults in force on them, and connect its ranks."""
        self.stage.fabric.set_datapath(self.scenario.needs(transport))
        with faults or nullcontext():
            self.open(transport, names)
            yield  # after an error the workers end, and close what they hold
            self.workers.call_all(close_rank, names)

    def groups(self, **terms: Any) -> tuple[GroupSpec, ...]:
        """Return a new group of all hosts, one copy a rank; no other that is open has its number."""
        self._groups = (self._groups + 1) % (MAX_GROUP_ID + 1)
        plan = self.stage.fabric.plan
        rendezvous = str(self.stage.fabric.directory)
        return make_groups(plan.hosts, group_id=self._groups, mtu=plan.mtu, rendezvous=rendezvous, **terms)

    def _turn(self, turn: Turn, names: list[str]) -> None:
        faults, end = self.stage.faults, min(turn.epoch + self.epochs_a_turn, self.scenario.training.epochs)
        with self.opened(turn.transport, names, faults.in_force(turn)), faults.happening(turn):
            for epoch in range(turn.epoch, end):
                self._epoch(turn.trial, turn.transport, epoch, names)

    def _epoch(self, trial: int, transport: str, epoch: int, names: list[str]) -> None:
        results = self.train(transport, epoch, names)
        measures.check_agreement(transport, results)
        measures.record_epoch(self.table, trial, transport, results)
        seconds = max(result.times["epoch_time"] for result in results)
        note = (
            f"loss {measures.mean_loss(results):.3f}, validation {measures.validation_accuracy(results):.1%}, {seconds:.2f} s"
        )
        epochs = self.scenario.training.epochs
        self.stage.display.epoch(transport, epoch + 1, epochs, (epoch + 1) * self.steps, note)
