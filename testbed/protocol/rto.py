"""When to consider a frame lost: the adaptive timer of RFC 6298, in seconds."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RetransmissionTimer"]


@dataclass
class RetransmissionTimer:
    """The timeout follows from the smoothed round-trip time and its variation, and doubles with
    every expiry without progress.

    :param floor: Minimum timeout. RFC 6298 asks for 1 s on the internet. Here a round trip takes
        tens of microseconds, and the main delay is a rank that waits a few scheduler ticks for a
        CPU.
    :param ceiling: Maximum timeout after doubling.
    """

    floor: float = 0.005
    ceiling: float = 0.5
    initial: float = 0.02
    smoothed: float | None = None
    variation: float = 0.0
    _backoff: int = 0

    def sample(self, rtt: float, spread: float | None = None) -> None:
        """A round trip was measured, of a frame that was sent only once (Karn's algorithm).

        :param spread: How far round trips deviated from ``rtt``, if ``rtt`` is the mean of many.
        """
        if self.smoothed is None:
            self.smoothed, self.variation = rtt, rtt / 2
        else:
            self.variation = 0.75 * self.variation + 0.25 * abs(self.smoothed - rtt)
            self.smoothed = 0.875 * self.smoothed + 0.125 * rtt
        if spread is not None:
            self.variation = max(self.variation, spread / 4)

    def expired(self) -> None:
        """The timer has expired without progress."""
        self._backoff += 1

    def progressed(self) -> None:
        """There was progress: undo the doubling."""
        self._backoff = 0

    @property
    def timeout(self) -> float:
        """Seconds to wait for the next result."""
        base = self.initial if self.smoothed is None else self.smoothed + 4 * self.variation
        return min(max(base, self.floor) * 2.0 ** min(self._backoff, 10), self.ceiling)
