"""The baseline: the ring all-reduce over TCP connections, as ``testbed/native/tcp_ring.c`` does it.

A rank is a filter between two byte streams: whatever part of a block has arrived is added to and
sent on. Only times are computed.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import simpy

from testbed.core.errors import CollectiveError
from testbed.faults.rule_table import NO_RULES, RuleTable
from testbed.plan import FabricPlan
from testbed.sim.faults import Faults
from testbed.sim.hardware import Hardware
from testbed.sim.tcp_connection import Flows, TcpConnection, TcpModel
from testbed.sim.wiring import Wiring, ranks_of

__all__ = ["RingOverTcp"]

_FLOAT = 4


@dataclass
class RingOverTcp:
    """A group of all hosts of a fabric, connected in a ring.

    :param table: Rules that the frames meet; None: there are none.
    :param timeout: Simulated seconds without progress after which an all-reduce fails.
    :raises SpecError: There are fewer than two ranks, or too many for rules.
    """

    plan: FabricPlan
    hardware: Hardware
    model: TcpModel = field(default_factory=TcpModel)
    table: RuleTable = NO_RULES
    timeout: float = 10.0

    def __post_init__(self) -> None:
        ranks = ranks_of(self.plan)
        self.env = simpy.Environment()
        self.wiring = Wiring(self.env, self.plan, self.hardware)
        self.faults = Faults(self.wiring, self.table, Flows().identify)
        self.seconds: list[float] = []
        #: From each rank to the next.
        self.connections = [
            TcpConnection(self.wiring, rank, (rank + 1) % ranks, self.model)
            for rank in range(ranks)
        ]

    @property
    def retransmissions(self) -> int:
        """Segments that have been sent again."""
        return sum(each.sender.retransmissions for each in self.connections)

    def all_reduce(self, size: int) -> float:
        """Simulated seconds of an all-reduce; connections stay as the one before left them.

        :param size: Elements of the float32 tensor.
        :raises CollectiveError: There was no progress for the timeout; the text says which rank
            waits for what.
        """
        begin = self.env.now
        self._left = [0] * len(self.connections)
        done = [
            self.env.process(self._filter(rank, size * _FLOAT))
            for rank in range(len(self.connections))
        ]
        complete = self.env.all_of(done)
        self.env.process(self._watch(complete))
        self.env.run(complete)
        self.seconds.append(self.env.now - begin)
        return self.seconds[-1]

    def _watch(self, complete: simpy.Event) -> Generator[simpy.Event, Any, None]:
        """Fail if nothing arrives anywhere for the timeout: TCP itself never gives up here."""
        seen = -1
        while seen != (seen := sum(each.receiver.expected for each in self.connections)):
            yield complete | self.env.timeout(self.timeout)
            if complete.triggered:
                return
        names = [host.name for host in self.wiring.hosts]
        waits = [
            f"rank {rank} ({names[rank]}) waits for {left} segments from {names[rank - 1]}"
            for rank, left in enumerate(self._left)
            if left
        ]
        raise CollectiveError(
            f"no progress for {self.timeout:g} s of simulated time: {'; '.join(waits)}"
        )

    def _filter(self, rank: int, size: int) -> Generator[simpy.Event, Any, None]:
        """What one rank does: 2 (N-1) blocks go out, the first of its own."""
        ranks, costs = len(self.connections), self.hardware.host
        outgoing, incoming = self.connections[rank], self.connections[rank - 1]
        host = self.wiring.hosts[rank]
        block = -(-size // ranks)
        segments = max(1, -(-block // outgoing.mss))
        length = max(1, -(-block // segments))
        start, total = incoming.receiver.expected, 2 * (ranks - 1) * segments
        yield self.env.timeout(host.spend(costs.syscall + block * costs.byte))
        outgoing.write(segments * length, length)
        received, written = 0, segments
        while received < total:
            self._left[rank] = total - received
            yield incoming.until(start + received + 1)
            arrived = min(incoming.receiver.expected - start, total)
            spent = 2 * costs.syscall + (arrived - received) * length * costs.prepare
            yield self.env.timeout(host.spend(spent))
            received = arrived
            onward = min(segments + received, total) - written
            written += onward
            if onward:
                outgoing.write(onward * length, length)
        self._left[rank] = 0
