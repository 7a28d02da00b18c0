"""``testbed calibrate``: what this machine's CPUs cost, by benches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from testbed.bench import allreduce
from testbed.collectives.ring.layout import CHECK_BYTES, Layout, chunk_bytes_for
from testbed.comm.lanes import NativeLanes
from testbed.comm.options import CollectiveOptions
from testbed.host.machine import describe
from testbed.kernel.abi import dtype
from testbed.plan import plan_fabric
from testbed.protocol.lanes import Lanes
from testbed.sim.calibration import Calibration
from testbed.sim.train_ring import TrainRing

__all__ = ["calibrate", "text_lines"]

RANKS = 4
SIZE = 4 << 20
"""Bytes of the tensors: so many that CPUs limit, and few enough to stay in the cache."""
MTUS = (600, 1000, 1500, 2500, 3498)
"""Frames of one linear part."""
_REPEATS = 5
_CALLS = 20_000
_TURNS = 2_000
_COLLECTIVE = CollectiveOptions(lanes="int16", affinity="rank", window=16)


@dataclass(frozen=True)
class _Point:
    mtu: int
    length: int
    hops: int
    seconds: float


def calibrate(iterations: int, progress: Callable[[str], None]) -> Calibration:
    """Measure the costs. Takes some seconds; other work on the machine makes them larger.

    :param iterations: All-reduces for each MTU.
    :param progress: Called with what is measured next.
    """
    progress("system call")
    syscall = _syscall()
    progress("wake-up")
    wakeup = max(0.0, _one_way() - 2 * syscall)
    progress("quantizing")
    prepare = _prepare()
    cores = len(os.sched_getaffinity(0))
    points = []
    for mtu in MTUS:
        progress(f"hops with MTU {mtu}")
        points.append(_hops(mtu, iterations))
    # All CPUs are busy all the time: with hops, and with quantizing and dequantizing.
    lanes = SIZE // 4 * 2
    spent = [(cores * p.seconds - 2 * RANKS * prepare * lanes) / p.hops for p in points]
    slope, offset = np.polyfit([p.length for p in points], spent, 1)
    found = Calibration(
        frame=max(0.0, float(offset)),
        byte=max(0.0, float(slope)),
        wakeup=wakeup,
        syscall=syscall,
        prepare=prepare,
        cores=cores,
        points=[],
        provenance={"time": datetime.now(UTC).isoformat(timespec="seconds"), **describe()},
    )
    return found.model_copy(update={"points": [_compared(p, found) for p in points]})


def _compared(point: _Point, found: Calibration) -> dict[str, Any]:
    """A point with what the simulator says about it."""
    plan = plan_fabric(hosts=RANKS, mtu=point.mtu)
    ring = TrainRing(plan, found.hardware, _COLLECTIVE, SIZE // 4)
    return {
        "ranks": RANKS,
        "size": SIZE,
        "mtu": point.mtu,
        "hops": point.hops,
        "measured_seconds": point.seconds,
        "simulated_seconds": ring.run(),
    }


def _hops(mtu: int, iterations: int) -> _Point:
    """The ring in the kernel with frames of one length."""
    options = allreduce.Options(
        plan=plan_fabric(hosts=RANKS, mtu=mtu),
        backends=("xdp-ring",),
        sizes=(SIZE,),
        iterations=iterations,
        warmup=3,
        check=False,
        collective=_COLLECTIVE,
    )
    with allreduce.Session(options) as session:
        (row,) = session.run(lambda _: None)
    layout = Layout.plan(SIZE // 4, Lanes(16, RANKS), chunk_bytes_for(mtu))
    return _Point(mtu, layout.length, 2 * (RANKS - 1) * layout.total, median(row.times))


def _syscall() -> float:
    """Seconds of getppid(2), without the call from Python."""
    return max(0.0, _per_call(os.getppid) - _per_call(float))


def _per_call(function: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        for _ in range(_CALLS):
            function()
        best = min(best, time.perf_counter() - begin)
    return best / _CALLS


@contextmanager
def _echo(to: int, back: int) -> Iterator[None]:
    """A process that answers each event."""
    child = os.fork()
    if not child:
        try:
            while os.eventfd_read(to) < 2:
                os.eventfd_write(back, 1)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.eventfd_write(to, 2)
        os.waitpid(child, 0)


def _one_way() -> float:
    """Seconds from a write to the process that wakes up by it: half of a median turn."""
    to, back = os.eventfd(0), os.eventfd(0)
    try:
        with _echo(to, back):
            times = [time.perf_counter()]
            for _ in range(_TURNS):
                os.eventfd_write(to, 1)
                os.eventfd_read(back)
                times.append(time.perf_counter())
    finally:
        os.close(to)
        os.close(back)
    return median(after - before for before, after in pairwise(times)) / 2


def _prepare() -> float:
    """Seconds for each byte of lanes that native code quantizes."""
    lanes, chunk = Lanes(16, RANKS), chunk_bytes_for(1500)
    per_chunk = (chunk - CHECK_BYTES) // lanes.bytes
    count = SIZE // 4 // per_chunk * per_chunk
    values = np.random.default_rng(0).standard_normal(count).astype(np.float32)
    chunks = count // per_chunk
    out = np.zeros(chunks * chunk, np.uint8)
    records = np.zeros(chunks, dtype("ring_chunk"))
    native = NativeLanes(lanes)
    best = float("inf")
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        native.quantize(
            values.ctypes.data,
            count,
            out.ctypes.data,
            chunk,
            per_chunk,
            records.ctypes.data,
            3,
        )
        best = min(best, time.perf_counter() - begin)
    return best / (count * lanes.bytes)


def text_lines(found: Calibration) -> Sequence[str]:
    """The costs for people, and how well they explain what was measured."""
    lines = [
        f"hop       {found.frame * 1e9:8.0f} ns, and {found.byte * 1e9:.3f} ns per byte",
        f"wake-up   {found.wakeup * 1e9:8.0f} ns",
        f"syscall   {found.syscall * 1e9:8.0f} ns",
        f"prepare   {found.prepare * 1e9:8.3f} ns per byte of lanes",
    ]
    for point in found.points:
        measured, simulated = point["measured_seconds"], point["simulated_seconds"]
        lines.append(
            f"MTU {point['mtu']:>5} {measured * 1e3:8.3f} ms measured,"
            f" {simulated * 1e3:.3f} ms simulated ({simulated / measured - 1:+.1%})"
        )
    return lines
