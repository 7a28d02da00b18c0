"""One line of a result: what was measured of one backend at one size, and what follows from it.
Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.bench.observed import Observed, Turn, overhead, times_of
from testbed.comm.collective import Counters

__all__ = ["MAX_ITERATIONS", "Row", "Turn", "algbw", "backend_of", "busbw", "make_row"]

MAX_ITERATIONS = 1_000_000  # of a row: each is remembered


def algbw(size: int, seconds: float) -> float:
    """Algorithm bandwidth in GB/s (1e9 bytes): the tensor's bytes over the time."""
    return size / seconds / 1e9


def busbw(size: int, seconds: float, ranks: int) -> float:
    """Bus bandwidth in GB/s: what a rank has to send at least, ``2 (n-1) / n`` of the tensor, over
    the time.

    nccl-tests, doc/PERFORMANCE.md.
    """
    return algbw(size, seconds) * 2 * (ranks - 1) / ranks


def backend_of(label: str) -> str:
    """The name of the backend of a row."""
    return label.partition("@")[0]


@dataclass(frozen=True)
class Row:
    """One backend at one size; times in seconds, counts summed over all ranks.

    :param backend: Its name; with ``@`` and an MTU where its packets were smaller than the links
        allow.
    :param bound: Median time in which all ranks at once copy a tensor, which no all-reduce can
        beat: it reads its input, and writes its result.
    :param overhead: By what share telemetry makes an iteration longer; None without it.
    """

    backend: str
    hosts: int
    size: int
    times: tuple[float, ...]
    wrong: int
    packets: int
    wire_bytes: int
    retransmissions: int
    syscalls_per_rank: float | None
    observed: Observed | None = None
    bound: float | None = None
    overhead: float | None = None

    @property
    def median(self) -> float:
        """Median time of an iteration, seconds."""
        return float(np.median(self.times))

    @property
    def p99(self) -> float:
        """99th percentile of the times, interpolated as numpy does: near the maximum below 100
        iterations.
        """
        return float(np.percentile(self.times, 99))

    def to_dict(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """The row for the JSON file."""
        telemetry = self.observed and {"overhead": self.overhead, **self.observed.to_dict()}
        return {
            "backend": self.backend,
            "hosts": self.hosts,
            "size_bytes": self.size,
            "count": self.size // 4,
            "type": "float",
            "redop": "sum",
            **parameters,
            "iterations": len(self.times),
            "time_us": {
                "min": round(min(self.times) * 1e6, 3),
                "median": round(self.median * 1e6, 3),
                "p99": round(self.p99 * 1e6, 3),
            },
            "algbw_gbps": round(algbw(self.size, self.median), 6),
            "busbw_gbps": round(busbw(self.size, self.median, self.hosts), 6),
            "wrong": self.wrong,
            "packets": self.packets,
            "wire_bytes": self.wire_bytes,
            "retransmissions": self.retransmissions,
            "syscalls_per_rank": self.syscalls_per_rank,
            "copy_us": None if self.bound is None else round(self.bound * 1e6, 3),
            **({"telemetry": telemetry} if telemetry else {}),
        }


def make_row(
    backend: str,
    size: int,
    turns: Sequence[Sequence[Turn]],
    syscalls: Sequence[int] | None,
    observed: Observed | None = None,
    bound: float | None = None,
) -> Row:
    """Combine the turns of all ranks.

    Times are those of `times_of`. Packets and bytes are
    those of one all-reduce: the mean over iterations of the sum over ranks. The other counts are
    sums over both.

    :param turns: By turn, then by rank.
    :param syscalls: Of one all-reduce, by rank; None where they could not be counted.
    :param observed: Turns with telemetry, if there were any.
    :param bound: As of `Row`.
    """
    times = [time for ranks in turns for time in times_of(ranks)]
    sent = sum((turn.sent for ranks in turns for turn in ranks), Counters())
    return Row(
        backend=backend,
        hosts=len(turns[0]),
        size=size,
        times=tuple(times),
        wrong=sum(turn.wrong for ranks in turns for turn in ranks),
        packets=round(sent.packets / len(times)),
        wire_bytes=round(sent.wire_bytes / len(times)),
        retransmissions=sent.retransmissions,
        syscalls_per_rank=None if syscalls is None else round(sum(syscalls) / len(syscalls), 1),
        observed=observed,
        bound=bound,
        overhead=overhead(turns, observed),
    )
