"""Hosts and switches joined as a plan says, and how frames travel between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import simpy

from testbed.core.errors import SpecError
from testbed.plan import FabricPlan
from testbed.sim.hardware import Hardware
from testbed.sim.stations import Buffer, Cpu, Train, Transmitter

__all__ = ["Host", "Message", "Wiring", "after", "ranks_of"]


@dataclass(slots=True)
class Message:
    """A frame under way.

    :param sender: Rank of the host that sent it.
    :param length: Bytes from the Ethernet header on.
    :param content: What the receiver gets.
    """

    sender: int
    receiver: int
    length: int
    content: Any


class Host:
    """One host: its CPUs, and who takes what arrives."""

    def __init__(self, rank: int, name: str, kernel: Cpu, user: Cpu, nic: Transmitter) -> None:
        self.rank = rank
        self.name = name
        #: Runs the programs, or the network stack.
        self.kernel = kernel
        #: Runs the process.
        self.user = user
        #: The link towards the switch.
        self.nic = nic
        self.receive: Callable[[Message], None] | None = None
        #: Seconds that the process has worked; its CPU may be shared.
        self.spent = 0.0

    def spend(self, seconds: float) -> float:
        """Queue some work of the process; return how long from now until it is done."""
        self.spent += seconds
        return self.user.work(seconds)


#: What becomes of a frame at the switch port of its sender: copies, each with its delay in seconds.
Fate = Callable[[Message, Callable[[Message, float], None]], None]


class Wiring:
    """The fabric of a plan.

    :ivar hosts: By rank.
    :ivar transmitters: All links, one for each direction.
    :ivar fate: Called for each frame where its sender is attached, with what passes it on after a
        delay; None: all frames pass.
    """

    def __init__(self, env: simpy.Environment, plan: FabricPlan, hardware: Hardware) -> None:
        self.env = env
        self.plan = plan
        self.hardware = hardware
        self.fate: Fate | None = None
        buffers = {switch.name: Buffer(hardware.switch.buffer) for switch in plan.switches}
        bounded = hardware.switch.buffer < float("inf")
        self._out: dict[tuple[str, int], tuple[Transmitter, str]] = {}
        for link in plan.links:
            for end, port, far in ((link.a, link.a_port, link.b), (link.b, link.b_port, link.a)):
                buffer = buffers.get(end) if bounded else None
                line = Transmitter(env, hardware.link, f"{end}->{far}", buffer)
                self._out[end, port] = line, far
        self.transmitters = [line for line, _ in self._out.values()]
        self._forwarding = {switch.name: switch.forwarding for switch in plan.switches}
        costs = hardware.host
        names = [f"CPU {number}" for number in range(costs.cores)] if costs.shared else []
        pool = [Cpu(env, costs.wakeup, name) for name in names]
        self.cpus: list[Cpu] = list(pool)
        self.hosts = [self._host(host.rank, host.name, pool) for host in plan.hosts]
        self._names = {host.name: host for host in self.hosts}
        self._switch = [host.switch for host in plan.hosts]
        self._macs = [host.mac for host in plan.hosts]
        self._paths: dict[tuple[int, int], tuple[Transmitter, ...]] = {}

    def _host(self, rank: int, name: str, pool: list[Cpu]) -> Host:
        costs = self.hardware.host
        names = (f"{name} programs", f"{name} process") if costs.cores > 1 else (name,)
        own = pool or [Cpu(self.env, costs.wakeup, each) for each in names]
        self.cpus += [] if pool else own
        if pool:
            kernel = user = own[rank % len(own)]
        else:
            kernel, user = own[0], own[-1]
        return Host(rank, name, kernel, user, self._out[name, 0][0])

    def path(self, sender: int, receiver: int) -> tuple[Transmitter, ...]:
        """The links that a frame takes, from its sender's on."""
        found = self._paths.get((sender, receiver))
        if found is None:
            name, mac = self.hosts[receiver].name, self._macs[receiver]
            links = [self.hosts[sender].nic]
            node = self._switch[sender]
            while node != name:
                line, node = self._out[node, self._forwarding[node][mac]]
                links.append(line)
            found = self._paths[sender, receiver] = tuple(links)
        return found

    def send(self, message: Message) -> None:
        """A host's frame is given to its link."""
        self._hop(message, self.path(message.sender, message.receiver), 0)

    def carry(self, train: Train, sender: int, receiver: int) -> None:
        """Move a train from host to host: it becomes the one that arrives."""
        delay = self.hardware.switch.delay
        links = self.path(sender, receiver)
        links[0].carry(train)
        for line in links[1:]:
            train.head += delay
            train.tail += delay
            line.carry(train)

    def _hop(self, message: Message, path: tuple[Transmitter, ...], index: int) -> None:
        seconds = path[index].send(message.length)
        if seconds is None:
            return
        if index + 1 < len(path):
            after(
                self.env,
                seconds + self.hardware.switch.delay,
                lambda: self._switched(message, path, index + 1),
            )
        else:
            after(self.env, seconds, lambda: self._arrive(message))

    def _switched(self, message: Message, path: tuple[Transmitter, ...], index: int) -> None:
        if index > 1 or self.fate is None:
            self._hop(message, path, index)
            return

        def go_on(copy: Message, delay: float) -> None:
            onward = self.path(copy.sender, copy.receiver)
            if delay > 0:
                after(self.env, delay, lambda: self._hop(copy, onward, 1))
            else:
                self._hop(copy, onward, 1)

        self.fate(message, go_on)

    def _arrive(self, message: Message) -> None:
        receive = self.hosts[message.receiver].receive
        if receive is not None:
            receive(message)


def ranks_of(plan: FabricPlan) -> int:
    """Ranks of an all-reduce in which all hosts take part.

    :raises SpecError: There are fewer than two.
    """
    ranks = len(plan.hosts)
    if ranks < 2:
        raise SpecError(f"hosts: {ranks}: must be at least 2 for an all-reduce")
    return ranks


def after(env: simpy.Environment, delay: float, action: Callable[[], None]) -> None:
    """Call something after ``delay`` seconds of simulated time."""
    event = env.timeout(delay)
    event.callbacks.append(lambda _: action())
