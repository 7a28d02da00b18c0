"""What runs in the ranks' workers: inputs, the float64 reference, turns of timed iterations."""

import gc
import mmap
import os
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.bench.barrier import Barrier
from testbed.bench.row import Turn
from testbed.collectives.registry import open_backend
from testbed.comm.backend import Backend, Tensor
from testbed.comm.collective import Counters
from testbed.comm.group import GroupSpec
from testbed.kernel.syscalls import SyscallCounter
from testbed.worker import WorkerContext

__all__ = [
    "close_rank",
    "copy_turn",
    "count_syscalls",
    "make_input",
    "open_rank",
    "prepare_size",
    "run_turn",
]

BLOCK = 1 << 16  # elements per draw of the generator


@dataclass
class Bench:
    """What a worker keeps of a backend between turns."""

    backend: Backend
    barrier: Barrier
    source: Tensor = field(default_factory=lambda: np.empty(0, np.float32))
    buffer: Tensor = field(default_factory=lambda: np.empty(0, np.float32))
    reference: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


class Benches(dict[str, Bench]):
    """A worker's backends, by what they are called here."""


def make_input(seed: int, rank: int, first: int, count: int) -> Tensor:
    """Draw a part of a rank's tensor: standard normal, the same values however it is divided.

    :param first: First element, a multiple of `BLOCK`.
    """
    out = np.empty(count, np.float32)
    for start in range(0, count, BLOCK):
        generator = np.random.default_rng([seed, rank, (first + start) // BLOCK])
        # A whole block always: the generator's draws depend on how many are asked for at once.
        out[start : start + BLOCK] = generator.standard_normal(BLOCK, np.float32)[: count - start]
    return out


def open_rank(
    context: WorkerContext,
    name: str,
    spec: GroupSpec,
    barrier: str,
    backend: str | None = None,
    patience: float = 60.0,
) -> None:
    """Open and connect a backend in this worker.

    :param name: What it is called here.
    :param backend: Its name in the registry, where that is another.
    :param patience: Seconds to wait at the barrier.
    """
    opened = context.resources.enter_context(open_backend(backend or name, context, spec))
    context.state(Benches)[name] = Bench(
        opened, Barrier(Path(barrier), spec.rank, spec.size, patience)
    )
    opened.connect()


def close_rank(context: WorkerContext, name: str) -> None:
    """Close a backend; another may be opened by the same name."""
    context.state(Benches).pop(name).backend.close()


def prepare_size(
    context: WorkerContext, name: str, count: int, seed: int, reference: str, fill: bool
) -> float:
    """Make this rank's tensor, and its share of the reference: the float64 sum, in a file that all
    share.

    :param fill: Whether the reference is still to be made (by the ranks of the first backend).
    :returns: The largest magnitude of any rank's element in this rank's share.
    """
    bench = context.state(Benches)[name]
    spec = bench.backend.spec
    bench.source = make_input(seed, spec.rank, 0, count)
    bench.buffer = np.zeros_like(bench.source)
    bench.reference = _shared(Path(reference), count)
    absmax = 0.0
    for first in range(spec.rank * BLOCK, count if fill else 0, spec.size * BLOCK):
        share = bench.reference[first : first + BLOCK]
        share[:] = 0
        for rank in range(spec.size):
            part = make_input(seed, rank, first, len(share))
            absmax = max(absmax, float(np.abs(part).max()))
            share += part
    return absmax


def _shared(path: Path, count: int) -> NDArray[np.float64]:
    if not count:
        return np.empty(0)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, count * 8)
        return np.frombuffer(mmap.mmap(descriptor, count * 8), np.float64)
    finally:
        os.close(descriptor)


@contextmanager
def _collector_off() -> Any:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def run_turn(
    context: WorkerContext, name: str, iterations: int, warmup: int, absmax: float | None
) -> Turn:
    """Do a turn: all-reduces in place, each from a fresh input and a common start.

    :param warmup: All-reduces before the first that counts.
    :param absmax: Largest magnitude of any rank's element, for the bound of the check; None checks
        nothing.
    """
    bench = context.state(Benches)[name]
    all_reduce, clock = bench.backend.all_reduce, time.monotonic
    starts, ends = [], []
    with bench.barrier as barrier, _collector_off():
        for _ in range(warmup):
            np.copyto(bench.buffer, bench.source)
            barrier.wait()
            all_reduce(bench.buffer, bench.buffer)
        before = bench.backend.counters()
        for _ in range(iterations):
            np.copyto(bench.buffer, bench.source)
            barrier.wait()
            starts.append(clock())
            all_reduce(bench.buffer, bench.buffer)
            ends.append(clock())
        barrier.wait()  # so that everything the last rank has sent is counted
        sent = bench.backend.counters() - before
    wrong = 0 if absmax is None else _wrong(bench, bench.backend.error_bound(absmax))
    return Turn(tuple(starts), tuple(ends), sent, wrong)


def copy_turn(context: WorkerContext, name: str, iterations: int) -> Turn:
    """Copy the input to the buffer that all-reduces work on, all ranks at once: what reading and
    writing a tensor once takes on this machine.
    """
    bench = context.state(Benches)[name]
    starts, ends, clock = [], [], time.monotonic
    with bench.barrier as barrier, _collector_off():
        for _ in range(iterations):
            barrier.wait()
            starts.append(clock())
            np.copyto(bench.buffer, bench.source)
            ends.append(clock())
    return Turn(tuple(starts), tuple(ends), Counters(), 0)


def _wrong(bench: Bench, bound: float) -> int:
    wrong = 0
    for first in range(0, len(bench.buffer), BLOCK):
        part = slice(first, first + BLOCK)
        # Not "error > bound": a NaN is wrong, too.
        wrong += int(
            np.count_nonzero(~(np.abs(bench.buffer[part] - bench.reference[part]) <= bound))
        )
    return wrong


def count_syscalls(context: WorkerContext, name: str) -> int:
    """Count the system calls of one all-reduce, of all threads of this process;
    nothing is timed.
    """
    bench = context.state(Benches)[name]
    with bench.barrier as barrier, SyscallCounter() as counter:
        read: Callable[[], int] = counter.read
        np.copyto(bench.buffer, bench.source)
        barrier.wait()
        before = read()
        bench.backend.all_reduce(bench.buffer, bench.buffer)
        return read() - before
