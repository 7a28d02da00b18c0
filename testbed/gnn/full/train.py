"""Full-graph training of one rank: forward and backward with the others' vertices, summing
gradients over ranks, update.

The loss is the mean over all training vertices of the graph, and dropout depends only on vertices.
So the ranks together train as one process with the whole graph would, except for the order in which
floats are added.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from testbed.core.errors import TestbedError
from testbed.exchange.interface import PHASES
from testbed.gnn.full.channel import Channel
from testbed.gnn.full.meter import Meter
from testbed.gnn.full.model import FullModel
from testbed.gnn.full.part import Part
from testbed.gnn.models import MODELS
from testbed.gnn.options import ModelSpec, TrainingSpec
from testbed.gnn.result import FullResult
from testbed.gnn.weights import digest, flatten
from testbed.kernel.syscalls import SyscallCounter

__all__ = ["FULL_PHASES", "FullTrainer"]

FULL_PHASES = ("forward", "backward", *PHASES, "all_reduce", "update", "other")
"""The parts of an epoch's time."""


class FullTrainer:
    """One rank's model and optimizer.

    :param part: The rank's part of the graph.
    :param num_classes: Logits a vertex.
    :param seed: The same on all ranks.
    """

    def __init__(
        self, part: Part, num_classes: int, model: ModelSpec, training: TrainingSpec, seed: int
    ) -> None:
        torch.set_num_threads(1)  # ranks share the machine's cores
        self.part = part
        self.training = training
        self.model = FullModel(model, part, num_classes, seed)
        decayed = self.model.layers[0] if MODELS[model.name].decays_first else self.model
        self._decayed = sum(
            parameter.numel() for parameter in decayed.parameters()
        )  # they come first
        self.weights = flatten(self.model.parameters())
        assert self.weights.grad is not None
        self.gradient = self.weights.grad
        make: Any = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[training.optimizer]
        self.optimizer = make([self.weights], lr=training.learning_rate, fused=True)
        self._seconds: dict[str, float] = {}

    def warm_up(self) -> None:
        """Compute and discard a gradient from this rank's vertices alone, so that no epoch pays
        one-time costs.
        """
        self.model.join(Channel(), Meter())
        self.loss().backward()  # type: ignore[no-untyped-call]

    def loss(self) -> torch.Tensor:
        """Return this rank's summand of the mean cross-entropy over all training vertices; a
        collective.
        """
        train = self.part.sets["train"]
        logits = self.model.train()(self.part.x)[train]
        return (
            functional.cross_entropy(logits, self.part.y[train], reduction="sum")
            / self.part.sizes["train"]
        )

    def epoch(
        self, channel: Channel, epoch: int, calls: SyscallCounter | None = None
    ) -> FullResult:
        """Train for one epoch, then evaluate; a collective. Epochs must be trained in order, from
        0.

        :param channel: The connections to the other ranks.
        :param calls: Counts system calls; the result then has the counts, but its times are
            meaningless.
        :raises TestbedError: The loss is not finite.
        :raises CollectiveError: A collective could not complete.
        """
        meter = Meter(calls)
        self.model.join(channel, meter)
        self.model.begin(epoch)
        seconds, measures, counters = channel.seconds(), channel.measures(), channel.counters()
        started = time.perf_counter()
        with self._timed("forward", meter):
            loss = self.loss()
        mean = self._mean(float(loss.detach()), epoch)
        with self._timed("backward", meter):
            self.gradient.zero_()
            loss.backward()  # type: ignore[no-untyped-call]
        exchanged = meter.seconds
        if channel.backend:
            buffer = self.gradient.numpy()
            with meter.collective():
                channel.backend.all_reduce(buffer, buffer)
        with self._timed("update", meter):
            self.update()
        total = time.perf_counter() - started

        times = dict(self._seconds)
        times |= {phase: value - seconds[phase] for phase, value in channel.seconds().items()}
        times["all_reduce"] = meter.seconds - exchanged
        times["other"] = total - sum(times.values())
        times |= {
            "epoch_time": total,
            "communication_time": meter.seconds,
            "communication_cpu_time": meter.cpu,
        }
        sent = channel.counters() - counters
        counts: dict[str, float] = {"steps": 1, **asdict(sent)}
        counts |= {name: value - measures[name] for name, value in channel.measures().items()}
        if calls:
            counts |= {"syscalls": meter.syscalls, "page_faults": meter.page_faults}
        entered, left = np.asarray(meter.entered), np.asarray(meter.left)
        started = time.perf_counter()
        right = self.evaluate()
        times["validation_time"] = time.perf_counter() - started
        sets, sizes = self.part.sets, self.part.sizes
        return FullResult(
            epoch=epoch,
            loss=mean,
            share=len(sets["train"]) / sizes["train"],
            val_correct=right["val"],
            val_total=len(sets["val"]),
            test_correct=right["test"],
            test_total=len(sets["test"]),
            digest=digest(self.weights),
            times=times,
            entered=entered,
            left=left,
            counts=counts,
        )

    def update(self) -> None:
        """Take the summed gradient's step, with L2 regularisation where weights decay."""
        if decay := self.training.weight_decay:
            decayed = slice(0, self._decayed)
            self.gradient[decayed].add_(self.weights.detach()[decayed], alpha=decay)
        self.optimizer.step()

    @torch.no_grad()
    def evaluate(self) -> dict[str, int]:
        """Return how many of this rank's vertices of each set are classified correctly, from whole
        neighbourhoods; a collective.
        """
        answers = self.model.eval()(self.part.x).argmax(1)
        right = answers == self.part.y
        return {name: int(right[positions].sum()) for name, positions in self.part.sets.items()}

    def _mean(self, summand: float, epoch: int) -> float:
        """Return this rank's own mean loss, checked."""
        if not math.isfinite(summand):
            raise TestbedError(
                f"training: the loss of rank {self.part.rank} is {summand} in epoch {epoch}: "
                f"training.learning_rate = {self.training.learning_rate} may be too large"
            )
        return summand * self.part.sizes["train"] / max(len(self.part.sets["train"]), 1)

    @contextmanager
    def _timed(self, phase: str, meter: Meter) -> Iterator[None]:
        """Time a phase, without collectives."""
        started, before = time.perf_counter(), meter.seconds
        yield
        self._seconds[phase] = time.perf_counter() - started - (meter.seconds - before)
