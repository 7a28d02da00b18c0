"""The ring all-reduce without losses, in trains: frames that a rank launches together take one
event from host to host.

Without losses no rank decides anything: a chunk makes 2 (N-1) hops, and where it ends, its frame
becomes that rank's next chunk. So only times are computed, neither payloads nor headers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import simpy

from testbed.collectives.ring.layout import (
    MOST_IN_FLIGHT,
    Layout,
    Pace,
    chunk_bytes_for,
    window_for,
)
from testbed.comm.options import CollectiveOptions
from testbed.core.errors import SpecError
from testbed.plan import FabricPlan
from testbed.protocol.lanes import Lanes
from testbed.protocol.ring.memory import slots_of
from testbed.protocol.wire import MAX_CHUNKS, offset_of
from testbed.sim.hardware import Hardware
from testbed.sim.stations import Train
from testbed.sim.wiring import Wiring, after, ranks_of

__all__ = ["TrainRing"]


@dataclass(slots=True)
class _Voyage:
    """A train on its way around the ring.

    :param first: Its first chunk; the next one is as many further on as there are ranks.
    :param at: The rank where it is.
    :param hops: Hops that are left.
    """

    train: Train
    first: int
    at: int
    hops: int


@dataclass
class TrainRing:
    """A group of all hosts of a fabric.

    :param plan: Its hosts are the ranks.
    :param options: As for the ring in the kernel.
    :param size: Elements of the tensor.
    :param in_flight: Most frames in flight.
    :param train: Most frames of a train; 1: each frame takes its own events. Default: all that a
        rank launches at once, if that is all of its chunks; else a quarter of the window, because a
        train's last frame is not free before its first has been around.
    :ivar voyages: Hops of trains from host to host, all together.
    :raises SpecError: There are fewer than two ranks, or the tensor takes too many frames.
    """

    plan: FabricPlan
    hardware: Hardware
    options: CollectiveOptions = field(default_factory=CollectiveOptions)
    size: int = 1 << 20
    in_flight: int = MOST_IN_FLIGHT
    train: int | None = None

    def __post_init__(self) -> None:
        ranks = ranks_of(self.plan)
        self.env = simpy.Environment()
        self.wiring = Wiring(self.env, self.plan, self.hardware)
        chunk_bytes = chunk_bytes_for(self.plan.mtu, self.options.chunk)
        lanes = Lanes.named(self.options.lanes, ranks)
        pace = Pace(self.options.tokens, self.options.slice)
        self.layout = Layout.plan(self.size, lanes, chunk_bytes, pace=pace)
        window = window_for(
            self.options.window, ranks, chunk_bytes, self.in_flight, self.options.tokens
        )
        self.window = min(window, self.layout.window or window)
        if self.layout.total > MAX_CHUNKS:
            raise SpecError(
                f"size: {4 * self.size} bytes: must be at most what {MAX_CHUNKS} frames carry, of"
                f" {self.layout.length} bytes each; this takes {self.layout.total}"
            )
        self.voyages = 0
        self._ranks = ranks
        self._length = offset_of(self.layout.length) + self.layout.length
        costs = self.hardware.host
        self._service = costs.frame + self.layout.length * costs.byte
        self._slots = [slots_of(rank, ranks, self.layout.total) for rank in range(ranks)]
        once = max(self._slots) <= self.window
        self._train = self.train or (self.window if once else max(1, self.window // 4))
        self._next = [0] * ranks
        self._last = [0.0] * ranks
        self._ready: list[list[float]] = []

    @property
    def events(self) -> int:
        """Events so far: a train's way from host to host."""
        return self.voyages

    def run(self) -> float:
        """One all-reduce, whose scale is known: simulated seconds."""
        for rank in range(self._ranks):
            self._prepare(rank)
        self.env.run()
        costs = self.hardware.host
        finish = self.layout.total * self.layout.length * costs.prepare
        for host in self.wiring.hosts:
            host.spent += finish
        return max(
            max(last, self.wiring.hosts[rank].user.free) + costs.wakeup + finish
            for rank, last in enumerate(self._last)
        )

    def _prepare(self, rank: int) -> None:
        """The process quantizes block by block, and launches the first chunks with the first."""
        costs, layout, host = self.hardware.host, self.layout, self.wiring.hosts[rank]
        ready = []
        for start in range(0, layout.total, layout.block):
            chunks = min(layout.block, layout.total - start)
            host.spend(chunks * layout.length * costs.prepare)
            ready.append(self.env.now + host.spend(costs.syscall))
        self._ready.append(ready)
        left = min(self.window, self._slots[rank])
        while left:
            frames = min(left, self._train)
            left -= frames
            voyage = self._launch(rank, Train(frames, self._length, 0.0, 0.0))
            if voyage is not None:
                self._kick(voyage)

    def _launch(self, rank: int, train: Train) -> _Voyage | None:
        """Frames become the rank's next chunks, as many as there are."""
        slot = self._next[rank]
        train.frames = min(train.frames, self._slots[rank] - slot)
        if train.frames <= 0:
            return None
        self._next[rank] = slot + train.frames
        voyage = _Voyage(train, rank + self._ranks * slot, rank, 2 * (self._ranks - 1))
        self._wait(voyage)
        return voyage

    def _wait(self, voyage: _Voyage) -> None:
        """Until the rank's input is ready."""
        train, ready, block = voyage.train, self._ready[voyage.at], self.layout.block
        last = voyage.first + (train.frames - 1) * self._ranks
        train.head = max(train.head, ready[voyage.first // block])
        train.tail = max(train.tail, ready[last // block])

    def _kick(self, voyage: _Voyage) -> None:
        """A launch by the process: the programs of the doorbell make the frames."""

        def begin() -> None:
            self.wiring.hosts[voyage.at].kernel.carry(voyage.train, self._service)
            self._go(voyage)

        after(self.env, voyage.train.head - self.env.now, begin)

    def _go(self, voyage: _Voyage) -> None:
        to = (voyage.at + 1) % self._ranks
        self.wiring.carry(voyage.train, voyage.at, to)
        voyage.at = to
        voyage.hops -= 1
        self.voyages += 1
        after(self.env, voyage.train.head - self.env.now, lambda: self._arrive(voyage))

    def _arrive(self, voyage: _Voyage) -> None:
        at, train = voyage.at, voyage.train
        if voyage.hops >= self._ranks - 1:
            self._wait(voyage)
        self.wiring.hosts[at].kernel.carry(train, self._service)
        if voyage.hops < self._ranks:
            self._last[at] = max(self._last[at], train.tail)
        following = voyage if voyage.hops else self._launch(at, train)
        if following is not None:
            self._go(following)
