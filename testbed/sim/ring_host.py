"""A host of the ring: `testbed.protocol.ring` decides, and this says how long it takes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy

from testbed.collectives.ring.layout import Layout
from testbed.core.errors import CollectiveError
from testbed.protocol.ring.memory import Config
from testbed.protocol.ring.process import Process
from testbed.protocol.ring.quiet import Quiet
from testbed.protocol.ring.rank import Rank
from testbed.protocol.wire import Frame, Words, offset_of
from testbed.sim.wiring import Message, Wiring, after

__all__ = ["RingHost"]

Steps = Generator[simpy.Event, Any, None]


class RingHost:
    """One rank, its process, and the host that runs them.

    :param seq: The sequence number in which the ranks have met.
    :param timeout: Simulated seconds without progress after which a collective fails.
    :param reproducible: Save all partial sums, as after a loss.
    """

    def __init__(
        self,
        wiring: Wiring,
        config: Config,
        window: int,
        seq: int,
        nack_holdoff_us: int,
        timeout: float,
        reproducible: bool = False,
    ) -> None:
        self.rank = Rank(config, seq=seq, verified=seq, nack_holdoff_us=nack_holdoff_us)
        self.process = Process(self.rank, window)
        self.host = wiring.hosts[config.rank]
        self.host.receive = self._arrive
        self._wiring = wiring
        self._env = wiring.env
        self._costs = wiring.hardware.host
        self._quiet = Quiet(self.process)
        self._timeout = timeout
        self._window = window
        self._reproducible = reproducible
        self._kicks = 0  # on their way through the doorbell
        self._woken: simpy.Event | None = None

    def reduce(self, seq: int, chunks: Words, layout: Layout) -> Steps:
        """One collective, a SimPy process. The results are in ``rank.results`` afterwards.

        :param chunks: This rank's input, shape (chunks, words of a chunk).
        :param layout: Of the tensor.
        :raises CollectiveError: There was no progress for the timeout.
        """
        total, length, block = layout.total, layout.length, layout.block
        self.process.window = min(self._window, layout.window or self._window)
        self.process.begin(seq, total, length, seq & 0xFFFF)
        if self._reproducible:
            self.rank.lossy = seq
        self._quiet = Quiet(self.process)
        for start in range(0, total, block):
            end = min(start + block, total)
            yield self._spend((end - start) * length * self._costs.prepare)
            for chunk in range(start, end):
                self.process.fill(chunk, chunks[chunk])
            self.process.publish(end)
            yield from self._kick()
        while True:
            yield from self._wait()
            yield self._spend(total * length * self._costs.prepare)
            if self.process.verify():
                return

    def results(self) -> Words:
        """Results of the collective, shape (chunks, words of a chunk)."""
        words = self.rank.tensors[self.rank.seq & 1].length // 8
        return np.array([result[:words] for result in self.rank.results[: self.process.total]])

    def _wait(self) -> Steps:
        process, rank = self.process, self.rank
        rank.wake_at = process.total
        self._quiet.begin(self._now_ns)
        progress, since = -1, self._env.now
        while not process.finished:
            if progress != (progress := sum(stream.progress for stream in rank.streams)):
                since = self._env.now
            elif self._env.now - since > self._timeout:
                raise CollectiveError(
                    f"no progress for {self._timeout:g} s of simulated time: {self.waits}"
                )
            left = self._quiet.look(self._now_ns)
            yield from self._kick()
            if process.finished:
                break
            self._woken = self._env.event()
            yield self._woken | self._env.timeout(max(left, 1) / 1e9)
            self._woken = None

    @property
    def waits(self) -> str | None:
        """What this rank waits for; None: it waits for nothing."""
        if self.process.finished:
            return None
        config = self.rank.config
        before, owner = (
            self._wiring.hosts[rank].name
            for rank in (config.before, self.rank.front % config.ranks)
        )
        return (
            f"rank {config.rank} ({self.host.name}) has {self.rank.stored} of"
            f" {self.process.total} chunks and waits for {before} to send chunk {self.rank.front}"
            f" of {owner}"
        )

    @property
    def _now_ns(self) -> int:
        return round(self._env.now * 1e9)

    @property
    def _now_us(self) -> int:
        return self._now_ns // 1000

    def _spend(self, seconds: float) -> simpy.Event:
        return self._env.timeout(self.host.spend(seconds))

    def _kick(self) -> Steps:
        """Kick the doorbell: the programs take all work requests."""
        requests = len(self.rank.sq) - self._kicks
        if requests <= 0:
            return
        self._kicks += requests
        yield self._spend(self._costs.syscall)
        for _ in range(requests):
            self._soon(self.rank.config.chunk_bytes, self._execute)

    def _execute(self) -> Frame | None:
        self._kicks -= 1
        return self.rank.on_wr(self.process.kick(), self._now_us)

    def _arrive(self, message: Message) -> None:
        frame = message.content
        if frame is not None:
            self._soon(frame.header.length, lambda: self.rank.on_frame(frame, self._now_us))

    def _soon(self, length: int, program: Callable[[], Frame | None]) -> None:
        """Run a program when its CPU is free, and send what it returns when it is done."""
        seconds = self.host.kernel.work(self._costs.frame + length * self._costs.byte)
        after(self._env, seconds, lambda: self._sent(program()))

    def _sent(self, frame: Frame | None) -> None:
        if frame is not None:
            header = frame.header
            length = offset_of(header.length) + header.length
            self._wiring.send(Message(header.sender, header.receiver, length, frame))
            if self.rank.nack_due:  # a copy comes back through the doorbell
                self._soon(0, lambda: self.rank.on_wr(frame, self._now_us))
        if self.rank.events:
            self.rank.events.clear()
            if self._woken is not None and not self._woken.triggered:
                self._woken.succeed()
