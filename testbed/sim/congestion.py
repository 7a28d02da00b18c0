"""Congestion control of TCP: Reno (RFC 5681, counting segments as RFC 3465) and CUBIC (RFC 9438).

Windows are in segments, times in seconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

__all__ = ["INITIAL_WINDOW", "CongestionControl", "Cubic", "Name", "Reno", "make"]

Name = Literal["cubic", "reno"]

INITIAL_WINDOW = 10.0
"""RFC 6928."""
_LEAST = 2.0
_MOST_COUNTED = 2


@dataclass
class CongestionControl(ABC):
    """A window that grows with acknowledgements: slow start below the threshold, then as the
    algorithm says.

    :ivar beta: What is left of the window after a loss.
    """

    beta = 0.5
    cwnd: float = INITIAL_WINDOW
    ssthresh: float = float("inf")

    def on_ack(self, segments: int, now: float, rtt: float) -> None:
        """Segments were acknowledged, outside of fast recovery, while the window limited.

        At most two count (RFC 3465, L), because one that fills a gap acknowledges many that left
        the network long ago.
        """
        segments = min(segments, _MOST_COUNTED)
        if self.cwnd < self.ssthresh:
            self.cwnd += segments
        else:
            self._avoid(segments, now, rtt)

    def on_loss(self, now: float) -> None:
        """A loss was detected by acknowledgements: fast recovery begins."""
        self._reduce(now)
        self.cwnd = self.ssthresh

    def on_timeout(self, now: float) -> None:
        """The retransmission timer expired."""
        self._reduce(now)
        self.cwnd = 1.0

    @abstractmethod
    def _avoid(self, segments: int, now: float, rtt: float) -> None:
        """Let the window grow in congestion avoidance, for these acknowledged segments."""

    def _reduce(self, now: float) -> None:
        """The threshold after a loss."""
        self.ssthresh = max(self.cwnd * self.beta, _LEAST)


class Reno(CongestionControl):
    """One segment more in each round trip."""

    def _avoid(self, segments: int, now: float, rtt: float) -> None:
        self.cwnd += segments / self.cwnd


class Cubic(CongestionControl):
    """A cubic function of the time since the last loss, and at least what Reno would have (RFC
    9438, section 4).
    """

    beta = 0.7
    _C = 0.4
    _ALPHA = 3 * (1 - beta) / (1 + beta)

    def __init__(self) -> None:
        super().__init__()
        self._most = 0.0
        self._begin: float | None = None
        self._k = self._estimate = 0.0

    def _reduce(self, now: float) -> None:
        # Fast convergence: the window did not get back to where it was.
        falling = self.cwnd < self._most
        self._most = self.cwnd * (1 + self.beta) / 2 if falling else self.cwnd
        self._begin = None
        super()._reduce(now)

    def _avoid(self, segments: int, now: float, rtt: float) -> None:
        if self._begin is None:
            self._begin, self._estimate = now, self.cwnd
            self._most = max(self._most, self.cwnd)
            self._k = ((self._most - self.cwnd) / self._C) ** (1 / 3)
        elapsed = now - self._begin
        # Alpha is 1 once Reno would have reached the window of the last loss.
        alpha = self._ALPHA if self._estimate < self._most else 1.0
        self._estimate += alpha * segments / self.cwnd
        if self._window(elapsed) < self._estimate:
            self.cwnd = max(self.cwnd, self._estimate)
            return
        target = min(max(self._window(elapsed + rtt), self.cwnd), 1.5 * self.cwnd)
        self.cwnd += (target - self.cwnd) / self.cwnd * segments

    def _window(self, elapsed: float) -> float:
        return float(self._C * (elapsed - self._k) ** 3 + self._most)


def make(name: Name) -> CongestionControl:
    """Congestion control by name."""
    return Cubic() if name == "cubic" else Reno()
