"""A TCP connection in one direction between two hosts of a simulated fabric."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import simpy

from testbed.faults.identity import KINDS, Packet
from testbed.sim.congestion import Name, make
from testbed.sim.tcp_receiver import Ack, TcpReceiver
from testbed.sim.tcp_sender import TcpSender
from testbed.sim.wiring import Message, Wiring, after

__all__ = ["Flows", "TcpConnection", "TcpModel"]

_HEADERS = 14 + 20 + 32  # Ethernet, IPv4, TCP with timestamps


@dataclass(frozen=True)
class TcpModel:
    """What TCP is like.

    :param delayed_ack: Seconds; RFC 1122 allows 0.5, Linux takes 0.04 at most.
    :param tso: Most segments that the stack handles as one; each is a frame on the wire.
    :param window: Most segments in flight, as the receiver allows.
    """

    congestion: Name = "cubic"
    delayed_ack: float = 0.04
    tso: int = 44
    window: int = 1 << 20


@dataclass(slots=True)
class _Segment:
    """What a frame carries: a segment of data, or an acknowledgement."""

    connection: TcpConnection
    number: int = 0
    sent: float = 0.0
    ack: Ack | None = None


class TcpConnection:
    """Hands segments from one host to the other; hosts may have many connections.

    :ivar mss: Bytes of data in a full segment.
    """

    def __init__(
        self, wiring: Wiring, sender: int, receiver: int, model: TcpModel = TcpModel()
    ) -> None:
        self.mss = wiring.plan.mtu - (_HEADERS - 14)
        self._wiring = wiring
        self._env = wiring.env
        self._ends = sender, receiver
        self._model = model
        self._short: dict[int, int] = {}  # bytes of segments that are not full
        self.receiver = TcpReceiver(wiring.env, model.delayed_ack, self._acknowledge)
        self.sender = TcpSender(wiring.env, make(model.congestion), model.window, self._send)
        for rank in self._ends:
            wiring.hosts[rank].receive = _deliver

    def write(self, size: int, segment: int | None = None) -> int:
        """Send bytes; return the number of segments that have been written in all.

        :param segment: Bytes of a segment, if not the `mss`.
        """
        length = segment or self.mss
        segments, last = -(-size // length), size % length
        first = self.sender.end
        if length != self.mss:
            self._short.update(dict.fromkeys(range(first, first + segments), length))
        if last:
            self._short[first + segments - 1] = last
        self.sender.write(segments)
        return self.sender.end

    def until(self, segments: int) -> simpy.Event:
        """Triggers when this many segments have arrived, in order."""
        return self.receiver.until(segments)

    def _send(self, segments: list[int]) -> None:
        costs, (sender, receiver) = self._wiring.hardware.host, self._ends
        for start in range(0, len(segments), self._model.tso):
            batch = segments[start : start + self._model.tso]
            sizes = [self._short.get(number, self.mss) for number in batch]
            seconds = self._wiring.hosts[sender].kernel.work(costs.frame + sum(sizes) * costs.byte)

            def go(batch: list[int] = batch, sizes: list[int] = sizes) -> None:
                for number, size in zip(batch, sizes, strict=True):
                    content = _Segment(self, number, self._env.now)
                    self._wiring.send(Message(sender, receiver, _HEADERS + size, content))

            after(self._env, seconds, go)

    def _acknowledge(self, ack: Ack) -> None:
        sender, receiver = self._ends
        length = _HEADERS + (8 * len(ack.blocks) + 4 if ack.blocks else 0)
        self._wiring.send(Message(receiver, sender, length, _Segment(self, ack=ack)))

    def arrive(self, segment: _Segment, length: int) -> None:
        """A frame of this connection has arrived at either end."""
        costs = self._wiring.hardware.host
        host = self._wiring.hosts[self._ends[0 if segment.ack else 1]]
        seconds = host.kernel.work(costs.frame + (length - _HEADERS) * costs.byte)
        ack = segment.ack
        if ack is not None:
            after(self._env, seconds, lambda: self.sender.on_ack(ack))
        else:
            after(self._env, seconds, lambda: self.receiver.arrive(segment.number, segment.sent))


class Flows:
    """Identities of TCP frames, as `testbed.faults` numbers them: flows of a pair of hosts in order
    of appearance, frames of a flow likewise.
    """

    def __init__(self) -> None:
        self._flows: dict[tuple[int, int, int], int] = {}
        self._pairs: Counter[tuple[int, int]] = Counter()
        self._frames: Counter[tuple[int, int, int]] = Counter()

    def identify(self, message: Message) -> Packet | None:
        """The identity of the next frame."""
        if not isinstance(message.content, _Segment):
            return None
        pair = message.sender, message.receiver
        key = *pair, id(message.content.connection)
        if key not in self._flows:
            self._flows[key] = self._pairs[pair]
            self._pairs[pair] += 1
        self._frames[key] += 1
        return Packet(*pair, KINDS["tcp"], seq=self._flows[key], chunk=self._frames[key] - 1)


def _deliver(message: Message) -> None:
    if isinstance(message.content, _Segment):
        message.content.connection.arrive(message.content, message.length)
