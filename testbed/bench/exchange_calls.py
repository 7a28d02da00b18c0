"""The part of benches of exchanges that runs in the ranks' workers: inputs, the reference, turns of
timed iterations.
"""

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from testbed.bench.barrier import Barrier
from testbed.bench.row import Turn
from testbed.exchange.halo import Halo
from testbed.exchange.interface import Embeddings, Exchange, ExchangeSpec
from testbed.exchange.options import ExchangeOptions, HaloChoice
from testbed.exchange.registry import open_exchange
from testbed.kernel.syscalls import SyscallCounter
from testbed.worker import WorkerContext

__all__ = [
    "LARGEST",
    "close_rank",
    "count_syscalls",
    "make_rows",
    "open_rank",
    "prepare_case",
    "run_turn",
    "tolerance_of",
]

LARGEST = 100  # magnitude of a value
_LINE = 64  # bytes of a cache line
_NARROW = 0.6 * 2.0**7 / 32767  # slightly more than half a step


@dataclass
class Work:
    """A rank's inputs, the same for all exchanges: two alternate, so that a stale result is
    wrong.
    """

    inputs: tuple[Embeddings, Embeddings]
    out: Embeddings
    exact: NDArray[np.float64]
    tolerance: NDArray[np.float64]


@dataclass
class Bench:
    """What a worker keeps of an exchange between turns."""

    exchange: Exchange
    barrier: Barrier


class Benches(dict[str, Bench]):
    """A worker's exchanges, by name."""


def make_rows(seed: int, vertices: NDArray[np.int64], dim: int) -> Embeddings:
    """Make embeddings: whole numbers from 1 to 100 of either sign, each determined by seed, vertex
    and position.
    """
    mixed: NDArray[np.uint64] = np.empty((len(vertices), dim), np.uint64)
    mixed[:] = (
        vertices.astype(np.uint64)[:, None] * np.uint64(dim)
        + np.arange(dim, dtype=np.uint64)
        + np.uint64(seed)
    )
    mixed *= np.uint64(0x9E3779B97F4A7C15)  # splitmix64's constants
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    magnitudes = (mixed >> np.uint64(40)) % np.uint64(LARGEST) + np.uint64(1)
    return np.where(mixed >> np.uint64(63), np.float32(1), np.float32(-1)) * magnitudes.astype(
        np.float32
    )


def tolerance_of(terms: ExchangeOptions, exchanges: Sequence[str]) -> float:
    """Tolerance per summand. Values are whole numbers, so a sum with one summand too many or too
    few is off by at least 1.
    """
    if "tcp-push-16" in exchanges or (terms.dtype or terms.lanes) == "int16":
        fewer = terms.broadcast == "tokens" and terms.aggregate == "kernel"  # bits: TOKEN_BITS
        return _NARROW * 2 if fewer else _NARROW
    return LARGEST * 2.0**-9 if terms.dtype == "bfloat16" else 1e-4


def prepare_case(
    context: WorkerContext, halo: Halo, dim: int, seed: int, tolerance: float, choice: HaloChoice
) -> None:
    """Make a rank's inputs, and the results that it must get.

    :param halo: Without partial sums.
    :param tolerance: For each summand.
    :param choice: What travels. A partial sum weighs less than twice its number of summands
        (`testbed.exchange.partial_sums`).
    """
    x = make_rows(seed, halo.owned, dim)
    received = make_rows(seed, np.concatenate(halo.sources), dim).astype(np.float64)
    shape = halo.num_owned, halo.num_halo
    exact = csr_array((np.ones(len(halo.indices)), halo.indices, halo.indptr), shape) @ received
    summands = np.diff(halo.indptr)[:, None] * (2 if choice == "cover" else 1)
    inputs = _aligned(x), _aligned(-x)
    context.keep(Work(inputs, _aligned(x), exact, tolerance * (1 + summands)))


def _aligned(x: Embeddings) -> Embeddings:
    """A copy that begins with a cache line, as PyTorch's tensors do; numpy's may begin in its
    middle.
    """
    memory = np.empty(x.nbytes + _LINE, np.uint8)
    first = -memory.ctypes.data % _LINE
    copy = memory[first : first + x.nbytes].view(np.float32).reshape(x.shape)
    copy[:] = x
    return copy


def open_rank(context: WorkerContext, name: str, spec: ExchangeSpec, barrier: str) -> None:
    """Open and connect an exchange in this worker."""
    opened = open_exchange(name, context, spec)
    context.state(Benches)[name] = Bench(
        opened, Barrier(Path(barrier), spec.group.rank, spec.group.size)
    )
    context.resources.callback(close_rank, context, name)
    opened.connect()


def close_rank(context: WorkerContext, name: str) -> None:
    """Close an exchange, if it is open, and release its memory; another one may then be opened
    under the same name.
    """
    if bench := context.state(Benches).pop(name, None):
        bench.exchange.close()


def run_turn(context: WorkerContext, name: str, iterations: int, warmup: int) -> Turn:
    """Run a turn: exchanges with a common start, into an array without earlier results.

    :param warmup: Exchanges before the first timed one.
    """
    bench = context.state(Benches)[name]
    work = context.get(Work)
    aggregate, clock = bench.exchange.aggregate, time.monotonic
    starts, ends = [], []
    gc.collect()
    gc.disable()
    try:
        with bench.barrier as barrier:
            before = bench.exchange.counters()
            for number in range(-warmup, iterations):
                x = work.inputs[number % 2]
                work.out.fill(np.nan)
                barrier.wait()
                if number == 0:
                    before = bench.exchange.counters()
                    barrier.wait()
                starts.append(clock())
                aggregate(x, work.out)
                ends.append(clock())
            barrier.wait()  # so that everything the slowest rank sends is counted
            sent = bench.exchange.counters() - before
    finally:
        gc.enable()
    exact = work.exact if iterations % 2 else -work.exact
    # Not "error > tolerance", because a NaN is wrong, too.
    wrong = int(np.count_nonzero(~(np.abs(work.out - exact) <= work.tolerance)))
    return Turn(tuple(starts[warmup:]), tuple(ends[warmup:]), sent, wrong)


def count_syscalls(context: WorkerContext, name: str) -> int:
    """Count the system calls of one exchange, of all threads of this process; nothing is timed."""
    bench = context.state(Benches)[name]
    work = context.get(Work)
    with bench.barrier as barrier, SyscallCounter() as counter:
        barrier.wait()
        before = counter.read()
        bench.exchange.aggregate(work.inputs[0], work.out)
        return counter.read() - before
