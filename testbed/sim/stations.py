"""Stations that serve in order of arrival: a CPU, and a transmitter with its queue.

Service is neither interrupted nor reordered, so the time at which a job is done is known when it
arrives (Lindley's recursion), and a station takes no event of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import simpy

from testbed.sim.hardware import LinkModel

__all__ = ["Buffer", "Cpu", "Note", "Train", "Transmitter"]

#: Is told of each piece of work: its begin, its end, and frames; none: a frame was dropped.
Note = Callable[[float, float, int], None]

_TOLERANCE = 0.5
"""Bytes: a backlog follows from times, which are rounded."""
_INSTANT = 1e-12
"""Seconds: a CPU that has work again so soon has not been idle."""


@dataclass(slots=True)
class Train:
    """Frames of one length, one behind the other.

    :param head: When the first one is there, whole.
    :param tail: When the last one is.
    """

    frames: int
    length: int
    head: float
    tail: float


class Cpu:
    """A CPU that does one thing after the other.

    :param wakeup: Seconds that it takes to begin when it is idle.
    """

    __slots__ = ("busy", "env", "free", "name", "note", "wakeup")

    def __init__(self, env: simpy.Environment, wakeup: float = 0.0, name: str = "") -> None:
        self.env = env
        self.name = name
        self.note: Note | None = None
        self.wakeup = wakeup
        self.free = -1.0
        self.busy = 0.0

    def work(self, seconds: float) -> float:
        """Queue some work; return how long from now until it is done."""
        now: float = self.env.now
        begin = max(self.free, now) if self.free > now - _INSTANT else now + self.wakeup
        self.free = begin + seconds
        self.busy += seconds
        if self.note is not None:
            self.note(begin, self.free, 1)
        return self.free - now

    def carry(self, train: Train, seconds: float) -> None:
        """Work on each frame of a train as it arrives, ``seconds`` for each; the train becomes the
        one that leaves.
        """
        begin = max(self.free, train.head)
        if self.free <= train.head - _INSTANT:
            begin += self.wakeup
        gap = (train.tail - train.head) / (train.frames - 1) if train.frames > 1 else 0.0
        last = train.tail + (seconds + self.wakeup if gap > seconds + self.wakeup else seconds)
        train.head = begin + seconds
        train.tail = self.free = max(begin + train.frames * seconds, last)
        self.busy += train.frames * seconds
        if self.note is not None:
            self.note(begin, self.free, train.frames)


class Transmitter:
    """A link in one direction, with the queue in front of it.

    :ivar frames: Frames sent.
    :ivar sent_bytes: Their bytes, from the Ethernet header on.
    :ivar dropped: Frames that found no room.
    """

    __slots__ = (
        "_buffer",
        "busy",
        "dropped",
        "env",
        "frames",
        "free",
        "link",
        "name",
        "note",
        "sent_bytes",
    )

    def __init__(
        self, env: simpy.Environment, link: LinkModel, name: str = "", buffer: Buffer | None = None
    ) -> None:
        self.env = env
        self.link = link
        self.name = name
        self.free = self.busy = 0.0
        self.frames = self.sent_bytes = self.dropped = 0
        self.note: Note | None = None
        self._buffer = buffer
        if buffer is not None:
            buffer.transmitters.append(self)

    @property
    def backlog(self) -> float:
        """Bytes that wait or are being sent, as they occupy the link."""
        left = self.free - float(self.env.now)
        return left * self.link.rate / 8 if left > 0 else 0.0

    def send(self, length: int) -> float | None:
        """Queue a frame; return the seconds until it has arrived at the far end, or None: there was
        no room for it.
        """
        now: float = self.env.now
        if not self._has_room(length + self.link.overhead):
            self.dropped += 1
            if self.note is not None:
                self.note(now, now, 0)
            return None
        seconds = self.link.seconds(length)
        self.free = max(self.free, now) + seconds
        self.busy += seconds
        self.frames += 1
        self.sent_bytes += length
        if self.note is not None:
            self.note(self.free - seconds, self.free, 1)
        return self.free - now + self.link.delay

    def carry(self, train: Train) -> None:
        """Send a train's frames as they arrive; the train becomes the one at the far end. Nothing
        is dropped: trains are for traffic that its window bounds.
        """
        seconds = self.link.seconds(train.length)
        begin = max(self.free, train.head)
        train.head, train.tail = (
            begin + seconds,
            max(begin + train.frames * seconds, train.tail + seconds),
        )
        self.free = train.tail
        if self.note is not None:
            self.note(begin, self.free, train.frames)
        train.head += self.link.delay
        train.tail += self.link.delay
        self.busy += train.frames * seconds
        self.frames += train.frames
        self.sent_bytes += train.frames * train.length

    def _has_room(self, length: int) -> bool:
        room = length - _TOLERANCE
        if self.backlog + room > self.link.queue:
            return False
        return self._buffer is None or self._buffer.used + room <= self._buffer.size


class Buffer:
    """Memory that the queues of a switch share.

    :param size: Bytes.
    """

    def __init__(self, size: float) -> None:
        self.size = size
        self.transmitters: list[Transmitter] = []

    @property
    def used(self) -> float:
        """Bytes in all queues."""
        return sum(transmitter.backlog for transmitter in self.transmitters)
