"""The worker's side."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.collectives.registry import open_backend
from testbed.comm.backend import PHASES, Backend
from testbed.comm.group import GroupSpec
from testbed.worker import WorkerContext
from testbed.workloads.calls import closing

__all__ = ["open_rank", "seed", "work"]


@dataclass
class State:
    """What a rank keeps between calls."""

    seed: int = 0
    backend: Backend | None = None


@dataclass(frozen=True)
class Epoch:
    """A rank's measurements of an epoch; see `testbed.workloads.measures.RankEpoch`."""

    epoch: int
    times: dict[str, float]
    entered: NDArray[np.float64]
    left: NDArray[np.float64]
    counts: dict[str, float]


def seed(context: WorkerContext, seed: int) -> None:
    """Begin a trial."""
    context.state(State).seed = seed


def open_rank(context: WorkerContext, backend: str, group: GroupSpec) -> None:
    """Open a backend and meet the other ranks."""
    opened = context.state(State).backend = closing(context).enter_context(
        open_backend(backend, context, group)
    )
    opened.connect()


def work(context: WorkerContext, epoch: int, sums: int, elements: int) -> Epoch:
    """Sum and check, several times."""
    state = context.state(State)
    assert state.backend
    backend, spec = state.backend, state.backend.spec
    begun, phases, sent = time.monotonic(), dict(backend.phases), backend.counters()
    spent, cpu, entered, left, wrong = {"drawing": 0.0, "checking": 0.0}, 0.0, [], [], 0
    for number in range(sums):
        started = time.monotonic()
        draws = (
            np.random.default_rng([state.seed, epoch, number, rank]) for rank in range(spec.size)
        )
        inputs = [draw.integers(-9, 10, elements) for draw in draws]
        tensor = inputs[spec.rank].astype(np.float32)
        spent["drawing"] += time.monotonic() - started
        entered.append(time.monotonic())
        used = time.process_time()
        result = backend.all_reduce(tensor)
        cpu += time.process_time() - used
        left.append(time.monotonic())
        wrong += int(
            np.count_nonzero(np.abs(result - np.sum(inputs, axis=0)) > backend.error_bound(9.0))
        )
        spent["checking"] += time.monotonic() - left[-1]
    whole = time.monotonic() - begun
    parts = {name: backend.phases[name] - phases[name] for name in PHASES} | spent
    times = {**parts, "other": whole - sum(parts.values()), "epoch_time": whole}
    times |= {
        "communication_time": float(np.sum(np.subtract(left, entered))),
        "communication_cpu_time": cpu,
    }
    counts: dict[str, float] = {"steps": sums, **asdict(backend.counters() - sent)}
    counts |= {"wrong_numbers": wrong, "right_sums": sums - bool(wrong)}
    return Epoch(epoch, times, np.array(entered), np.array(left), counts)
