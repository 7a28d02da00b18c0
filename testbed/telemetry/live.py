"""What the nodes of a running fabric do at the moment: shares of CPU time and rates."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from testbed.core.closing import Stacked
from testbed.core.errors import FabricError, KernelError
from testbed.fabric.runs import Run
from testbed.plan import FabricPlan
from testbed.telemetry.classify import UNCLASSIFIED, load_classes
from testbed.telemetry.options import TelemetryOptions
from testbed.telemetry.profile import MACHINE, Profile, combined
from testbed.telemetry.recorder import Recorder
from testbed.telemetry.sampler import Mode

__all__ = ["PARTS", "Counters", "Live", "NodeRates", "interfaces_of", "rates"]

PARTS = ("user", "program", "network", "kernel", UNCLASSIFIED)
"""What the classes of a node are added up to."""

_MODES: Final[tuple[Mode, ...]] = ("samples", "counts")
_TURN = 0.25  # seconds: attaching and detaching takes some milliseconds


class Counters(NamedTuple):
    """What the kernel has counted of a node, in all."""

    received_bytes: int = 0
    received: int = 0
    sent_bytes: int = 0
    sent: int = 0
    dropped: int = 0
    segments: int = 0
    retransmitted: int = 0

    @classmethod
    def of(cls, devices: str, snmp: str, interfaces: Sequence[str]) -> Counters:
        """From the text of ``/proc/<pid>/net/dev`` and ``/proc/<pid>/net/snmp``.

        :param interfaces: Those that are added up.
        """
        rows = []
        for line in devices.splitlines():
            name, colon, rest = line.partition(":")
            if colon and name.strip() in interfaces:
                rows.append([int(each) for each in rest.split()])
        tcp = [line.split()[1:] for line in snmp.splitlines() if line.startswith("Tcp:")]
        segments = dict(zip(*tcp, strict=True)) if len(tcp) == 2 else {}
        return cls(
            received_bytes=sum(row[0] for row in rows),
            received=sum(row[1] for row in rows),
            sent_bytes=sum(row[8] for row in rows),
            sent=sum(row[9] for row in rows),
            dropped=sum(row[3] + row[11] for row in rows),
            segments=int(segments.get("OutSegs", 0)),
            retransmitted=int(segments.get("RetransSegs", 0)),
        )


@dataclass(frozen=True)
class NodeRates:
    """A node, during a short time.

    :param cpu: Share of one CPU by class; empty where it was not measured.
    :param softirq: The part of it that is in softirq.
    :param parts: The same by `PARTS`.
    :param received: Frames per second, and ``_bits`` per second; so is `sent`.
    :param segments: TCP segments sent per second; `retransmitted`: those sent again.
    :param dropped: Frames per second that its devices have dropped.
    :param drops: Packets per second that the kernel has dropped, by reason.
    :param programs: Runs per second of the testbed's programs, by name.
    :param waits: Threads that wait, on average, by reason.
    """

    node: str
    cpu: Mapping[str, float] = field(default_factory=dict)
    softirq: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)
    received: float = 0.0
    received_bits: float = 0.0
    sent: float = 0.0
    sent_bits: float = 0.0
    segments: float = 0.0
    retransmitted: float = 0.0
    dropped: float = 0.0
    drops: Mapping[str, float] = field(default_factory=dict)
    programs: Mapping[str, float] = field(default_factory=dict)
    waits: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, rounded."""

        def plain(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {name: round(each, 4) for name, each in value.items()}
            return round(value, 4) if isinstance(value, float) else value

        return {name: plain(value) for name, value in vars(self).items()}


def rates(
    node: str, before: Counters, after: Counters, seconds: float, *profiles: Profile
) -> NodeRates:
    """What a node did between two readings.

    :param seconds: Between the readings.
    :param profiles: Samples and counts of parts of this time, if there are any.
    """
    change = {
        name: max(0, getattr(after, name) - getattr(before, name)) / seconds
        for name in Counters._fields
    }
    cpu, parts, softirq = dict[str, float](), dict[str, float](), 0.0
    found: dict[str, dict[str, float]] = {"drop": {}, "program": {}, "off_cpu": {}}
    classes = load_classes()
    for profile in profiles:
        for (soft, name), time_ in profile.cpu(node=node).items():
            share, part = time_ / profile.seconds, classes.part(name) or UNCLASSIFIED
            cpu[name] = cpu.get(name, 0.0) + share
            parts[part] = parts.get(part, 0.0) + share
            softirq += share * soft
        for each in profile.counts:
            if each.node == node and each.kind in found:
                amount = each.total if each.kind == "off_cpu" else each.number
                kind = found[each.kind]
                kind[each.detail] = kind.get(each.detail, 0.0) + amount / profile.seconds
    return NodeRates(
        node,
        cpu=_falling(cpu),
        softirq=softirq,
        parts={part: parts[part] for part in PARTS if part in parts},
        received=change["received"],
        received_bits=8 * change["received_bytes"],
        sent=change["sent"],
        sent_bits=8 * change["sent_bytes"],
        segments=change["segments"],
        retransmitted=change["retransmitted"],
        dropped=change["dropped"],
        drops=_falling(found["drop"]),
        programs=_falling(found["program"]),
        waits=_falling(found["off_cpu"]),
    )


def _falling(values: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(values.items(), key=lambda item: (-item[1], item[0])))


def interfaces_of(plan: FabricPlan) -> dict[str, list[str]]:
    """The ends of links, by node."""
    hosts = {host.name: [host.ifname] for host in plan.hosts}
    switches = {
        switch.name: [switch.ifname(port) for port in switch.ports] for switch in plan.switches
    }
    return {**hosts, **switches}


class Live(Stacked):
    """Looks at a run that is up; a context manager.

    Where BCC cannot compile, `missing` says why, and only what the kernel counts anyway is seen.

    :raises FabricError: The run is not up.
    """

    def __init__(self, run: Run, options: TelemetryOptions = TelemetryOptions()) -> None:
        self._run, self._options = run, options
        self._interfaces = interfaces_of(run.plan)
        self._recorder: Recorder | None = None
        #: Why CPU time is not measured; None: it is.
        self.missing: str | None = None

    def _enter(self, stack: ExitStack) -> None:
        self._nodes = self._run.nodes
        try:
            self._controller = os.pidfd_open(self._run.state.controller.pid)
        except ProcessLookupError:
            raise self._ended() from None
        stack.callback(os.close, self._controller)
        try:
            self._recorder = stack.enter_context(Recorder(self._run, self._options))
        except KernelError as error:
            self.missing = str(error)

    def look(self, seconds: float) -> list[NodeRates]:
        """Every node, and what is nobody's (``machine``), during a time.

        Samples are taken and events counted in turns, so that counting does not show in the
        samples, and in short ones, so that both see what the devices' counters see.

        :raises FabricError: The run has ended.
        """
        began, before = time.monotonic(), self._counters()
        taken: dict[Mode, list[Profile]] = {mode: [] for mode in _MODES}
        try:
            if self._recorder is None:
                self._wait(seconds)
            else:
                turns = max(1, round(seconds / 2 / _TURN))
                for mode in _MODES * turns:
                    with self._recorder.on(mode):
                        self._wait(seconds / 2 / turns)
                        taken[mode].append(self._recorder.take())
            after = self._counters()
        except (KernelError, OSError) as error:
            if not self._run.alive:
                raise self._ended() from error
            raise
        passed = time.monotonic() - began
        profiles = [whole for each in taken.values() if (whole := combined(each)) is not None]
        found = [rates(name, before[name], after[name], passed, *profiles) for name in self._nodes]
        if profiles:
            found.append(rates(MACHINE, Counters(), Counters(), passed, *profiles))
        return found

    def _wait(self, seconds: float) -> None:
        ready, _, _ = select.select([self._controller], [], [], seconds)
        if ready:
            raise self._ended()

    def _ended(self) -> FabricError:
        return FabricError(f"run {self._run.run_id!r} has ended")

    def _counters(self) -> dict[str, Counters]:
        found = {}
        for name, holder in self._nodes.items():
            directory = Path(f"/proc/{holder.pid}/net")
            devices, snmp = (
                (directory / each).read_text(encoding="utf-8") for each in ("dev", "snmp")
            )
            found[name] = Counters.of(devices, snmp, self._interfaces[name])
        return found
