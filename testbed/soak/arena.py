"""A fabric on which scenarios are played one after the other, each with all its checks."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from testbed.collectives.group import make_groups
from testbed.collectives.registry import TRANSPORTS
from testbed.collectives.transport import Tensor
from testbed.errors import FaultError, WorkerDied
from testbed.fabric import Fabric
from testbed.faults import attach
from testbed.faults.events import Event, Kill, Partition
from testbed.faults.injector import Injector
from testbed.faults.partition import Blockade
from testbed.faults.shaper import limited
from testbed.faults.spec import events_of, limits_of, parse_fault, rules_of
from testbed.faults.timeline import Timeline
from testbed.soak import rank
from testbed.soak.findings import Finding
from testbed.soak.rank import Work
from testbed.soak.reference import RingReference, describe_difference, float_reference
from testbed.soak.report import Report
from testbed.soak.scenario import Scenario, Shape, make_input
from testbed.worker import Workers

__all__ = ["Arena"]

OPEN_DEADLINE = 60.0  # seconds for all ranks to open their groups
DEADLINE = 120.0  # seconds for a scenario's all-reduces: many times what they take, as others may keep the machine busy
GIVE_UP_DEADLINE = 20.0  # seconds for ranks to notice that one is silent: twice their timeout
CALM_TIMEOUT = 10.0  # of the groups that are formed after a failure


class Arena:
    """A fabric with workers, from entering the context until leaving it.

    :param run_id: The fabric's; a random one where not given.
    :ivar spent: A host has been killed: no more scenarios can be played here.
    """

    def __init__(self, shape: Shape, run_id: str | None = None) -> None:
        self.shape = shape
        self.spent = False
        self.fabric = Fabric(shape.plan(), run_id)
        self._groups = 0

    def __enter__(self) -> "Arena":
        with ExitStack() as stack:
            stack.enter_context(self.fabric)
            self._workers = stack.enter_context(Workers(self.fabric, modules=(rank.__name__, attach.__name__)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *details: Any) -> None:
        self._stack.__exit__(*details)

    def play(self, scenario: Scenario) -> Report:
        """Play a scenario.

        :raises Finding: A check has failed.
        :raises TestbedError: Something else has.
        """
        started = time.monotonic()
        report = Report(scenario)
        self.fabric.set_datapath(TRANSPORTS[scenario.transport].needs)
        faults = [parse_fault(fault) for fault in scenario.faults]
        events = events_of(faults)
        injector = Injector(self.fabric, rules_of(faults), scenario.fault_seed)
        with ExitStack() as stack:
            stack.enter_context(injector)
            blockade = stack.enter_context(Blockade(self.fabric)) if any(isinstance(e, Partition) for e in events) else None
            limits = stack.enter_context(limited(self.fabric, limits_of(faults), injector))
            phase = Phase(self, scenario)
            phase.open()
            timeline = Timeline(self.fabric, self._workers, events, blockade)
            with timeline:
                phase.reduce()
            report.fired.update(occurrence.event.action for occurrence in timeline.log())
            report.fired["limit"] = limits()
            phase.close(report)
            if scenario.ending != "whole":
                calm = self._regrouped(scenario, events)
                if calm.groups:
                    phase = Phase(self, calm)
                    phase.open()
                    phase.reduce()
                    phase.close(report)
        self._judge(injector, report)
        report.fired = Counter({action: count for action, count in report.fired.items() if count})
        report.seconds = time.monotonic() - started
        return report

    def next_group(self) -> int:
        """A group's id that no group of this fabric has had."""
        self._groups += 1
        return self._groups

    @property
    def workers(self) -> Workers:
        """The fabric's workers."""
        return self._workers

    def _regrouped(self, scenario: Scenario, events: Sequence[Event]) -> Scenario:
        """The same work by new groups of the hosts that are left."""
        dead = {self.fabric.plan.host(name).rank for event in events if isinstance(event, Kill) for name in event.names}
        self.spent = bool(dead)
        groups = [
            replace(group, members=tuple(member for member in group.members if member not in dead)) for group in scenario.groups
        ]
        return replace(
            scenario,
            groups=tuple(group for group in groups if len(group.members) > 1),
            ending="whole",
            timeout=CALM_TIMEOUT,
        )

    def _judge(self, injector: Injector, report: Report) -> None:
        try:
            report.records = injector.check_replay()
        except FaultError as error:
            raise Finding(f"the log of faults: {error}") from error
        for (rule, _, _), count in injector.counters().items():
            report.fired[injector.table.sources[rule].action] += count
        blocked = int(injector.links()["blocked"].sum())
        if blocked:
            report.fired["partition"] += blocked


@dataclass
class Phase:
    """A scenario's groups, from opening to closing."""

    arena: Arena
    scenario: Scenario

    def __post_init__(self) -> None:
        hosts = self.arena.fabric.plan.hosts
        #: Names of the hosts that are in any group.
        self.names = [hosts[member].name for group in self.scenario.groups for member in group.members]
        self.works: dict[str, Mapping[int, Work] | Exception] = {}

    def open(self) -> None:
        """Open all groups on all their hosts."""
        fabric, scenario = self.arena.fabric, self.scenario
        arguments: dict[str, dict[str, Any]] = {}
        for index, group in enumerate(scenario.groups):
            members = [fabric.plan.hosts[member] for member in group.members]
            specs = make_groups(
                members,
                group_id=self.arena.next_group(),
                lanes=group.lanes,
                mtu=fabric.plan.mtu,
                capacity=group.capacity,
                window=group.window,
                recovery=group.recovery,
                gap=group.gap,
                timeout=scenario.timeout,
                rendezvous=str(fabric.directory),
            )
            for host, spec in zip(members, specs, strict=True):
                arguments[host.name] = {"transport": scenario.transport, "specs": {index: spec}}
        self.arena.workers.call_all(rank.open_groups, arguments, timeout=OPEN_DEADLINE)

    def reduce(self) -> None:
        """Do all all-reduces, in bounded time."""
        deadline = DEADLINE if self.scenario.ending == "whole" else GIVE_UP_DEADLINE
        calls = {name: {"scenario": self.scenario} for name in self.names}
        self.works = self.arena.workers.call_all(rank.reduce_groups, calls, timeout=deadline, errors="return")

    def close(self, report: Report) -> None:
        """Check what has come, and close the groups.

        :raises Finding: A result is wrong, or a rank gave up that should not have.
        """
        for index in range(len(self.scenario.groups)):
            self._check_group(index, report)
        # Who is to be killed may have been before the end of its work, or since, or has outlived it.
        killed = self._victim if self.scenario.ending == "kill" else None
        alive = [name for name in self.names if name != killed and not isinstance(self.works[name], Exception)]
        sent = self.arena.workers.call_all(rank.count_frames, alive)
        report.sent = sum(sent.values(), report.sent)
        self.arena.workers.call_all(rank.close_groups, alive)

    def _check_group(self, index: int, report: Report) -> None:
        group, hosts = self.scenario.groups[index], self.arena.fabric.plan.hosts
        names = [hosts[member].name for member in group.members]
        expected = self._expected(index)
        for name in names:
            works = self.works[name]
            if isinstance(works, Exception):
                if self._victim not in names or not (isinstance(works, WorkerDied) and name == self._victim):
                    raise Finding(f"group {index}: {name}: {works}") from works
                continue
            work = works[index]
            for summand, digest in enumerate(work.digests):
                self._check_result(name, index, summand, digest, expected[summand])
            report.collectives += len(work.digests)
            if work.error is not None:
                report.given_up += 1
                if self._victim not in names:
                    raise Finding(f"group {index}: {name} gave up, but nothing lasting was in its way: {work.error}")
                if name != self._victim and f"({self._victim})" not in work.error:
                    raise Finding(f"group {index}: {name} gave up for another reason than {self._victim}: {work.error}")

    @property
    def _victim(self) -> str | None:
        """The host that is killed or cut off for good."""
        if self.scenario.ending == "whole":
            return None
        event = events_of([parse_fault(self.scenario.faults[-1])])[0]
        return event.names[0]

    def _expected(self, index: int) -> list[tuple[Tensor, float]]:
        """Result and bound of each of a group's all-reduces."""
        scenario, group = self.scenario, self.scenario.groups[index]
        ring = RingReference(group.lanes)
        expected = []
        for summand in range(len(group.summands)):
            inputs = [make_input(scenario, index, summand, rank) for rank in range(len(group.members))]
            expected.append((ring.sum(inputs), 0.0) if scenario.transport == "xdp-ring" else float_reference(inputs))
        return expected

    def _check_result(self, name: str, group: int, summand: int, digest: bytes, expected: tuple[Tensor, float]) -> None:
        value, bound = expected
        if not bound and digest == rank.digest(value):
            return
        found = self.arena.workers[name].call(rank.fetch, group=group, summand=summand)
        if difference := describe_difference(found, value, bound):
            raise Finding(f"group {group}, all-reduce {summand}: {name} has a wrong result: {difference}")
