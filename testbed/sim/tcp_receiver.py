"""The receiving end of a simulated TCP connection: what it acknowledges, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import simpy

from testbed.sim.wiring import after

__all__ = ["Ack", "TcpReceiver"]

_BLOCKS = 3
"""SACK blocks that fit beside a timestamp (RFC 2018, section 3)."""


@dataclass(frozen=True, slots=True)
class Ack:
    """An acknowledgement.

    :param expected: The next segment in order.
    :param blocks: Segments that have arrived beyond it, ``(first, end)``, the latest first.
    :param echo: When the earliest segment was sent that this acknowledges (RFC 7323).
    """

    expected: int
    blocks: tuple[tuple[int, int], ...]
    echo: float


class TcpReceiver:
    """Acknowledges every second segment, a lone one after a while, and at once whatever is out of
    order or fills a gap (RFC 1122, 4.2.3.2; RFC 5681, 4.2).

    :param delay: Seconds that a lone segment's acknowledgement is delayed.
    :param send: Sends an acknowledgement.
    """

    def __init__(self, env: simpy.Environment, delay: float, send: Callable[[Ack], None]) -> None:
        self.expected = 0
        self._env = env
        self._delay = delay
        self._send = send
        self._blocks: list[tuple[int, int]] = []
        self._pending = 0
        self._echo = 0.0
        self._acks = 0
        self._waiting: list[tuple[int, simpy.Event]] = []

    def arrive(self, segment: int, sent: float) -> None:
        """A segment has arrived, which was sent at ``sent``."""
        self._echo = sent if not self._pending else self._echo
        at_once = segment != self.expected or bool(self._blocks)
        if segment >= self.expected:
            self._insert(segment)
        self._pending += 1
        if at_once or self._pending >= 2:
            self._acknowledge()
        else:
            number = self._acks
            after(self._env, self._delay, lambda: self._late(number))
        while self._waiting and self._waiting[0][0] <= self.expected:
            self._waiting.pop(0)[1].succeed()

    def until(self, end: int) -> simpy.Event:
        """Triggers when all segments below ``end`` have arrived; calls with growing ``end``."""
        event = self._env.event()
        if end <= self.expected:
            event.succeed()
        else:
            self._waiting.append((end, event))
        return event

    def _insert(self, segment: int) -> None:
        first, end = segment, segment + 1
        apart = []
        for block in self._blocks:
            if block[1] < first or block[0] > end:
                apart.append(block)
            else:
                first, end = min(first, block[0]), max(end, block[1])
        if first <= self.expected:
            self.expected = max(self.expected, end)
            self._blocks = apart
        else:
            self._blocks = [(first, end), *apart]

    def _late(self, number: int) -> None:
        if self._pending and number == self._acks:
            self._acknowledge()

    def _acknowledge(self) -> None:
        self._acks += 1
        self._pending = 0
        self._send(Ack(self.expected, tuple(self._blocks[:_BLOCKS]), self._echo))
