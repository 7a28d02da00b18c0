"""When a waiting process looks for losses, and when it probes.

Reference model of ``look`` in ``testbed/native/ring_wait.h``.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.protocol.ring.process import Process

__all__ = ["LEAST_TIMEOUT_NS", "Quiet"]

LEAST_TIMEOUT_NS = 500_000
"""How long a CPU may make no progress before a probe is sent; the time doubles with each probe."""
DOUBLINGS = 5
RECOVERY_DOUBLINGS = 1
"""While a loss is known, because a retransmission may be lost again."""
UNDER_WAY = 16
"""Probes of a CPU within a round trip."""


@dataclass(slots=True)
class _Stream:
    """``struct ring_quiet``."""

    progress: int = 0
    since: int = 0
    probes: int = 0


class Quiet:
    """How long each CPU has made no progress in a collective.

    :param process: Whose collective is waited for.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self._streams = [_Stream(stream.progress) for stream in process.memory.streams]

    def begin(self, now_ns: int) -> None:
        """The process begins to wait; until now it was busy itself."""
        for stream in self._streams:
            if not stream.probes:
                stream.since = now_ns

    def look(self, now_ns: int) -> int:
        """Look at all CPUs; post probes where they are due, and what `Process.stall` posts.

        :param now_ns: Nanoseconds of any clock that does not go back.
        :returns: Nanoseconds until the next look.
        """
        process, left, still, stalled = self.process, 1 << 62, True, False
        now_us = now_ns // 1000 & 0xFFFFFFFF
        process.hear()
        for stream, found in zip(self._streams, process.memory.streams, strict=True):
            if found.progress != stream.progress:
                stream.progress, stream.since, stream.probes = found.progress, now_ns, 0
                still = False
            due = stream.since - now_ns + self._timeout(stream)
            stalled = stalled or due <= 0
            left = min(left, due if due > 0 else LEAST_TIMEOUT_NS)
        if not still:
            process.moved()
        if not stalled:
            if process.measures(now_us, LEAST_TIMEOUT_NS // 1000):
                process.probe(0, now_us)
            return left
        process.stall(now_us, still)
        for cpu, stream in enumerate(self._streams):
            if now_ns - stream.since >= self._timeout(stream):
                process.probe(cpu, now_us)
                stream.since = now_ns
                stream.probes += 1
        return left

    def _timeout(self, stream: _Stream) -> int:
        most = RECOVERY_DOUBLINGS if self.process.in_recovery else DOUBLINGS
        trip_ns = 1000 * self.process.memory.nack_holdoff_us
        return max(LEAST_TIMEOUT_NS << min(stream.probes, most), trip_ns // UNDER_WAY)
