"""Groups of simulated ranks, one class for each backend that can be simulated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.collectives.ring.layout import MOST_IN_FLIGHT, Pace
from testbed.comm.options import CollectiveOptions
from testbed.faults.rule_table import NO_RULES, RuleTable
from testbed.plan import FabricPlan
from testbed.protocol.lanes import Lanes
from testbed.sim.faults import Faults
from testbed.sim.hardware import Hardware
from testbed.sim.ring import SimulatedRing
from testbed.sim.ring_over_tcp import RingOverTcp
from testbed.sim.tcp_connection import TcpModel
from testbed.sim.train_ring import TrainRing
from testbed.sim.wiring import Wiring

__all__ = ["SIMULATED", "Done", "SimulatedGroup", "Wanted", "make_group"]

SIMULATED = ("xdp-ring", "tcp-ring")
"""The backends that can be simulated."""

Values = Callable[[int], NDArray[np.float32]]

_TSO_BYTES = 65_536
_HEADERS = 52  # IPv4, TCP with timestamps


class Done(NamedTuple):
    """An all-reduce, or several of them.

    :param seconds: Simulated.
    :param sent: Shape (ranks, 3): frames, bytes and retransmissions of each rank.
    :param spent: Shape (ranks,): seconds that each rank's process has worked.
    """

    seconds: float
    sent: NDArray[np.int64]
    spent: NDArray[np.float64]


@dataclass(frozen=True)
class Wanted:
    """A group that is to be simulated.

    :param capacity: Elements of the largest tensor.
    :param table: Rules that the frames meet.
    :param number: Of the group, which is part of a frame's identity.
    """

    plan: FabricPlan
    hardware: Hardware
    options: CollectiveOptions
    capacity: int
    table: RuleTable = NO_RULES
    number: int = 0

    def segments(self, size: int) -> list[range]:
        """The elements of a tensor that xdp-ring reduces at a time, one range after the other."""
        lanes = Lanes.named(self.options.lanes, len(self.plan.hosts))
        return Pace.of(self.options).cut(size, lanes)

    @property
    def in_flight(self) -> int:
        """Most frames in flight: hosts that share CPUs share their queues, too."""
        shared = self.hardware.host.shared
        return MOST_IN_FLIGHT if shared else self.options.window * len(self.plan.hosts)


class SimulatedGroup(ABC):
    """All hosts of a fabric, connected. A group's time goes on from one all-reduce to the next."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted

    @abstractmethod
    def all_reduce(self, size: int, at: float, values: Values) -> Done:
        """Sum a tensor.

        :param size: Elements.
        :param values: Returns a rank's tensor, shape (size,), where frames carry it.
        :param at: When all ranks enter, seconds of the group's time; not before the last one ended.
        :raises CollectiveError: There was no progress for the timeout.
        """

    @property
    def faults(self) -> Faults | None:
        """What the rules have done; None: there are none."""
        return None


class _Trains(SimulatedGroup):
    """xdp-ring without faults: each all-reduce of a size takes the same time."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        self._known: dict[int, Done] = {}

    def all_reduce(self, size: int, at: float, values: Values) -> Done:
        done = [self._segment(len(each)) for each in self.wanted.segments(size)]
        return Done(
            sum(each.seconds for each in done),
            np.sum([each.sent for each in done], axis=0),
            np.sum([each.spent for each in done], axis=0),
        )

    def _segment(self, size: int) -> Done:
        if size not in self._known:
            wanted = self.wanted
            ring = TrainRing(
                wanted.plan,
                wanted.hardware,
                wanted.options,
                size,
                wanted.in_flight,
            )
            seconds = ring.run()
            sent, spent = _totals(ring.wiring, [0] * len(wanted.plan.hosts))
            self._known[size] = Done(seconds, sent, spent)
        return self._known[size]


class _Counted(SimulatedGroup):
    """A group that stays, and counts on."""

    ring: SimulatedRing | RingOverTcp

    @property
    def faults(self) -> Faults | None:
        return self.ring.faults if self.wanted.table.rules else None

    def all_reduce(self, size: int, at: float, values: Values) -> Done:
        if at > self.ring.env.now:
            self.ring.env.run(until=at)
        sent, spent = _totals(self.ring.wiring, self._again())
        seconds = self._reduce(size, values)
        now_sent, now_spent = _totals(self.ring.wiring, self._again())
        return Done(seconds, now_sent - sent, now_spent - spent)

    @abstractmethod
    def _reduce(self, size: int, values: Values) -> float:
        """Seconds of an all-reduce."""

    @abstractmethod
    def _again(self) -> list[int]:
        """Retransmissions so far, by rank."""


class _Frames(_Counted):
    """xdp-ring with faults: every frame and its payload by the reference model."""

    ring: SimulatedRing

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        self.ring = SimulatedRing(
            wanted.plan,
            wanted.hardware,
            wanted.options,
            wanted.capacity,
            wanted.table,
            wanted.number,
            wanted.in_flight,
        )

    def _reduce(self, size: int, values: Values) -> float:
        tensors = [values(rank) for rank in range(len(self.ring.hosts))]
        segments = self.wanted.segments(size)
        for each in segments:
            self.ring.all_reduce([tensor[each.start : each.stop] for tensor in tensors])
        return sum(self.ring.seconds[-len(segments) :])

    def _again(self) -> list[int]:
        return [host.rank.counters["resent"] for host in self.ring.hosts]


class _Tcp(_Counted):
    """tcp-ring."""

    ring: RingOverTcp

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        segments = max(1, _TSO_BYTES // (wanted.plan.mtu - _HEADERS))
        self.ring = RingOverTcp(
            wanted.plan,
            wanted.hardware,
            TcpModel(tso=segments),
            wanted.table,
            wanted.options.timeout,
        )

    def _reduce(self, size: int, values: Values) -> float:
        return self.ring.all_reduce(size)

    def _again(self) -> list[int]:
        return [each.sender.retransmissions for each in self.ring.connections]


def make_group(backend: str, wanted: Wanted) -> SimulatedGroup:
    """Connect a group.

    :param backend: One of `SIMULATED`.
    :raises SpecError: A tensor takes too many frames, or there are too many or too few ranks.
    """
    if backend == "tcp-ring":
        return _Tcp(wanted)
    return _Frames(wanted) if wanted.table.rules else _Trains(wanted)


def _totals(wiring: Wiring, again: list[int]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    sent = [
        (host.nic.frames, host.nic.sent_bytes, resent)
        for host, resent in zip(wiring.hosts, again, strict=True)
    ]
    return np.array(sent, np.int64), np.array([host.spent for host in wiring.hosts])
