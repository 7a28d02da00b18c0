"""How punctual a delay line is: frames are sent straight to its ingress device, at steady rates,
and leave through a switch's port.

Lateness is the time at which the system call that sent a frame returned, less the time at which the
frame was due: an upper bound of what a fault's delay is too long by.
"""

import ctypes
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from testbed.core.errors import SpecError
from testbed.fabric import Fabric
from testbed.faults.delay_counters import DelayCounters
from testbed.faults.delay_header import DelayHeader
from testbed.faults.delay_line import ENTRANCE, DelayLine
from testbed.faults.rules import MAX_DELAY
from testbed.native import load
from testbed.plan import plan_fabric
from testbed.worker import WorkerContext, Workers

__all__ = ["MOST_RATE", "Row", "header_line", "hold", "measure", "row_line"]

MOST_RATE = 10_000_000  # frames per second; 64 bytes each are 5 Gb/s
MOST_SECONDS = 3600
_MTU = 1500
_ETHERTYPE = 0x88B5  # IEEE 802: local experimental; the host where the frames arrive drops it
_DRAIN = 5.0  # seconds for the last frames to leave, after they are due
_SHARES = (0.5, 0.9, 0.99, 0.999, 1.0)


@dataclass(frozen=True)
class Row:
    """One rate.

    :param rate: Frames per second, as asked for.
    :param offered: Frames sent into the entrance.
    :param seconds: How long that took.
    :param counters: What became of them.
    """

    rate: int
    offered: int
    seconds: float
    counters: DelayCounters

    def to_dict(self) -> dict[str, object]:
        """Return what the JSON has of it, times in seconds."""
        quantiles = {f"p{100 * share:g}": self.counters.quantile(share) for share in _SHARES}
        counts = {key: value for key, value in asdict(self.counters).items() if key != "lateness"}
        return {
            "rate": self.rate,
            "offered": self.offered,
            "seconds": self.seconds,
            **counts,
            "lateness": quantiles,
        }


def header_line() -> str:
    """Name the columns of :func:`row_line`; lateness in microseconds."""
    names = [
        "rate",
        "per_s",
        "frames",
        "dropped",
        "late",
        *(f"p{100 * share:g}" for share in _SHARES),
    ]
    return "#" + " ".join(f"{name:>9}" for name in names)[1:]


def row_line(row: Row) -> str:
    """One rate: asked for, reached, frames, dropped, late by more than 0.5 ms, percentiles."""
    counters = row.counters
    cells = [
        row.rate,
        round(row.offered / row.seconds),
        row.offered,
        counters.dropped,
        counters.late,
    ]
    return " ".join(
        f"{cell:>9}"
        for cell in cells + [f"{counters.quantile(share) * 1e6:.1f}" for share in _SHARES]
    )


def measure(rates: list[int], seconds: float, delay: float, jitter: float) -> Iterator[Row]:
    """Measure one rate after the other, each with a new delay line, on the switch of a star of two
    hosts.

    :param rates: Frames per second.
    :param seconds: Of sending, each.
    :param delay: Seconds that a frame is delayed.
    :param jitter: Seconds that the delay varies by, up and down, uniformly.
    :raises SpecError: A number is out of range.
    """
    if not rates or not 1 <= min(rates) <= max(rates) <= MOST_RATE:
        raise SpecError(
            f"--rates: {','.join(map(str, rates))!r}: must be 1 to {MOST_RATE} frames per second"
        )
    if not 0 < seconds <= MOST_SECONDS:
        raise SpecError(f"--seconds: {seconds:g}: must be more than 0, at most {MOST_SECONDS}")
    if not delay <= MAX_DELAY:
        raise SpecError(f"--delay: {delay:g} s: must be at most {MAX_DELAY:g} s")
    if not 0 <= jitter <= delay:
        raise SpecError(f"--jitter: {jitter:g}: must be 0 up to the delay, {delay:g} s")
    with Fabric(plan_fabric("star", 2, "bridge", _MTU)) as fabric, Workers(fabric) as workers:
        for rate in rates:
            yield workers["s1"].call(hold, rate=rate, seconds=seconds, delay=delay, jitter=jitter)


def hold(context: WorkerContext, rate: int, seconds: float, delay: float, jitter: float) -> Row:
    """Worker call, in a switch: one row of :func:`measure`."""
    source = load("delay_source").delay_source
    source.argtypes = [
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_ulong,
        ctypes.c_long,
        *[ctypes.c_uint64] * 3,
    ]
    source.restype = ctypes.c_long
    port = socket.if_nametoindex(context.switch.ifname(min(context.switch.ports)))
    frame = DelayHeader(port, (1,)).pack() + bytes(12) + _ETHERTYPE.to_bytes(2, "big") + bytes(50)
    count = max(1, round(rate * seconds))
    with DelayLine(_MTU) as line, socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as entrance:
        entrance.bind((ENTRANCE, 0))
        start = time.monotonic()
        sent = source(
            entrance.fileno(),
            frame,
            len(frame),
            count,
            *(round(t * 1e9) for t in (1 / rate, delay, jitter)),
        )
        if sent < 0:
            raise OSError(-sent, f"sendmmsg into {ENTRANCE}: {os.strerror(-sent)}")
        end = time.monotonic()
        deadline = end + delay + jitter + _DRAIN
        while (
            counters := line.counters()
        ).sent + counters.dropped < count and time.monotonic() < deadline:
            time.sleep(0.01)
    return Row(rate, count, end - start, line.counters())
