"""Strays: copies of frames that hosts have received, which are sent again later, from elsewhere,
and often damaged.

A fault rule applies to a frame once, where it is sent. A stray arrives during its collective or
after it, claims to belong to another one, or reaches a host that it was never meant for.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Final

from testbed.core.closing import Stacked
from testbed.core.errors import FabricError, TestbedError
from testbed.fabric.namespace import inside
from testbed.kernel import Map, RingReader
from testbed.plan import FabricPlan
from testbed.protocol.wire import FRAME
from testbed.soak import tap
from testbed.worker import Workers

if TYPE_CHECKING:
    from testbed.fabric import Fabric

__all__ = ["FIELDS", "Herd", "Strays"]

_RINGBUF = 27  # BPF_MAP_TYPE_RINGBUF
_TICK: Final = 0.005  # seconds between two batches
_GRACE: Final = 10.0  # seconds for a host's worker to answer
_MOST_BEHIND: Final = 20  # ticks that are caught up on, when the machine has been busy

_BELOW: Final = {
    "eth": ("destination", "source"),
    "ip": ("length", "protocol", "source", "destination"),
    "udp": ("destination",),
}


def _places() -> Iterator[tuple[str, tuple[int, int]]]:
    """Fields of ``struct ring_frame``: of the headers below ours what is looked at, and all of
    ours.
    """
    for name, (kind, offset, *_) in (FRAME.fields or {}).items():
        if kind.fields is None:
            yield name, (offset, kind.itemsize)
            continue
        for inner in _BELOW[name]:
            yield f"{name} {inner}", (offset + kind.fields[inner][1], kind[inner].itemsize)


FIELDS: Final = dict(_places())
"""Offset and width, in bytes, of each field that a bit may be flipped in."""


class Herd:
    """Frames that have been seen, and what strays are made of them. Pure.

    :param plan: Of the fabric.
    :param room: Frames that are remembered. A new one takes the place of any, so that most are
        young and some are very old.
    :param latest: How many of the latest frames are also remembered.
    """

    def __init__(self, plan: FabricPlan, seed: int, room: int = 512, latest: int = 16) -> None:
        self._random, self._room = Random(f"strays/{seed}"), room
        self._frames: list[bytes] = []
        self._latest: deque[bytes] = deque(maxlen=latest)
        self._hosts = [(host.name, bytes.fromhex(host.mac.replace(":", ""))) for host in plan.hosts]

    def add(self, frame: bytes) -> None:
        """Remember a frame."""
        self._latest.append(frame)
        if len(self._frames) < self._room:
            self._frames.append(frame)
        else:
            self._frames[self._random.randrange(self._room)] = frame

    def stray(self) -> tuple[str, bytes] | None:
        """A stray's origin and content; None if no frame has been seen.

        Half of them are made of the latest frames. A third goes to another host than the frame did;
        a quarter has no bit flipped, the others one to three. A switch sends nothing back, so none
        comes from the host that it is for.
        """
        if not self._frames:
            return None
        random = self._random
        data = bytearray(random.choice(self._frames if random.random() < 0.5 else self._latest))
        if random.random() < 1 / 3:
            data[:6] = random.choice(self._hosts)[1]
        for _ in range(random.randrange(4)):
            offset, width = FIELDS[random.choice(list(FIELDS))]
            data[offset + random.randrange(width)] ^= 1 << random.randrange(8)
        return random.choice([name for name, mac in self._hosts if mac != data[:6]]), bytes(data)


class Strays(Stacked):
    """Strays on a fabric, from entering the context until leaving it.

    :param fabric: A fabric with workers, on the datapath ``xdp``.
    :param rate: A second.
    :param seed: Of what is drawn; what there is to draw from goes by time.
    """

    def __init__(self, fabric: Fabric, rate: int, seed: int) -> None:
        self._fabric, self._rate = fabric, rate
        self._herd = Herd(fabric.plan, seed)
        self._over = threading.Event()
        self._error: Exception | None = None
        #: Frames that have been put on a wire.
        self.sent = 0

    def _enter(self, stack: ExitStack) -> None:
        """Begin.

        :raises FabricError: No workers are there, or the datapath is another one.
        :raises KernelError: The kernel refused a map or a program.
        """
        workers = Workers.of(self._fabric)
        if self._fabric.datapath != "xdp":
            raise FabricError(
                f"strays: the datapath is {self._fabric.datapath}: must be xdp, where programs copy"
                " frames"
            )
        frames = Map.create("frames", _RINGBUF, 0, 0, tap.ROOM)
        stack.callback(os.close, frames.fd)
        self._wires = {name: stack.enter_context(self._wire(name)) for name in self._fabric.hosts}
        stack.push(self._detach)
        workers.call_all(tap.attach, {name: {"frames": frames.number} for name in self._wires})
        # The reader goes with the thread, and with it the ring buffer's memory.
        thread = threading.Thread(
            target=self._run, args=(RingReader(frames, tap.TAPPED),), name="strays", daemon=True
        )
        thread.start()
        stack.callback(thread.join)
        stack.callback(self._over.set)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        if self._error and kind is None:
            raise self._error

    def _wire(self, host: str) -> socket.socket:
        """A socket for whole frames that leave a host by its link."""
        wire = inside(
            self._fabric.hosts[host].namespace.fd,
            lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0),
        )
        wire.bind((self._fabric.plan.host(host).ifname, 0))
        return wire

    def _detach(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if (workers := Workers.find(self._fabric)) is None:
            return
        try:
            workers.call_all(tap.detach, list(self._fabric.hosts), timeout=_GRACE)
        except TestbedError:
            if kind is None:  # else what has gone wrong already says more
                raise

    def _run(self, reader: RingReader) -> None:
        try:
            due, moment = 0.0, time.monotonic()
            while not self._over.wait(_TICK):
                before, moment = moment, time.monotonic()
                due += self._rate * min(moment - before, _MOST_BEHIND * _TICK)
                self._look(reader, max(1, int(due)))
                while due >= 1:
                    due -= 1
                    self._send()
        except Exception as error:  # raised again in the thread that leaves the context
            self._error = error

    def _look(self, reader: RingReader, most: int) -> None:
        """Take in the latest of what has been copied.

        :param most: Frames of it.
        """
        seen = reader.peek()
        for record in seen[-most:]:
            if length := int(record["length"]):
                self._herd.add(record["data"][:length].tobytes())
        reader.advance(seen.size)

    def _send(self) -> None:
        if stray := self._herd.stray():
            host, data = stray
            with suppress(OSError):  # the link is down, or its queue is full
                self._wires[host].send(data)
                self.sent += 1
