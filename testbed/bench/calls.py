"""What runs in the ranks' workers: inputs, the float64 reference, turns of timed iterations."""

import gc
import mmap
import os
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.bench.barrier import Barrier
from testbed.bench.operations import ALL_REDUCE, Operation
from testbed.bench.row import Turn
from testbed.collectives.registry import open_backend
from testbed.comm.backend import Backend, Tensor, sum_bound
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
    operation: Operation = ALL_REDUCE
    op: str = "sum"
    dtype: str = "float32"
    source: Tensor = field(default_factory=lambda: np.empty(0, np.float32))
    buffer: Tensor = field(default_factory=lambda: np.empty(0, np.float32))
    reference: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


class Benches(dict[str, Bench]):
    """A worker's backends, by what they are called here."""


REDUCE: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "avg": np.add,
    "min": np.minimum,
    "max": np.maximum,
}


INTEGERS = {"int32": 1 << 26, "int64": 1 << 46}
"""Bounds of inputs that are integers: more than a float32 holds, and sums over 32 ranks fit into
the type, and into the reference's float64.
"""


def make_input(seed: int, rank: int, first: int, count: int, dtype: str = "float32") -> Tensor:
    """Draw a part of a rank's tensor: standard normal, or integers of equal probability; the same
    values however it is divided.

    :param first: First element, a multiple of `BLOCK`.
    """
    out = np.empty(count, dtype)
    for start in range(0, count, BLOCK):
        generator = np.random.default_rng([seed, rank, (first + start) // BLOCK])
        # A whole block always: the generator's draws depend on how many are asked for at once.
        if bound := INTEGERS.get(dtype):
            drawn: Tensor = generator.integers(-bound, bound, BLOCK)
        else:
            drawn = generator.standard_normal(
                BLOCK, out.dtype if dtype == "float64" else np.float32
            )
        out[start : start + BLOCK] = drawn[: count - start]
    return out


def open_rank(
    context: WorkerContext,
    name: str,
    spec: GroupSpec,
    barrier: str,
    backend: str | None = None,
    patience: float = 60.0,
    operation: Operation = ALL_REDUCE,
    op: str = "sum",
    dtype: str = "float32",
) -> None:
    """Open and connect a backend in this worker.

    :param name: What it is called here.
    :param backend: Its name in the registry, where that is another.
    :param patience: Seconds to wait at the barrier.
    :param operation: What is measured.
    :param op: How it reduces values.
    :param dtype: Their type.
    """
    opened = context.resources.enter_context(open_backend(backend or name, context, spec))
    context.state(Benches)[name] = Bench(
        opened, Barrier(Path(barrier), spec.rank, spec.size, patience), operation, op, dtype
    )
    opened.connect()


def close_rank(context: WorkerContext, name: str) -> None:
    """Close a backend; another may be opened by the same name."""
    context.state(Benches).pop(name).backend.close()


def prepare_size(
    context: WorkerContext, name: str, count: int, seed: int, reference: str, fill: bool
) -> float:
    """Make this rank's tensor, and its share of the reference: the float64 sum, or all ranks'
    values, in a file that all share.

    :param fill: Whether the reference is still to be made (by the ranks of the first backend).
    :returns: The largest magnitude of any rank's element in this rank's share.
    """
    bench = context.state(Benches)[name]
    spec = bench.backend.spec
    bench.source = make_input(seed, spec.rank, 0, count, bench.dtype)
    bench.buffer = np.zeros_like(bench.source)
    bench.reference = _shared(Path(reference), count)
    absmax = 0.0
    if not bench.operation.reduces:
        own = bench.operation.own(bench.source, spec.rank, spec.size)
        if bench.operation.rooted and spec.rank:
            own = slice(0, 0)
        if fill:
            bench.reference[own] = bench.source[own]
        alien = np.nan if bench.source.dtype.kind == "f" else np.iinfo(bench.dtype).min
        bench.source[: own.start] = bench.source[own.stop :] = alien
        return absmax
    for first in range(spec.rank * BLOCK, count if fill else 0, spec.size * BLOCK):
        share = bench.reference[first : first + BLOCK]
        for rank in range(spec.size):
            part = make_input(seed, rank, first, len(share), bench.dtype)
            absmax = max(absmax, float(np.abs(part).max()))
            share[:] = REDUCE[bench.op](share, part) if rank else part
        if bench.op == "avg":
            share /= spec.size
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
    context: WorkerContext,
    name: str,
    iterations: int,
    warmup: int,
    absmax: float | None,
    in_place: bool = True,
) -> Turn:
    """Do a turn: collectives, each from a fresh input and a common start.

    :param warmup: Collectives before the first that counts.
    :param absmax: Largest magnitude of any rank's element, for the bound of the check; None checks
        nothing.
    :param in_place: Whether the result replaces the input, or goes to memory of its own.
    """
    bench = context.state(Benches)[name]
    source = bench.buffer if in_place else bench.source
    operate = partial(bench.operation.run, bench.backend, source, bench.buffer, bench.op)
    clock = time.monotonic
    starts, ends = [], []
    with bench.barrier as barrier, _collector_off():
        for _ in range(warmup):
            np.copyto(bench.buffer, bench.source)
            barrier.wait()
            operate()
        before = bench.backend.counters()
        for _ in range(iterations):
            np.copyto(bench.buffer, bench.source)
            barrier.wait()
            starts.append(clock())
            operate()
            ends.append(clock())
            # A rank that is done must not copy its next input while others still reduce: it would
            # take their CPU, within their time. And all that the last rank has sent is counted.
            barrier.wait()
        sent = bench.backend.counters() - before
    wrong = 0 if absmax is None else _wrong(bench, absmax)
    return Turn(tuple(starts), tuple(ends), sent, wrong)


def copy_turn(context: WorkerContext, name: str, iterations: int) -> Turn:
    """Copy the input to the buffer that collectives work on, all ranks at once: what reading and
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


def _wrong(bench: Bench, absmax: float) -> int:
    spec, operation, wrong = bench.backend.spec, bench.operation, 0
    bound = _bound(bench, absmax)
    output = operation.output(bench.buffer, spec.rank, spec.size)
    found, expected = bench.buffer[output], bench.reference[output]
    for first in range(0, len(found), BLOCK):
        part = slice(first, first + BLOCK)
        # Not "error > bound": a NaN is wrong, too.
        wrong += int(np.count_nonzero(~(np.abs(found[part] - expected[part]) <= bound)))
    return wrong


def _bound(bench: Bench, absmax: float) -> float:
    """Largest difference of a right result from the reference."""
    spec, kind = bench.backend.spec, bench.source.dtype
    if not bench.operation.reduces or bench.op in ("min", "max") or kind.kind != "f":
        return 0.0  # nothing is rounded
    if bench.dtype == "float32":
        bound = bench.backend.error_bound(absmax)
    else:
        # The reference is a sum of float64, too.
        bound = sum_bound(absmax, spec.size, kind) + sum_bound(absmax, spec.size, np.float64)
    if bench.op == "avg":
        bound = bound / spec.size + absmax * float(np.finfo(kind).eps) / 2
    return bound


def count_syscalls(context: WorkerContext, name: str) -> int:
    """Count the system calls of one collective, of all threads of this process;
    nothing is timed.
    """
    bench = context.state(Benches)[name]
    with bench.barrier as barrier, SyscallCounter() as counter:
        read: Callable[[], int] = counter.read
        np.copyto(bench.buffer, bench.source)
        barrier.wait()
        before = read()
        bench.operation.run(bench.backend, bench.buffer, bench.buffer, bench.op)
        return read() - before
