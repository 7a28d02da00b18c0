"""What a rank does while an exchange is not complete: has frames sent again, keeps flows going, names silent ranks."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from testbed.errors import CollectiveError
from testbed.exchange.pinch_maps import Waited
from testbed.exchange.pinch_numbers import LEAST_EXPONENT
from testbed.protocol.rto import RetransmissionTimer

if TYPE_CHECKING:
    from testbed.exchange.pinch_port import PinchPort

__all__ = ["Recovery"]

_LEAST_QUENCH, _MOST_QUENCH = 0.0002, 0.005  # seconds
_MOST_PATIENCE = 0.05  # seconds
_LINGER = 1.0  # seconds


class Recovery:
    """The waiting of one rank.

    What this rank has sent is acknowledged by kernels, so a timer for round trips (RFC 6298) says when it is lost. What others
    have to send may take them longer, as they compute before: that is lost when it takes longer than usual.
    """

    def __init__(self, port: PinchPort) -> None:
        self.port = port
        self.timer = RetransmissionTimer()
        self._usual = 0.0  # seconds that an exchange takes; 0: not known yet
        self._samples = self._rtt_sum = 0

    @property
    def _patience(self) -> float:
        return max(self.timer.timeout, min(2 * self._usual, _MOST_PATIENCE) if self._usual else _MOST_PATIENCE)

    def wait(self) -> bool:
        """Until all has come and has been acknowledged (True), or is found not to hold (False).

        :raises CollectiveError: A rank has been silent for the group's timeout; the text names it.
        """
        started, before = time.monotonic(), self.port.peers["heard"].copy()
        waited = self.port.wait(max(self.timer.timeout, min(1.25 * self._usual, _MOST_PATIENCE)))
        if waited is Waited.TIME_UP:
            waited = self._go_on(started, before)
        self._measure()
        took = time.monotonic() - started
        self._usual = (3 * self._usual + took) / 4 if self._usual else took
        return waited is Waited.COMPLETE

    def _go_on(self, started: float, before: NDArray[np.uint64]) -> Waited:
        """Wait longer than round trips take.

        :param before: What had been heard of each rank when it started.
        """
        port, moved, attempt, waited = self.port, started, 0, Waited.TIME_UP
        alive, answered = port.peers["alive"].copy(), np.full(port.group.size, -math.inf)
        while waited is Waited.TIME_UP:
            now = time.monotonic()
            heard = port.peers["heard"].copy()
            progress = bool((heard != before).any())
            self._measure()
            answered[port.peers["alive"] != alive], alive = now, port.peers["alive"].copy()
            if progress:
                before, moved = heard, now
                self.timer.progressed()
            elif now - moved > port.group.timeout:
                raise CollectiveError(self._verdict(now - started, now - answered < port.group.timeout / 2))
            elif port.flying or now - moved >= self._patience:
                self.timer.expired()
                attempt += 1
                self._again(attempt)
            left = 0.0 if port.flying else self._patience - (now - moved)
            waited = port.wait(max(self.timer.timeout, left))
        return waited

    def linger(self) -> None:
        """Wait, not for long, until all ranks are where this one is: past all exchanges.

        Till then one of them may lack this one's last hello or acknowledgement, and ask for it.
        """
        port, attempt = self.port, 0
        deadline = time.monotonic() + min(_LINGER, port.group.timeout)
        port.control.partners = (1 << port.group.size) - 1
        port.enter(LEAST_EXPONENT, range(0))  # that all have come is then found to be no exchange
        while port.waits_for and time.monotonic() < deadline and port.wait(self.timer.timeout) is not Waited.UNFIT:
            attempt += 1
            port.greet(attempt)

    def _again(self, attempt: int) -> None:
        """Nothing has moved: what was sent or acknowledged last is lost, or what keeps the flow going is."""
        port = self.port
        if port.waits_for:
            port.greet(attempt)
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

    def _verdict(self, seconds: float, alive: NDArray[np.bool_]) -> str:
        """The error's text.

        :param alive: Which ranks have answered of late that they have not entered this exchange.
        """
        port = self.port
        absent = [member for member in port.group.members if member.rank != port.group.rank and port.absent(member.rank)]
        here = [f"rank {member.rank} ({member.name})" for member in absent if not alive[member.rank]]
        elsewhere = [f"rank {member.rank} ({member.name})" for member in absent if alive[member.rank]]
        what = [f"{', '.join(here) or 'its own programs'} silent"] if here or not elsewhere else []
        if elsewhere:
            what.append(f"{', '.join(elsewhere)} up, but not in this exchange,")
        control = port.control
        return (
            f"rank {port.group.rank} ({port.group.me.name}): {' and '.join(what)} for {port.group.timeout:g} s "
            f"(exchange {port.generation}: {control.received} of {port.expected} frames received, "
            f"{control.acked} of {port.copies} acknowledged after {seconds:.1f} s)"
        )
