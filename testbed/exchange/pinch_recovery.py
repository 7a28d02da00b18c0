"""What a rank does while an exchange is not complete: has frames sent again, keeps flows going, names silent ranks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from testbed.errors import CollectiveError
from testbed.protocol.rto import RetransmissionTimer

if TYPE_CHECKING:
    from testbed.exchange.pinch_port import PinchPort

__all__ = ["Recovery"]

_LEAST_QUENCH, _MOST_QUENCH = 0.0002, 0.005  # seconds


class Recovery:
    """The waiting of one rank."""

    def __init__(self, port: PinchPort) -> None:
        self.port = port
        self.timer = RetransmissionTimer()
        self._samples = self._rtt_sum = 0

    def wait(self) -> None:
        """Until all has come and has been acknowledged.

        :raises CollectiveError: A rank has been silent for the group's timeout; the text names it.
        """
        port = self.port
        started = moved = time.monotonic()
        due = started + self.timer.timeout
        before = port.peers["heard"].copy()
        while not port.wait(due - time.monotonic()):
            now = time.monotonic()
            heard = port.peers["heard"].copy()
            progress = bool((heard != before).any())
            self._measure()
            if progress:
                before, moved = heard, now
                self.timer.progressed()
            if now - moved > port.group.timeout:
                raise CollectiveError(self._verdict(now - started))
            if now >= due:
                if not progress:
                    self.timer.expired()
                    self._again()
                due = now + self.timer.timeout
        self._measure()

    def _again(self) -> None:
        """Nothing has moved: what was sent or acknowledged last is lost, or what keeps the flow going is."""
        port = self.port
        missing = [port.lacking(rank) for rank in range(port.group.size) if rank != port.group.rank]
        frames = np.unique(np.concatenate(missing))[: int(port.control.window)]
        port.order(frames)
        port.ring(work=bool(port.control.owed))

    def _measure(self) -> None:
        """Take in the round trips that the programs have seen."""
        control = self.port.control
        samples, total = int(control.rtt_samples), int(control.rtt_sum_us)
        if samples != self._samples:
            mean = (total - self._rtt_sum) / (samples - self._samples) * 1e-6
            self.timer.sample(mean, max(0.0, control.rtt_max_us * 1e-6 - mean))
            control.rtt_max_us = 0
            self._samples, self._rtt_sum = samples, total
            quench = min(max(2 * (self.timer.smoothed or 0), _LEAST_QUENCH), _MOST_QUENCH)
            control.quench_us = int(quench * 1e6)

    def _verdict(self, seconds: float) -> str:
        port = self.port
        absent = [member for member in port.group.members if member.rank != port.group.rank and port.absent(member.rank)]
        text = ", ".join(f"rank {member.rank} ({member.name})" for member in absent) or "its own programs"
        control = port.control
        return (
            f"rank {port.group.rank} ({port.group.me.name}): {text} silent for {port.group.timeout:g} s "
            f"(exchange {port.generation}: {control.received} of {control.expected} frames received, "
            f"{control.acked} of {control.copies} acknowledged after {seconds:.1f} s)"
        )
