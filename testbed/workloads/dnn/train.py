"""One rank's steps: forward, backward with a bucket summed as soon as it is complete, update."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict

import numpy as np
import torch
from numpy.typing import NDArray

from testbed.comm.backend import PHASES, Backend
from testbed.core.errors import CollectiveError
from testbed.gnn.weights import digest
from testbed.workloads.dnn.buckets import Bucket, work_of
from testbed.workloads.dnn.epoch import DNNEpoch
from testbed.workloads.dnn.gradient import BLOCK, draw, fill, shift_of
from testbed.workloads.dnn.matrix_work import Work
from testbed.workloads.dnn.scenario import DNNTable

__all__ = ["Trainer"]

LEARNING_RATE = 0.01


class Trainer:
    """One rank's gradient, weights and work.

    The gradient holds known numbers in place of those of a real backward pass: they are written at
    the same times and in the same order, and their sums can be checked. It is one vector in the
    order in which backward computes it, so that each bucket is a slice that is summed in place.

    :param units: Matrix multiplications of a step.
    """

    def __init__(self, table: DNNTable, units: int, rank: int, world: int, seed: int) -> None:
        self.table, self.rank, self.world, self.seed = table, rank, world, seed
        layers = table.architecture.layers
        forward = units // 3
        amounts = [layer.macs for layer in layers]
        self._forward = work_of(amounts, forward)
        self._backward = work_of(amounts[::-1], units - forward)  # twice the products of forward
        sizes = [sum(layer.tensors) for layer in reversed(layers)]
        self._ends = np.cumsum(sizes).tolist()
        self._buckets: Sequence[Bucket] = table.buckets
        self._work = Work()
        self._weights = torch.zeros(table.architecture.parameters)
        self._gradient = torch.zeros(table.architecture.parameters)
        self._vector: NDArray[np.float32] = self._gradient.numpy()
        self._draws = [draw(seed, each) for each in range(world)]

    def epoch(
        self, backend: Backend, epoch: int, on_step: Callable[[int, int], None] = lambda *_: None
    ) -> DNNEpoch:
        """Train for an epoch; a collective.

        :raises CollectiveError: A collective could not complete, or a sum is wrong.
        """
        spent = dict.fromkeys(("forward", "backward", "exposed", "update"), 0.0)
        phases, counters = dict(backend.phases), backend.counters()
        spans: list[tuple[float, float]] = []
        begun, used = time.monotonic(), _communicating()
        # A backend is used by one thread at a time: this one, from here to the end of the epoch.
        with ThreadPoolExecutor(1, "all-reduce") as thread:
            try:
                for step in range(self.table.steps):
                    shift = shift_of(epoch * self.table.steps + step)
                    spans += self._step(backend, thread, shift, spent)
                    on_step(step + 1, self.table.steps)
            except BaseException:
                thread.shutdown(wait=False, cancel_futures=True)  # each would wait for its timeout
                raise
        whole, used = time.monotonic() - begun, _communicating() - used
        self._check(backend, shift)
        entered, left = np.array(spans).T
        times = {**spent, "other": whole - sum(spent.values()), "epoch_time": whole}
        times |= {phase: backend.phases[phase] - phases[phase] for phase in PHASES}
        times |= {
            "communication_time": float(np.sum(left - entered)),
            "communication_cpu_time": used,
        }
        sent = backend.counters() - counters
        counts: dict[str, float] = {"steps": self.table.steps, **asdict(sent)}
        return DNNEpoch(epoch, times, entered, left, counts, digest(self._weights))

    def _step(
        self, backend: Backend, thread: ThreadPoolExecutor, shift: int, spent: dict[str, float]
    ) -> list[tuple[float, float]]:
        marks = [time.monotonic()]
        for units in self._forward:
            self._work.do(units)
        marks.append(time.monotonic())
        summed: list[Future[tuple[float, float]]] = []
        waiting, done = list(self._buckets), 0
        for units, end in zip(self._backward, self._ends, strict=True):
            self._work.do(units)
            self._fill(done, end, shift)
            done = end
            while self.table.overlap and waiting and waiting[0].end <= done:
                summed.append(thread.submit(self._reduce, backend, waiting.pop(0)))
        marks.append(time.monotonic())
        summed += [thread.submit(self._reduce, backend, bucket) for bucket in waiting]
        spans = [each.result() for each in summed]
        marks.append(time.monotonic())
        self._weights.add_(self._gradient, alpha=-LEARNING_RATE / self.world)
        marks.append(time.monotonic())
        for name, seconds in zip(spent, np.diff(marks), strict=True):
            spent[name] += float(seconds)
        return spans

    def _fill(self, start: int, end: int, shift: int) -> None:
        """Write this rank's numbers."""
        fill(self._vector[start:end], self._draws[self.rank], start, end, shift)

    def _reduce(self, backend: Backend, bucket: Bucket) -> tuple[float, float]:
        """Sum a bucket; return when this rank entered and left."""
        view = self._vector[bucket.start : bucket.end]
        entered = time.monotonic()
        backend.all_reduce(view, out=view)
        return entered, time.monotonic()

    def _check(self, backend: Backend, shift: int) -> None:
        """Compare every sum of the last step with what it must be."""
        sums = np.sum(np.asarray(self._draws, np.float64), axis=0)
        bound = backend.error_bound(max(float(np.abs(draw).max()) for draw in self._draws))
        for start in range(0, len(self._vector), BLOCK):
            place, part = (start + shift) % BLOCK, self._vector[start : start + BLOCK]
            errors = np.abs(part - sums[place : place + len(part)])
            if not errors.max() <= bound:  # NaN is wrong as well
                raise CollectiveError(
                    f"{backend.name}: element {start + int(errors.argmax())} of rank {self.rank}'s"
                    f" summed gradient is off by {errors.max():g}: must be at most {bound:g}"
                )


def _communicating() -> float:
    """CPU time of all threads but this one, which computes: of the one that sums, and of those of
    its library, such as gloo's.
    """
    return time.process_time() - time.thread_time()
