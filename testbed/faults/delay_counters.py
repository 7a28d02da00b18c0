"""The counters and lateness of a delay line. ``struct delay_line`` of ``bpf/shared/delay_abi.h``.
Pure.
"""

import bisect
import itertools
import math
import operator
from dataclasses import dataclass, field, fields
from typing import Self

from testbed.kernel.abi import Struct, constant

__all__ = ["BUCKETS", "LATE", "PORTS", "DelayCounters", "lower_bound"]

#: Seconds after its due time from which a copy counts as late.
LATE = constant("DELAY_LATE_NS") * 1e-9
_STEPS = constant("DELAY_STEPS")
BUCKETS = constant("DELAY_BUCKETS")
#: Maximum number of ports of a switch.
PORTS = constant("SWITCH_MAX_PORTS")


def lower_bound(bucket: int) -> int:
    """Return the least lateness that falls into a bucket of the histogram, ns: exact below 8, then
    8 buckets to an octave.
    """
    shift = max(bucket // _STEPS - 1, 0)
    return (bucket - shift * _STEPS) << shift


@dataclass(frozen=True)
class DelayCounters:
    """Counters of one delay line, or of several added up.

    Every frame is accounted for: each copy is ``sent``, ``full``, ``refused``, ``closed``, or still
    waiting.

    :param received: Frames that came in.
    :param sent: Copies sent; the counters from here to `closed` count copies.
    :param late: Of those sent, more than :data:`LATE` after their time.
    :param full: Dropped: the line was full.
    :param refused: Dropped: the port was down, gone, or its queue full.
    :param closed: Dropped: still waiting when the line closed.
    :param invalid: Frames that begin with no valid ``struct delay_header``.
    :param overrun: Frames lost on the way in, because they arrived faster than they were read.
    :param realtime: The process runs under SCHED_FIFO; without that permission, frames are late on
        a busy machine.
    :param lateness: Histogram of time sent minus time due, by the buckets of :func:`lower_bound`.
    """

    received: int
    sent: int
    late: int
    full: int
    refused: int
    closed: int
    invalid: int
    overrun: int
    realtime: bool
    lateness: tuple[int, ...] = field(repr=False)

    @classmethod
    def read(cls, memory: Struct, overrun: int) -> Self:
        """Copy the counters from the memory that the process writes, a ``struct delay_line``."""
        counted = {
            name: getattr(memory, name)
            for name in ("received", "sent", "late", "full", "refused", "closed", "invalid")
        }
        return cls(
            **counted,
            overrun=overrun,
            realtime=bool(memory.realtime),
            lateness=tuple(memory.lateness.tolist()),
        )

    @property
    def dropped(self) -> int:
        """Frames or copies that no rule asked to drop."""
        return self.full + self.refused + self.closed + self.invalid + self.overrun

    def quantile(self, share: float) -> float:
        """Lateness that ``share`` of the copies sent (0 to 1) did not exceed, seconds, at most 12.5
        % too much.

        NaN if none was sent.
        """
        cumulated = list(itertools.accumulate(self.lateness))
        if not cumulated[-1]:
            return math.nan
        bucket = bisect.bisect_left(cumulated, max(1, math.ceil(share * cumulated[-1])))
        return (lower_bound(bucket + 1) - 1) * 1e-9

    def __add__(self, other: "DelayCounters") -> "DelayCounters":
        """Add the counters of another line; ``realtime`` if both are."""
        sums = {
            each.name: getattr(self, each.name) + getattr(other, each.name)
            for each in fields(self)
            if each.name not in ("realtime", "lateness")
        }
        lateness = tuple(map(operator.add, self.lateness, other.lateness))
        return DelayCounters(**sums, realtime=self.realtime and other.realtime, lateness=lateness)
