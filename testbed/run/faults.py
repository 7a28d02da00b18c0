"""A scenario's faults: applies the same ones in each turn, and records them for ``results.parquet``
and ``faults.parquet``.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import TestbedError
from testbed.fabric import Fabric
from testbed.faults.events import Event, Kill, Partition
from testbed.faults.identity import kind_name
from testbed.faults.injector import Injector
from testbed.faults.netem import Netem
from testbed.faults.partition import Blockade
from testbed.faults.rules import PacketRule
from testbed.faults.shaper import limited
from testbed.faults.spec import events_of, format_fault, limits_of, meet_frames, rules_of
from testbed.faults.timeline import Timeline
from testbed.results import FaultLog, Table
from testbed.worker import Workers
from testbed.workloads.scenario import Scenario
from testbed.workloads.workload import Turn

__all__ = ["Faults", "frame_columns"]


class Faults:
    """The faults of a run.

    :param table: Collects the measurements.
    :param log: Collects a row for each rule that a frame met.
    """

    def __init__(
        self, scenario: Scenario, fabric: Fabric, workers: Workers, table: Table, log: FaultLog
    ) -> None:
        self._scenario, self._fabric, self._workers = scenario, fabric, workers
        self._table, self._log = table, log
        rules = rules_of(scenario.faults)
        self._rules = [rule for rule in rules if rule.backend == "engine"]
        self._emulated = [rule for rule in rules if rule.backend == "netem"]
        self._limits = limits_of(scenario.faults)
        self._events = events_of(scenario.faults)
        self._rule_numbers = [
            number for number, fault in enumerate(scenario.faults) if fault in self._rules
        ]
        self._event_numbers = [
            number for number, fault in enumerate(scenario.faults) if isinstance(fault, Event)
        ]
        self._blockade: Blockade | None = None
        self._started = 0.0

    @contextmanager
    def in_force(self, turn: Turn) -> Iterator[None]:
        """Put rules and limits in force on the current datapath, until the end of the context.

        Without faults, no program is attached. All turns of an epoch draw from the same seed, which
        differs between epochs.

        :raises FaultError: The kernel refused a queueing discipline; the text is the kernel's.
        """
        self._started = time.monotonic()
        with self._injected(turn):
            if not self._emulated:
                yield
                return
            with Netem(self._fabric, self._emulated) as netem:
                yield
                for receiver, counters in netem.counters().items():
                    self._add(
                        turn, "fault_frames_netem", counters.dropped, {"link": f"*->{receiver}"}
                    )

    @contextmanager
    def _injected(self, turn: Turn) -> Iterator[None]:
        """Put the engine's rules and limits in force."""
        if not meet_frames(self._scenario.faults):
            yield
            return
        scenario = self._scenario
        partitions = any(isinstance(event, Partition) for event in self._events)
        seed = (scenario.fault_seed + turn.trial * scenario.epochs + turn.epoch) % (1 << 64)
        injector = Injector(self._fabric, self._rules, seed)
        try:
            with ExitStack() as stack:
                stack.enter_context(injector)
                self._blockade = stack.enter_context(Blockade(self._fabric)) if partitions else None
                count = (
                    stack.enter_context(limited(self._fabric, self._limits, injector))
                    if self._limits
                    else None
                )
                yield
                self._add(turn, "fault_frames_limited", count() if count else 0)
        except BaseException as error:
            if isinstance(error, TestbedError):
                injector.explain(error)
            with suppress(TestbedError):  # the first error is more informative
                self._record(turn, injector)
            raise
        self._record(turn, injector)

    @contextmanager
    def happening(self, turn: Turn) -> Iterator[None]:
        """Run events: their times count from here, and the end of the context undoes those still in
        force.
        """
        timeline = Timeline(self._fabric, self._workers, self._events, self._blockade)
        try:
            with timeline:
                self._started = timeline.started
                yield
        except TestbedError as error:
            for entry in timeline.log():
                if isinstance(entry.event, Kill):
                    error.also(
                        f"the fault '{format_fault(entry.event)}' had killed"
                        f" {' and '.join(entry.event.names)}"
                    )
            raise
        finally:
            entries = timeline.log()
            happened = [entry.number for entry in entries]
            for number, event in enumerate(self._events):
                self._add(
                    turn,
                    "fault_events",
                    happened.count(number),
                    {"fault": format_fault(event)},
                    unit="events",
                )
            self._keep(
                turn,
                {
                    "fault": [self._event_numbers[entry.number] for entry in entries],
                    "action": [entry.event.action for entry in entries],
                    "time": [entry.begun - timeline.started for entry in entries],
                    "duration": [
                        None if entry.ended is None else entry.ended - entry.begun
                        for entry in entries
                    ],
                    "hosts": [",".join(entry.event.names) for entry in entries],
                },
            )

    def _record(self, turn: Turn, injector: Injector) -> None:
        names = [host.name for host in self._fabric.plan.hosts]
        for (rule, sender, receiver), count in injector.counters().items():
            labels = {
                "fault": format_fault(self._rules[rule]),
                "link": f"{names[sender]}->{names[receiver]}",
            }
            self._add(turn, "faults_fired", count, labels)
        links = injector.links()
        self._add(turn, "fault_frames", int(links["frames"].sum()))
        self._add(turn, "fault_frames_blocked", int(links["blocked"].sum()))
        self._add(turn, "fault_log_lost", injector.lost)
        found = frame_columns(injector.log(), self._rules, self._rule_numbers, names, self._started)
        self._keep(turn, found)

    def _add(
        self,
        turn: Turn,
        metric: str,
        value: float,
        labels: dict[str, str] | None = None,
        unit: str = "frames",
    ) -> None:
        self._table.add(
            turn.trial, turn.backend, metric, value, unit, epoch=turn.epoch, labels=labels
        )

    def _keep(self, turn: Turn, columns: dict[str, Any]) -> None:
        self._log.add(turn.trial, turn.backend, turn.epoch, columns)


def frame_columns(
    records: NDArray[Any],
    rules: Sequence[PacketRule],
    numbers: Sequence[int],
    names: Sequence[str],
    started: float = 0.0,
) -> dict[str, Any]:
    """Return a log of frames as columns of ``faults.parquet``.

    :param records: Shape (n,), of `testbed.faults.log.RECORD`.
    :param numbers: Index of each rule in the scenario.
    :param names: The hosts', by rank.
    :param started: When the turn began, seconds.
    """
    fields = ("group", "seq", "chunk", "hop", "attempt", "argument", "length")
    return {
        "fault": [numbers[rule] for rule in records["rule"].tolist()],
        "action": [rules[rule].action for rule in records["rule"].tolist()],
        "time": records["time"] * 1e-9 - started,
        "sender": [names[rank] for rank in records["sender"].tolist()],
        "receiver": [names[rank] for rank in records["receiver"].tolist()],
        "kind": list(map(kind_name, records["kind"].tolist())),
        **{key: records[key].astype(np.uint64) for key in fields},
    }
