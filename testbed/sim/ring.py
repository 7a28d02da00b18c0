"""The ring all-reduce on a simulated fabric, frame by frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import simpy
from numpy.typing import NDArray

from testbed.collectives.ring.layout import (
    MOST_IN_FLIGHT,
    Layout,
    Pace,
    chunk_bytes_for,
    nack_holdoff_for,
    retransmit_slots_for,
    window_for,
)
from testbed.comm.options import CollectiveOptions
from testbed.core.errors import CollectiveError, SpecError
from testbed.faults.identity import Packet
from testbed.faults.rule_table import NO_RULES, RuleTable
from testbed.plan import FabricPlan
from testbed.protocol.lanes import Lanes
from testbed.protocol.ring.memory import Config
from testbed.protocol.scale import ScaleGuess
from testbed.protocol.sequence import seq_after
from testbed.protocol.wire import Endpoint
from testbed.sim.faults import Faults
from testbed.sim.hardware import Hardware
from testbed.sim.ring_host import RingHost, Steps
from testbed.sim.ring_tensor import RingTensor
from testbed.sim.wiring import Message, Wiring

__all__ = ["MAX_RANKS", "SimulatedRing"]

MAX_RANKS = 255
"""A status counts ranks in one byte, and frames name a rank with one."""

_COOKIE = 0x5EED_C0DE_F00D_D00D
_FIRST = 1

Values = NDArray[np.float32]


@dataclass
class SimulatedRing:
    """A group of all hosts of a fabric, after they have met.

    :param plan: Its hosts are the ranks.
    :param options: As for the ring in the kernel.
    :param capacity: Elements of the largest tensor.
    :param table: Rules that the frames meet; None: there are none.
    :param group: Number of the group, which is part of a frame's identity.
    :param trace: Also log frames that met no rule.
    :param in_flight: Most frames in flight.
    :raises SpecError: There are fewer ranks than a ring has, or more than frames can name.
    """

    plan: FabricPlan
    hardware: Hardware
    options: CollectiveOptions = field(default_factory=CollectiveOptions)
    capacity: int = 1 << 20
    table: RuleTable = NO_RULES
    group: int = 0
    in_flight: int = MOST_IN_FLIGHT
    trace: bool = False

    def __post_init__(self) -> None:
        ranks = len(self.plan.hosts)
        if not 2 <= ranks <= MAX_RANKS:
            raise SpecError(f"hosts: {ranks}: must be 2 to {MAX_RANKS} where frames are simulated")
        self.env = simpy.Environment()
        self.wiring = Wiring(self.env, self.plan, self.hardware)
        self.faults = Faults(self.wiring, self.table, _identify, self.trace)
        self.seconds: list[float] = []
        self._lanes = Lanes.named(self.options.lanes, ranks)
        self._chunk_bytes = chunk_bytes_for(self.plan.mtu, self.options.chunk)
        self._seq = _FIRST
        self._guesses: dict[int, ScaleGuess] = {}
        window = window_for(
            self.options.window, ranks, self._chunk_bytes, self.in_flight, self.options.tokens
        )
        reproducible = self.options.reproducible
        peers = tuple(Endpoint(host.mac, host.ip) for host in self.plan.hosts)
        chunks = self._tensor(self.capacity, self.capacity).layout.total
        self.hosts = [
            RingHost(
                self.wiring,
                Config(
                    _COOKIE,
                    rank,
                    ranks,
                    self.group,
                    self._chunk_bytes,
                    chunks,
                    peers,
                    self.options.recovery == "upstream",
                    self.options.reorder_threshold,
                    retransmit_slots_for(window, ranks, chunks if reproducible else 0),
                ),
                window,
                _FIRST,
                nack_holdoff_for(reproducible),
                self.options.timeout,
                reproducible,
            )
            for rank in range(ranks)
        ]

    def all_reduce(self, tensors: Sequence[Values]) -> list[Values]:
        """Sum finite tensors over ranks; the time is added to `seconds`.

        :param tensors: One for each rank, shape (n,).
        :returns: Each rank's sums, shape (n,).
        :raises CollectiveError: There was no progress for the timeout, or the ranks disagree about
            the scale; the text says which rank waits for what.
        """
        size = tensors[0].size
        guess = self._guesses.setdefault(size, ScaleGuess())
        absmax = [float(np.abs(tensor).max(initial=0.0)) for tensor in tensors]
        begin = self.env.now
        if guess.exponent is None:
            nothing = [tensor[:0] for tensor in tensors]
            guess.learn(self._pass(self._tensor(size, 0), nothing, 0, absmax)[1])
        while True:
            exponent = guess.exponent
            assert exponent is not None
            sums, seen = self._pass(self._tensor(size, size), tensors, exponent, absmax)
            held = guess.holds(seen)
            guess.learn(seen)
            if held:
                self.seconds.append(self.env.now - begin)
                return sums

    @property
    def events(self) -> int:
        """Events so far: a frame takes one for each link, and one for its CPU."""
        hops = sum(line.frames for line in self.wiring.transmitters)
        return hops + sum(host.rank.counters["sent"] for host in self.hosts)

    def counters(self) -> dict[str, int]:
        """Counters of all ranks, added up."""
        names = self.hosts[0].rank.counters
        return {name: sum(host.rank.counters[name] for host in self.hosts) for name in names}

    def _tensor(self, size: int, count: int) -> RingTensor:
        pace = Pace(self.options.tokens, self.options.slice)
        layout = Layout.plan(size, self._lanes, self._chunk_bytes, count, pace)
        return RingTensor(self._lanes, layout)

    def _pass(
        self, tensor: RingTensor, values: Sequence[Values], exponent: int, absmax: Sequence[float]
    ) -> tuple[list[Values], int]:
        """One collective: the sums, and the exponent of the largest magnitude."""
        self._seq = seq_after(self._seq)
        inputs = [
            tensor.pack(each, rank, exponent, absmax[rank]) for rank, each in enumerate(values)
        ]
        self._run(
            [
                host.reduce(self._seq, mine, tensor.layout)
                for host, mine in zip(self.hosts, inputs, strict=True)
            ]
        )
        found = [tensor.unpack(host.results(), exponent) for host in self.hosts]
        if len({seen for _, seen in found}) > 1:
            raise CollectiveError(f"all-reduce {self._seq}: the ranks disagree about the scale")
        return [sums for sums, _ in found], found[0][1]

    def _run(self, steps: Sequence[Steps]) -> None:
        done = [self.env.process(each) for each in steps]
        try:
            self.env.run(self.env.all_of(done))
        except CollectiveError as error:
            others = [
                host.waits for host in self.hosts if host.waits and host.waits not in str(error)
            ]
            raise CollectiveError(
                "; ".join([f"all-reduce {self._seq}: {error}", *others])
            ) from None


def _identify(message: Message) -> Packet | None:
    frame = message.content
    if frame is None:
        return None
    header = frame.header
    return Packet(
        message.sender,
        message.receiver,
        header.kind,
        header.group,
        header.seq,
        header.chunk,
        header.hop,
        header.attempt,
    )
