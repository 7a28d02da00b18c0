"""Data-parallel training of one rank: sample, forward, backward, sum gradients over ranks, update.

All ranks start from the same weights and apply the same mean gradient, so their weights stay equal
bit for bit. Minibatches and dropout depend only on (seed, epoch, step, rank), not on the backend;
what a vertex draws only on seed and epoch.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from testbed.comm.backend import PHASES, Backend
from testbed.core.errors import TestbedError
from testbed.core.registry import load
from testbed.gnn.graph import GraphData
from testbed.gnn.models import MODELS
from testbed.gnn.options import MinibatchSpec, SampledModelSpec
from testbed.gnn.result import EpochResult, share_of
from testbed.gnn.sampling import Sampler, key_of, shares
from testbed.gnn.weights import Gradients, digest, give
from testbed.host.estimates import VALIDATION_BATCH

__all__ = [
    "DROPOUT",
    "MINIBATCH",
    "OWN_PHASES",
    "SHUFFLE",
    "TEST",
    "VALIDATION",
    "Minibatches",
    "Trainer",
]

OWN_PHASES = ("sampling", "forward", "backward", "update")

# The purposes of generators, so that no two draws share a stream.
SHUFFLE, MINIBATCH, DROPOUT, VALIDATION, TEST = range(5)


class Minibatches(ABC):
    """One rank's model, optimizer and share of the samples, whatever they are.

    :param model: With the initial weights, the same on all ranks.
    :param rank: This rank; `world`: the number of ranks.
    :param seed: The same on all ranks.
    :cvar tells_use: Whether a step may leave parameters out.
    """

    tells_use: ClassVar[bool] = False

    def __init__(
        self, model: Any, training: MinibatchSpec, rank: int, world: int, seed: int
    ) -> None:
        self.model = model
        self.training = training
        self.rank = rank
        self.world = world
        self.seed = seed
        trained = [each for each in model.parameters() if each.requires_grad]
        self.gradients = Gradients(trained, self.tells_use)
        make: Any = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[training.optimizer]
        self.optimizer = make(
            trained,
            lr=training.learning_rate,
            weight_decay=training.weight_decay,
            fused=True,
        )
        self._seconds: dict[str, float] = {}

    @property
    def weights(self) -> torch.Tensor:
        """All trained parameters one after the other: a copy."""
        return torch.cat([each.detach().reshape(-1) for each in self.gradients.parameters])

    @property
    def capacity(self) -> int:
        """Elements that are summed after a step."""
        return self.gradients.vector.numel()

    def rng(
        self, purpose: int, epoch: int, step: int = 0, rank: int | None = None
    ) -> np.random.Generator:
        """Return the generator for a purpose; without a rank it is the same on all ranks."""
        return np.random.default_rng(
            [self.seed, purpose, epoch, step, 0 if rank is None else rank + 1]
        )

    @abstractmethod
    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return this rank's batches in an epoch; all ranks have the same number of batches, of
        equal sizes.
        """

    @abstractmethod
    def loss(self, epoch: int, step: int, seeds: NDArray[np.int64]) -> torch.Tensor:
        """Return the mean loss of a batch, ready for backward."""

    @abstractmethod
    def validate(self, epoch: int) -> tuple[int, int]:
        """Return the numbers of correct and of all predictions for this rank's share of the
        validation set.
        """

    @abstractmethod
    def test_accuracy(self) -> float | None:
        """Return the accuracy on the test set; None if it is empty."""

    def begin(self, backend: Backend) -> None:
        """Do what has to be done together before the first epoch: nothing here; a collective."""
        return

    def state(self) -> list[torch.Tensor]:
        """Return what ranks take from rank 0 before each step, besides the weights."""
        return []

    def cut(self, share: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Cut a rank's share of the samples into batches."""
        starts = range(0, len(share), self.training.batch_size)
        return [share[start : start + self.training.batch_size] for start in starts][
            : self.training.steps
        ]

    def warm_up(self) -> None:
        """Compute and discard a gradient, so that no epoch pays one-time costs."""
        self.differentiate(self.loss(0, 0, self.batches(0)[0]))

    def differentiate(self, loss: torch.Tensor) -> None:
        """Compute the gradient of a loss."""
        loss.backward()  # type: ignore[no-untyped-call]

    def epoch(
        self, backend: Backend, epoch: int, on_step: Callable[[int, int], None] | None = None
    ) -> EpochResult:
        """Train for one epoch; a collective. Epochs must be trained in order, from 0.

        :param backend: Connected, with a capacity of at least the model's parameters.
        :param on_step: Called after each step with the number of steps done and the total.
        :raises TestbedError: The loss is not finite.
        :raises CollectiveError: A collective could not complete.
        """
        if epoch == 0:
            self.begin(backend)
        state = self.state()
        self._seconds = dict.fromkeys(OWN_PHASES, 0.0)
        phases, counters = dict(backend.phases), backend.counters()
        losses, entered, left, cpu = [], [], [], 0.0
        started = time.perf_counter()
        batches = self.batches(epoch)
        for step, seeds in enumerate(batches):
            if state:
                entered.append(time.perf_counter())
                cpu -= time.process_time()
                give(backend, state)
                cpu += time.process_time()
                left.append(time.perf_counter())
            loss = self.loss(epoch, step, seeds)
            with self._timed("backward"):
                self.gradients.clear()
                self.differentiate(loss)
                buffer = self.gradients.collect()
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                raise TestbedError(
                    f"training: the loss of rank {self.rank} is {losses[-1]} in epoch {epoch}, step"
                    f" {step}: training.learning_rate = {self.training.learning_rate} may be too"
                    " large"
                )
            entered.append(time.perf_counter())
            cpu -= time.process_time()
            backend.all_reduce(buffer, out=buffer)
            cpu += time.process_time()
            left.append(time.perf_counter())
            with self._timed("update"):
                self.gradients.hand_out(self.world)
                self.optimizer.step()
            if on_step:
                on_step(step + 1, len(batches))
        total = time.perf_counter() - started

        times = dict(self._seconds)
        times |= {phase: backend.phases[phase] - phases[phase] for phase in PHASES}
        times["other"] = total - sum(times.values())
        times |= {
            "epoch_time": total,
            "communication_time": float(np.sum(left) - np.sum(entered)),
            "communication_cpu_time": cpu,
        }
        give(backend, state)
        started = time.perf_counter()
        correct, of = self.validate(epoch)
        times["validation_time"] = time.perf_counter() - started
        sent = backend.counters() - counters
        return EpochResult(
            epoch=epoch,
            loss=float(np.mean(losses)),
            share=1 / self.world,
            val_correct=correct,
            val_total=of,
            digest=digest(self.weights),
            times=times,
            entered=np.asarray(entered),
            left=np.asarray(left),
            counts={"steps": len(batches), **asdict(sent)},
        )

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - started


class Trainer(Minibatches):
    """Trains on sampled neighbourhoods of a graph.

    :param graph: The data set, the same on all ranks.
    """

    def __init__(
        self,
        graph: GraphData,
        model: SampledModelSpec,
        training: MinibatchSpec,
        rank: int,
        world: int,
        seed: int,
    ) -> None:
        torch.set_num_threads(1)  # ranks share the machine's cores
        torch.manual_seed(seed)
        self.graph = graph
        self.spec = model
        self.sampler = Sampler(graph)
        made = load(MODELS[model.name].sampled or "")(model, graph.feature_dim, graph.num_classes)
        super().__init__(made, training, rank, world, seed)

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """See `Minibatches.batches`."""
        return self.cut(shares(self.graph.train, self.world, self.rng(SHUFFLE, epoch))[self.rank])

    def loss(self, epoch: int, step: int, seeds: NDArray[np.int64]) -> torch.Tensor:
        """Sample a minibatch and return its mean cross-entropy, ready for backward."""
        with self._timed("sampling"):
            key = key_of(self.seed, MINIBATCH, epoch)
            blocks = self.sampler.blocks(seeds, self.spec.fanout, key)
            x = torch.from_numpy(self.graph.x[blocks[0].sources])
            y = torch.from_numpy(self.graph.y[seeds])
        with self._timed("forward"):
            torch.manual_seed(int(self.rng(DROPOUT, epoch, step, self.rank).integers(1 << 62)))
            return functional.cross_entropy(self.model.train()(x, blocks), y)

    @torch.no_grad()
    def validate(self, epoch: int) -> tuple[int, int]:
        """Return the numbers of correct and of all predictions for this rank's share of the
        validation set, sampled.
        """
        self.model.eval()
        share = self.graph.val[self.rank :: self.world]
        key = key_of(self.seed, VALIDATION, epoch)
        correct = 0
        for start in range(0, len(share), VALIDATION_BATCH):
            seeds = np.asarray(share[start : start + VALIDATION_BATCH])
            blocks = self.sampler.blocks(seeds, self.spec.fanout, key)
            logits = self.model(torch.from_numpy(self.graph.x[blocks[0].sources]), blocks)
            correct += int((logits.argmax(1).numpy() == self.graph.y[seeds]).sum())
        return correct, len(share)

    def test_accuracy(self) -> float | None:
        """See `Minibatches.test_accuracy`; each vertex from its whole neighbourhood."""
        answers = self.model.infer(self.sampler).argmax(1).numpy()
        right = answers[self.graph.test] == self.graph.y[self.graph.test]
        return share_of(int(right.sum()), len(right))
