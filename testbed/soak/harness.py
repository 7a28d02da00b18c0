"""A fabric on which scenarios run one after the other, each with all its checks."""

import itertools
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from testbed.collectives import registry as backends
from testbed.collectives.registry import BACKENDS
from testbed.comm.collective import Counters
from testbed.comm.group import MAX_GROUP_ID, GroupSpec, make_groups
from testbed.comm.options import GroupOptions
from testbed.core.closing import Stacked
from testbed.core.errors import FaultError, WorkerDied
from testbed.datapath import set_datapath
from testbed.exchange import registry as exchanges
from testbed.exchange.interface import ExchangeSpec
from testbed.exchange.options import ExchangeTerms
from testbed.fabric import Fabric
from testbed.faults import attach
from testbed.faults.events import Event, Kill, Partition
from testbed.faults.injector import Injector
from testbed.faults.partition import Blockade
from testbed.faults.shaper import limited
from testbed.faults.spec import events_of, limits_of, parse_fault, rules_of
from testbed.faults.timeline import Timeline
from testbed.plan import Datapath
from testbed.soak import calls, tap
from testbed.soak.calls import Spec, Work
from testbed.soak.failures import Finding, accused
from testbed.soak.holdings import Holdings, Object, outlived, trim
from testbed.soak.reference import Answer, answers, describe_difference, known_exponent
from testbed.soak.report import Report
from testbed.soak.scenario import Exchange, Group, Scenario, Shape, make_graph
from testbed.soak.strays import Strays
from testbed.worker import Workers

__all__ = ["Harness"]

OPENING = 90.0  # seconds for a host to open its next group
# seconds until a host has done its next collective: many times what it takes, as others may keep
# the machine busy
PATIENCE = 120.0
CALM_TIMEOUT = 10.0  # of the groups that are formed after a failure
GRACE = 10.0  # maximum number of seconds that closing takes beyond the timeout
MOST_RECORDS = (
    100_000  # of the faults' log are judged again, evenly spaced: some three seconds' work
)


AnyTask = TypeVar("AnyTask", Group, Exchange)


class Harness(Stacked):
    """A fabric with workers, from entering the context until leaving it.

    :param run_id: The fabric's; a random one where not given.
    :param backends: What workers import before they are forked: some take seconds, and as long
        again for each worker that imports them by itself.
    :ivar spent: A host has been killed: no more scenarios can be played here.
    """

    def __init__(
        self, shape: Shape, run_id: str | None = None, backends: Iterable[str] = ()
    ) -> None:
        self.shape = shape
        self.backends = frozenset(backends)
        self.spent = False
        self.fabric = Fabric(shape.plan(), run_id)
        self._groups = itertools.cycle(range(1, MAX_GROUP_ID + 1))
        self._baseline: dict[Datapath, dict[str, Holdings]] = {}
        self._loaded: set[str] = set()

    def _enter(self, stack: ExitStack) -> None:
        modules = (
            calls.__name__,
            tap.__name__,
            attach.__name__,
            *backends.modules_of(self.backends),
            *exchanges.modules_of(["pinch"]),
        )
        stack.enter_context(self.fabric)
        self._workers = stack.enter_context(Workers(self.fabric, modules=modules))
        self._workers.call_all(calls.prepare, list(self._workers))
        for switch in self.fabric.switches:
            # Made, and mapped, when it is first asked for, and then it lasts: before anything
            # is compared.
            self.fabric.flooding(switch).view()

    def play(self, scenario: Scenario) -> Report:
        """Play a scenario.

        :raises Finding: A check has failed.
        :raises TestbedError: Something else has.
        """
        started = time.monotonic()
        report = Report(scenario)
        objects = self._play(scenario, report)
        report.growth = self._grown(scenario, objects)
        report.fired = Counter({action: count for action, count in report.fired.items() if count})
        report.seconds = time.monotonic() - started
        return report

    def _play(self, scenario: Scenario, report: Report) -> frozenset[Object]:
        """Run a scenario until it holds no more resources.

        :returns: BPF objects that processes held when everything was open.
        """
        set_datapath(self.fabric, BACKENDS[scenario.backend].needs)
        faults = [parse_fault(fault) for fault in scenario.faults]
        events = events_of(faults)
        injector = Injector(self.fabric, rules_of(faults), scenario.fault_seed)
        with ExitStack() as stack:
            stack.enter_context(injector)
            blockade = (
                stack.enter_context(Blockade(self.fabric))
                if any(isinstance(e, Partition) for e in events)
                else None
            )
            limits = stack.enter_context(limited(self.fabric, limits_of(faults), injector))
            strays = None
            if scenario.strays:
                strays = stack.enter_context(
                    Strays(self.fabric, scenario.strays, scenario.fault_seed)
                )
            phase = Phase(self, scenario)
            phase.open()
            timeline = Timeline(self.fabric, self._workers, events, blockade)
            with timeline:
                phase.work()
            report.fired.update(occurrence.event.action for occurrence in timeline.log())
            report.fired["limit"] = limits()
            objects = self._objects()
            phase.close(report)
            if scenario.ending != "whole":
                calm = self._regrouped(scenario, events)
                if calm.tasks:
                    phase = Phase(self, calm)
                    phase.open()
                    phase.work()
                    objects |= self._objects()
                    phase.close(report)
            if strays:
                report.fired["strays"] = strays.sent
        self._judge(injector, report)
        return objects

    def next_group(self) -> int:
        """A group's id that no open group of this fabric has."""
        return next(self._groups)

    @property
    def workers(self) -> Workers:
        """The fabric's workers."""
        return self._workers

    def _regrouped(self, scenario: Scenario, events: Sequence[Event]) -> Scenario:
        """The same work by new groups of the hosts that are left."""
        dead = {
            self.fabric.plan.host(name).rank
            for event in events
            if isinstance(event, Kill)
            for name in event.names
        }
        self.spent = bool(dead)

        def left(tasks: Sequence[AnyTask]) -> tuple[AnyTask, ...]:
            found = [
                replace(
                    task, members=tuple(member for member in task.members if member not in dead)
                )
                for task in tasks
            ]
            return tuple(task for task in found if len(task.members) > 1)

        return replace(
            scenario,
            groups=left(scenario.groups),
            exchanges=left(scenario.exchanges),
            ending="whole",
            timeout=CALM_TIMEOUT,
        )

    def _judge(self, injector: Injector, report: Report) -> None:
        try:
            report.records = injector.check_replay(MOST_RECORDS)
        except FaultError as error:
            raise Finding(f"the log of faults: {error}") from error
        for (rule, _, _), count in injector.counters().items():
            report.fired[injector.table.sources[rule].action] += count
        blocked = int(injector.links()["blocked"].sum())
        if blocked:
            report.fired["partition"] += blocked

    @property
    def _alive(self) -> list[str]:
        """Names of the workers that have not been killed, of all nodes."""
        return [name for name, worker in self._workers.items() if not worker.may_die]

    def _holdings(self) -> dict[str, Holdings]:
        """What the processes hold that are there: the nodes' workers and this one, the
        controller.
        """
        found = {name: Holdings.of(self._workers[name].pid) for name in self._alive}
        return found | {"the controller": Holdings.of(os.getpid())}

    def _objects(self) -> frozenset[Object]:
        return frozenset().union(*(holdings.objects for holdings in self._holdings().values()))

    def _grown(self, scenario: Scenario, objects: frozenset[Object]) -> int:
        """Look for resources that a scenario should have released.

        A datapath keeps what it needs, and so does code that runs for the first time: scenarios are
        compared with the first one on the same datapath since then.

        :param objects: BPF objects that processes held in between.
        :returns: The largest growth of a process, bytes.
        :raises Finding: Something is held that was not held before.
        """
        self._workers.call_all(calls.trim, self._alive, timeout=GRACE)
        trim()
        now = self._holdings()
        if left := outlived(objects.difference(*(holdings.objects for holdings in now.values()))):
            what = ", ".join(f"{kind} {number}" for kind, number in left)
            raise Finding(f"nobody holds them, and they are still in the kernel: {what}")
        if not self._loaded.issuperset(scenario.systems):
            self._loaded.update(scenario.systems)
            self._baseline.clear()
        before = self._baseline.setdefault(BACKENDS[scenario.backend].needs, now)
        return max(holdings.growth(name, before[name]) for name, holdings in now.items())


@dataclass
class Phase:
    """A scenario's groups and exchanges, from opening to closing."""

    harness: Harness
    scenario: Scenario

    def __post_init__(self) -> None:
        hosts = self.harness.fabric.plan.hosts
        #: Names of the hosts that have anything to do.
        self.names = list(
            dict.fromkeys(
                hosts[member].name for task in self.scenario.tasks for member in task.members
            )
        )
        self.works: dict[str, Mapping[int, Work] | Exception] = {}

    def open(self) -> None:
        """Open everything that is opened only once, on all hosts; distribute what the others
        need.
        """
        scenario, hosts = self.scenario, self.harness.fabric.plan.hosts
        specs: dict[str, dict[int, list[Spec]]] = {name: {} for name in self.names}
        for index, task in enumerate(scenario.tasks):
            for round_ in [self._specs(index) for _ in range(task.rounds)]:
                for member, spec in zip(task.members, round_, strict=True):
                    specs[hosts[member].name].setdefault(index, []).append(spec)
        arguments = {name: {"scenario": scenario, "specs": own} for name, own in specs.items()}
        self.harness.workers.call_all(calls.open_tasks, arguments, patience=OPENING)

    def work(self) -> None:
        """Do all collectives, each in bounded time."""
        patience = PATIENCE if self.scenario.ending == "whole" else 2 * self.scenario.timeout
        arguments = {name: {"scenario": self.scenario} for name in self.names}
        self.works = self.harness.workers.call_all(
            calls.work, arguments, patience=patience, errors="return"
        )

    def close(self, report: Report) -> None:
        """Check the results, and close everything that is open, in bounded time.

        :raises Finding: A result is wrong, or a rank gave up that should not have, or names one
            that is not gone.
        """
        for index in range(len(self.scenario.tasks)):
            self._check(index, report)
        # The victim may have been killed during its work, or after it. If all was done before the
        # kill was due, it is alive, and closes as the others do.
        workers = self.harness.workers
        alive = [
            name
            for name in self.names
            if not (workers[name].may_die or isinstance(self.works[name], Exception))
        ]
        # One after the other: a rank may stay as long as that for a victim of each.
        timeout = len(self.scenario.tasks) * self.scenario.timeout + GRACE
        closed: dict[str, Counters] = self.harness.workers.call_all(
            calls.close_tasks, alive, timeout=timeout
        )
        report.sent = sum(closed.values(), report.sent)

    def _specs(self, index: int) -> Sequence[Spec]:
        """What each rank of a task has to know to open it."""
        scenario, fabric, task = self.scenario, self.harness.fabric, self.scenario.tasks[index]
        terms: dict[str, Any] = {
            name: getattr(task.terms, name) for name in GroupOptions.model_fields
        }
        terms |= {
            "group_id": self.harness.next_group(),
            "mtu": fabric.plan.mtu,
            "timeout": scenario.timeout,
            "rendezvous": str(fabric.directory),
        }
        members = [fabric.plan.hosts[member] for member in task.members]
        if isinstance(task, Group):
            return make_groups(members, capacity=task.capacity, **task.terms.model_dump() | terms)
        number = index - len(scenario.groups)
        exponent = known_exponent(scenario, number) if task.known else None
        common = {name: getattr(task.terms, name) for name in ExchangeTerms.model_fields}
        groups: Sequence[GroupSpec] = make_groups(members, **terms)
        halos = make_graph(scenario, number).halos_of(task.terms.halo)
        return [
            ExchangeSpec(group, halo, task.dim, task.aggregation, exponent=exponent, **common)
            for group, halo in zip(groups, halos, strict=True)
        ]

    def _check(self, index: int, report: Report) -> None:
        task, hosts, label = (
            self.scenario.tasks[index],
            self.harness.fabric.plan.hosts,
            self.scenario.label(index),
        )
        names = [hosts[member].name for member in task.members]
        expected = list(answers(self.scenario, index)) * task.rounds
        done = [len(expected)]
        for number, name in enumerate(names):
            works = self.works[name]
            if isinstance(works, Exception):
                if self._victim not in names or not (
                    isinstance(works, WorkerDied) and name == self._victim
                ):
                    raise Finding(f"{label}: {name}: {works}") from works
                continue
            found = works[index]
            for turn, digest in enumerate(found.digests):
                self._check_result(index, turn, name, digest, expected[turn][number])
            report.results += len(found.digests)
            report.sent += found.sent
            done.append(len(found.digests))
            if found.error is not None:
                report.given_up += 1
                self._check_error(f"{label}: {name}", name, names, found.error)
        report.collectives[task.kind] += min(done)

    def _check_error(self, who: str, name: str, names: Sequence[str], error: str) -> None:
        """Was there a reason to give up, and does the error name it?"""
        innocent = accused(error) - {self._victim}
        if self._victim not in names:
            blamed = f", and {', '.join(sorted(innocent))} not gone" if innocent else ""
            raise Finding(f"{who} gave up, but nothing lasting was in its way{blamed}: {error}")
        if name == self._victim:
            return  # cut off: to this host, the others seem silent
        if innocent:
            raise Finding(f"{who} accuses {', '.join(sorted(innocent))}, who is innocent: {error}")
        if f"({self._victim})" not in error:
            raise Finding(f"{who} gave up for another reason than {self._victim}: {error}")

    @property
    def _victim(self) -> str | None:
        """The host that is killed or cut off permanently."""
        if self.scenario.ending == "whole":
            return None
        event = events_of([parse_fault(self.scenario.faults[-1])])[0]
        return event.names[0]

    def _check_result(self, task: int, turn: int, name: str, digest: bytes, answer: Answer) -> None:
        if not answer.bound and digest == answer.digest:
            return
        found = self.harness.workers[name].call(calls.fetch, task=task, digest=digest)
        if difference := describe_difference(found, answer.value, answer.bound):
            raise Finding(
                f"{self.scenario.label(task)}, collective {turn}: {name} has a wrong result:"
                f" {difference}"
            )
