"""One line of a result: what was measured of one backend at one size, and what follows from it.
Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.bench.observed import (
    Observed,
    Overhead,
    Turn,
    overhead,
    telemetry_dict,
    times_of,
)
from testbed.bench.operations import ALL_REDUCE, Operation
from testbed.comm.collective import Counters
from testbed.comm.options import DATATYPES
from testbed.core.medians import Median

__all__ = [
    "MAX_ITERATIONS",
    "Row",
    "Turn",
    "algbw",
    "backend_of",
    "make_row",
    "shares",
    "turns_of",
    "width_of",
]

MAX_ITERATIONS = 1_000_000  # of a row: each is remembered
MAX_TURNS = 5  # into which a row's iterations are cut
OBSERVED_TURNS = 20  # the same with telemetry, whose overhead is told by pairs of turns


def shares(iterations: int, most: int) -> list[int]:
    """Iterations of each turn, as equal as possible, of at most `most` turns."""
    turns = min(iterations, most)
    return [iterations * (i + 1) // turns - iterations * i // turns for i in range(turns)]


def turns_of(iterations: int, observed: bool) -> list[int]:
    """The iterations of each turn of a row, with telemetry or without."""
    return shares(iterations, OBSERVED_TURNS if observed else MAX_TURNS)


def algbw(size: int, seconds: float) -> float:
    """Algorithm bandwidth in GB/s (1e9 bytes): the tensor's bytes over the time."""
    return size / seconds / 1e9


def backend_of(label: str) -> str:
    """The name of the backend of a row."""
    return label.partition("@")[0]


def width_of(datatype: str) -> int:
    """Bytes of a value of a type in `DATATYPES`."""
    return np.dtype(DATATYPES[datatype]).itemsize


@dataclass(frozen=True)
class Row:
    """One backend at one size; times in seconds, counts summed over all ranks.

    :param backend: Its name; with ``@`` and an MTU where its packets were smaller than the links
        allow.
    :param bound: Median time in which all ranks at once copy a tensor, which no all-reduce can
        beat: it reads its input, and writes its result.
    :param operation: What was measured.
    :param op: How it reduced values.
    :param datatype: Their type, one of `DATATYPES`.
    :param out_of_place: The same with the result in memory of its own, if that was measured.
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
    overhead: Overhead | None = None
    operation: Operation = ALL_REDUCE
    op: str = "sum"
    datatype: str = "float"
    out_of_place: "Row | None" = None

    @property
    def busbw(self) -> float:
        """Bus bandwidth in GB/s: see `Operation.busbw`."""
        return self.operation.busbw(self.size, self.median, self.hosts)

    @property
    def count(self) -> int:
        """Elements, as nccl-tests counts them."""
        return self.operation.count(self.size, self.hosts, width_of(self.datatype))

    @property
    def redop(self) -> str:
        """How values are reduced, as nccl-tests says it."""
        return self.op if self.operation.reduces else "none"

    @property
    def time(self) -> Median:
        """Of an iteration, seconds."""
        return Median.of(self.times)

    @property
    def median(self) -> float:
        """Median time of an iteration, seconds."""
        return self.time.value

    @property
    def p99(self) -> float:
        """99th percentile of the times, interpolated as numpy does: near the maximum below 100
        iterations.
        """
        return float(np.percentile(self.times, 99))

    @property
    def figures(self) -> dict[str, Any]:
        """The times, what follows from them, and how many elements are wrong."""
        return {
            "time_us": {
                "min": round(min(self.times) * 1e6, 3),
                "median": round(self.median * 1e6, 3),
                "p99": round(self.p99 * 1e6, 3),
                "low": round(self.time.low * 1e6, 3),
                "high": round(self.time.high * 1e6, 3),
            },
            "algbw_gbps": round(algbw(self.size, self.median), 6),
            "busbw_gbps": round(self.busbw, 6),
            "wrong": self.wrong,
        }

    def to_dict(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """The row for the JSON file."""
        telemetry = telemetry_dict(self.observed, self.overhead)
        return {
            "backend": self.backend,
            "hosts": self.hosts,
            "size_bytes": self.size,
            "collective": self.operation.title,
            "count": self.count,
            "type": self.datatype,
            "redop": self.redop,
            **parameters,
            "iterations": len(self.times),
            **self.figures,
            **({"out_of_place": self.out_of_place.figures} if self.out_of_place else {}),
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
    operation: Operation = ALL_REDUCE,
    op: str = "sum",
    datatype: str = "float",
    out_of_place: Row | None = None,
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
        operation=operation,
        op=op,
        datatype=datatype,
        out_of_place=out_of_place,
    )
