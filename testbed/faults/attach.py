"""A switch worker's part in faults: it owns the programs of ``bpf/impair.bpf.c`` on the ports that
face hosts.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from testbed.core.closing import Closing
from testbed.datapath.switch import SwitchProgram, fill
from testbed.faults.delay_counters import DelayCounters
from testbed.faults.delay_line import DelayLine
from testbed.faults.log import Drain
from testbed.faults.rule_table import Action, RuleTable
from testbed.faults.rules import MAX_COPIES
from testbed.kernel import BpfObject, Map
from testbed.kernel.abi import dtype, lifted
from testbed.plan import MAX_HOSTS

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = [
    "LINK",
    "Counts",
    "Engine",
    "Hook",
    "attach",
    "blocked_map",
    "count",
    "detach",
    "set_limits",
]

Hook = Literal["xdp", "tc"]

#: ``struct fault_link``, a link's counters: ``passed`` at once; ``holding``, waiting for others to
#: pass; ``frames`` that had an identity; ``blocked`` and ``limited``, dropped before any rule;
#: ``lost``, records for which the log had no room; ``flows`` of frames other than the ring's;
#: ``unplaced``, frames or copies that could not be delayed or sent.
LINK: Final = lifted(dtype("fault_link"))

_DEVMAP = 14  # BPF_MAP_TYPE_DEVMAP
_LINKS = MAX_HOSTS * MAX_HOSTS


@dataclass(frozen=True)
class Counts:
    """The counts of an engine.

    :param links: Shape (32, 32), of :data:`LINK`, by sender and receiver.
    :param fired: Shape (rules, 32, 32), by rule, sender and receiver.
    :param delays: Of the delay line, where there is one.
    """

    links: NDArray[Any]
    fired: NDArray[np.uint64]
    delays: DelayCounters | None


class Engine(Closing):
    """The fault programs of one switch, attached from the constructor to :meth:`close`.

    :param hook: ``xdp``: in place of the switch's own program, which is restored at the end;
        ``tc``: before the bridge.
    :param flooding: The map that tells whether the switch has lost its forwarding table.
    :param log: File of the log's records.
    :param trace: Also log frames that met no rule.
    :raises KernelError: The kernel refused a program or its attachment.
    :raises FaultError: The delay line did not start.
    """

    def __init__(
        self,
        context: WorkerContext,
        table: RuleTable,
        hook: Hook,
        flooding: Map,
        log: Path,
        trace: bool,
    ) -> None:
        self._context, self._table = context, table
        self._line: DelayLine | None = None
        with ExitStack() as stack:
            sizes = {
                "quantiles": max(1, len(table.quantiles)),
                "fired": max(1, len(table.rules)) * _LINKS,
            }
            shared = (
                context.get(SwitchProgram).program.maps if hook == "xdp" else {"flooding": flooding}
            )
            self._program = f"impair_{hook}"
            self._object = stack.enter_context(
                BpfObject("impair", max_entries=sizes, reuse=shared, programs=[self._program])
            )
            self._maps = self._object.maps
            self._fill(trace)
            if hook == "tc":
                fill(context, self._object)
            self._drain = stack.enter_context(Drain(self._maps["records"], log))
            if table.holds(context.fabric_plan.mtu):
                self._line = stack.enter_context(
                    DelayLine(
                        context.fabric_plan.mtu,
                        self._maps["links"],
                        self._maps["wakeups"],
                        self._maps["flooding"],
                        list(self._ports().values()),
                    )
                )
                self._maps["entrance"].update(0, self._line.ifindex)
                self._maps[".bss"].update(0, self._line.ifindex)
            if hook == "xdp":
                self._fan_out()
            self._attachments = stack.enter_context(ExitStack())
            self._attach(hook)
            self._stack = stack.pop_all()

    def count(self) -> Counts:
        """Return the counts so far; the log's file has all records of what is counted.

        :raises FaultError: The delay line has died.
        :raises StorageError: The log cannot be written.
        """
        links = self._maps["links"].view(LINK)[:, 0].reshape(MAX_HOSTS, MAX_HOSTS).copy()
        fired = np.zeros((len(self._table.rules), MAX_HOSTS, MAX_HOSTS), np.uint64)
        for sender, receiver in np.argwhere(links["frames"]).tolist():
            for rule in range(len(self._table.rules)):
                values = self._maps["fired"].lookup(rule * _LINKS + sender * MAX_HOSTS + receiver)
                fired[rule, sender, receiver] = np.frombuffer(values, np.uint64).sum()
        self._drain.flush()
        return Counts(links, fired, self._line.counters() if self._line else None)

    @property
    def blocked(self) -> Map:
        """The map of blocked links: by sender, one bit per receiver."""
        return self._maps["blocked"]

    def set_limits(self, limits: Mapping[int, bytes]) -> None:
        """Replace all rate limits.

        :param limits: ``struct fault_limit`` at index 2 * rank for what a host sends, and 2 * rank
            + 1 for what it receives.
        """
        values = self._maps["limits"]
        for index in range(2 * MAX_HOSTS):
            values.update(index, limits.get(index, bytes(values.value_size)))

    def detach(self) -> None:
        """Let frames pass as if there were no faults, and drop those that are still delayed;
        counters and log stay.
        """
        self._attachments.close()
        if self._line:
            self._line.close()

    def close(self) -> None:
        """Detach and unload."""
        self._stack.close()

    def _fill(self, trace: bool) -> None:
        self._maps["rules"].update(0, self._table.pack(trace))
        for index, quantiles in enumerate(self._table.pack_quantiles()):
            self._maps["quantiles"].update(index, quantiles)
        for host in self._context.fabric_plan.hosts:
            self._maps["hosts"].update(bytes.fromhex(host.mac.replace(":", "")), host.rank)

    def _fan_out(self) -> None:
        """Make a devmap for each port and number of copies, which names the port once for each
        frame to send.

        Those of port 0 name all ports in this way, for a switch that floods.
        """
        wanted = sum(rule.count for rule in self._table.rules if rule.action is Action.DUPLICATE)
        ports = self._ports()
        targets = {0: list(ports.values()), **{port: [ifindex] for port, ifindex in ports.items()}}
        for port, indices in targets.items():
            for copies in range(1, min(wanted, MAX_COPIES) + 1):
                fan = Map.create("fan", _DEVMAP, 4, 4, (copies + 1) * len(indices))
                for index, ifindex in enumerate((copies + 1) * indices):
                    fan.update(index, ifindex)
                self._maps["fans"].update(port * (MAX_COPIES + 1) + copies, fan.fd)
                os.close(fan.fd)  # the outer map holds it now

    def _ports(self) -> dict[int, int]:
        """Index by port."""
        plan = self._context.switch
        return {port: socket.if_nametoindex(plan.ifname(port)) for port in plan.ports}

    def _attach(self, hook: Hook) -> None:
        plan, stack = self._context.switch, self._attachments
        for host in self._context.fabric_plan.hosts:
            if host.switch != plan.name:
                continue
            if hook == "xdp":
                attached = self._context.get(SwitchProgram)
                link = attached.links[host.port]
                link.update(self._object.programs[self._program])
                stack.callback(link.update, attached.program.programs["l2_switch"])
            else:
                ifindex = socket.if_nametoindex(plan.ifname(host.port))
                stack.enter_context(self._object.programs[self._program].attach_tc_ingress(ifindex))


def attach(
    context: WorkerContext, table: RuleTable, hook: Hook, flooding: int, log: Path, trace: bool
) -> None:
    """Worker call: attach the engine.

    :param flooding: Number of the switch's map ``flooding``.
    """
    shared = Map.open(flooding)
    try:
        context.keep(Engine(context, table, hook, shared, log, trace))
    finally:
        os.close(shared.fd)
    context.resources.callback(
        _close, context
    )  # copies: views of the engine's arrays would keep the maps' memory until the worker ends


def _close(context: WorkerContext) -> None:
    if engine := context.drop(Engine):
        engine.close()


def detach(context: WorkerContext) -> Counts:
    """Worker call: detach the engine, and return its counts."""
    engine = context.get(Engine)
    context.drop(Engine)
    with engine:
        engine.detach()
        return engine.count()


def count(context: WorkerContext) -> Counts:
    """Worker call: :meth:`Engine.count`."""
    return context.get(Engine).count()


def blocked_map(context: WorkerContext) -> int:
    """Worker call: the id of :attr:`Engine.blocked`, with which the controller opens it."""
    return context.get(Engine).blocked.number


def set_limits(context: WorkerContext, limits: Mapping[int, bytes]) -> None:
    """Worker call: :meth:`Engine.set_limits`."""
    context.get(Engine).set_limits(limits)
