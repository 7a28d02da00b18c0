"""The sending end of a simulated TCP connection: which segment goes next, and when."""

from __future__ import annotations

from collections.abc import Callable

import simpy

from testbed.protocol.rto import RetransmissionTimer
from testbed.sim.congestion import CongestionControl
from testbed.sim.tcp_receiver import Ack
from testbed.sim.wiring import after

__all__ = ["TcpSender"]

_DUP_THRESHOLD = 3
"""Later segments that must have arrived before one is called lost (RFC 6675, DupThresh)."""
_RTO_FLOOR = 0.2
"""Seconds: Linux's TCP_RTO_MIN; RFC 6298 asks for 1 s."""
_RTO_CEILING = 120.0


class TcpSender:
    """Slow start, congestion avoidance, recovery by SACK (RFC 6675), and the retransmission timer
    (RFC 6298).

    A retransmission that is lost again is found by the timer alone. There are no tail-loss probes.

    :param window: Most segments in flight, as the receiver allows.
    :param send: Sends segments, one behind the other.
    :ivar retransmissions: Segments sent again.
    :ivar timeouts: How often the timer expired.
    """

    def __init__(
        self,
        env: simpy.Environment,
        control: CongestionControl,
        window: int,
        send: Callable[[list[int]], None],
    ) -> None:
        self.control = control
        self.una = self.nxt = self.end = 0
        self.retransmissions = self.timeouts = 0
        self.timer = RetransmissionTimer(floor=_RTO_FLOOR, ceiling=_RTO_CEILING, initial=1.0)
        self._env = env
        self._window = window
        self._send = send
        self._sacked: set[int] = set()
        self._lost: set[int] = set()
        self._again: set[int] = set()  # lost ones that have been sent again
        self._recover = -1
        self._fast = False
        self._deadline = float("inf")
        self._ticking = False

    def write(self, segments: int) -> None:
        """Queue segments behind the others."""
        self.end += segments
        self._fill()

    @property
    def pipe(self) -> int:
        """Segments that are assumed to be in flight (RFC 6675, SetPipe)."""
        return self.nxt - self.una - len(self._sacked) - len(self._lost) + len(self._again)

    def on_ack(self, ack: Ack) -> None:
        """An acknowledgement has arrived."""
        grows = not self._fast and self.pipe + 1 >= self.control.cwnd
        acked = max(0, ack.expected - self.una)
        if acked:
            gone = range(self.una, ack.expected)
            for known in (self._sacked, self._lost, self._again):
                known.difference_update(gone)
            self.una = ack.expected
            self.timer.sample(self._env.now - ack.echo)
            self.timer.progressed()
            self._start_timer()
        for first, end in ack.blocks:
            self._sacked.update(range(max(first, self.una), end))
        if ack.blocks:
            self._lost -= self._sacked
            self._again -= self._sacked
            self._find_losses()
        if self.una > self._recover:
            self._fast = False
            if self._lost:
                self._recover, self._fast = self.nxt - 1, True
                self.control.on_loss(self._env.now)
                if len(self._again) < len(self._lost):  # whatever is in flight
                    self._emit([self._next_lost()])
        if acked and grows and not self._fast:
            self.control.on_ack(acked, self._env.now, self.timer.smoothed or 0.0)
        self._fill()

    def _find_losses(self) -> None:
        above = 0
        for segment in range(max(self._sacked, default=self.una), self.una - 1, -1):
            if segment in self._sacked:
                above += 1
            elif above >= _DUP_THRESHOLD:
                self._lost.add(segment)

    def _next_lost(self) -> int:
        segment = min(self._lost - self._again)
        self._again.add(segment)
        self.retransmissions += 1
        return segment

    def _fill(self) -> None:
        """Send what the windows allow: lost segments first, then new ones."""
        ready = []
        while self.pipe < int(self.control.cwnd):
            if len(self._again) < len(self._lost):
                ready.append(self._next_lost())
            elif self.nxt < self.end and self.nxt - self.una < self._window:
                ready.append(self.nxt)
                self.nxt += 1
            else:
                break
        self._emit(ready)

    def _emit(self, segments: list[int]) -> None:
        if segments:
            self._send(segments)
            if self._deadline == float("inf"):
                self._start_timer()

    def _start_timer(self) -> None:
        if self.una == self.nxt:
            self._deadline = float("inf")
            return
        self._deadline = self._env.now + self.timer.timeout
        if not self._ticking:
            self._tick()

    def _tick(self) -> None:
        """Wait for the deadline, which may have moved meanwhile."""
        left = self._deadline - self._env.now
        self._ticking = left < float("inf")
        if not self._ticking:
            return
        if left > 1e-9:
            after(self._env, left, self._tick)
            return
        self._ticking = False
        self.timeouts += 1
        self.timer.expired()
        self.control.on_timeout(self._env.now)
        self._lost = set(range(self.una, self.nxt)) - self._sacked
        self._again.clear()
        self._recover, self._fast = self.nxt - 1, False
        self._deadline = float("inf")
        self._fill()
