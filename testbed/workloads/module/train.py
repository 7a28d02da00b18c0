"""Training of one rank's module: minibatches of its share of the samples."""

import random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate

from testbed.comm.backend import Backend
from testbed.core.errors import SpecError
from testbed.gnn.options import MinibatchSpec
from testbed.gnn.result import share_of
from testbed.gnn.sampling import shares
from testbed.gnn.train import DROPOUT, SHUFFLE, Minibatches
from testbed.gnn.weights import give
from testbed.host.estimates import VALIDATION_BATCH
from testbed.workloads.module.scenario import ModuleTable
from testbed.workloads.module.task import TASKS, Part, Task

__all__ = ["ModuleTrainer", "make_model", "make_task"]


def make_task(table: ModuleTable) -> Task:
    """Return the task of a scenario.

    :raises SpecError: It refuses its arguments.
    """
    try:
        return TASKS[table.task](**table.arguments)
    except (TypeError, ValueError) as error:
        raise SpecError(f"module.arguments: task {table.task}: {error}") from error


def make_model(table: ModuleTable, task: Task) -> torch.nn.Module:
    """Return a new module.

    :raises SpecError: It has no parameters, or others than float32.
    """
    model = task.model()
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SpecError(f"task {table.task}: its module has no parameter to train")
    kinds = {str(parameter.dtype) for parameter in model.parameters()}
    if kinds != {"torch.float32"}:
        has = ", ".join(sorted(kinds)) or "none"
        raise SpecError(f"task {table.task}: its parameters must be torch.float32; it has {has}")
    return model


def seed_all(seed: int) -> None:
    """Seed all generators that a module may draw from without having one of its own."""
    torch.manual_seed(seed)
    np.random.seed(seed % (1 << 32))
    random.seed(seed)


class ModuleTrainer(Minibatches):
    """One rank's module, optimizer and share of the samples.

    :param rank: This rank; `world`: the number of ranks.
    :param seed: The same on all ranks.
    """

    def __init__(
        self, table: ModuleTable, training: MinibatchSpec, rank: int, world: int, seed: int
    ) -> None:
        torch.set_num_threads(1)  # ranks share the machine's cores
        seed_all(seed)
        self.task = make_task(table)
        super().__init__(make_model(table, self.task), training, rank, world, seed)
        self.data = {part: self.task.dataset(part) for part in ("train", "val", "test")}

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """See `Minibatches.batches`."""
        samples = np.arange(len(self.data["train"]))  # type: ignore[arg-type]  # it has a length
        share = shares(samples, self.world, self.rng(SHUFFLE, epoch))[self.rank]
        return self.cut(share)

    def loss(self, epoch: int, step: int, seeds: NDArray[np.int64]) -> torch.Tensor:
        """See `Minibatches.loss`."""
        with self._timed("sampling"):
            batch = self._batch("train", seeds)
        with self._timed("forward"):
            seed_all(int(self.rng(DROPOUT, epoch, step, self.rank).integers(1 << 62)))
            return self.task.loss(self.model.train(), batch)

    def begin(self, backend: Backend) -> None:
        """Let all ranks begin as rank 0 does, whatever the module's weights are drawn with."""
        give(backend, [*self.model.parameters(), *self.model.buffers()])

    def state(self) -> list[torch.Tensor]:
        """Return the buffers, such as a normalization's running means, which DDP takes from rank 0,
        too (``broadcast_buffers``).
        """
        return list(self.model.buffers())

    @torch.no_grad()
    def validate(self, epoch: int) -> tuple[int, int]:
        """See `Minibatches.validate`."""
        return self._right("val", self.rank, self.world)

    @torch.no_grad()
    def test_accuracy(self) -> float | None:
        """See `Minibatches.test_accuracy`."""
        return share_of(*self._right("test", 0, 1))

    def _right(self, part: Part, first: int, step: int) -> tuple[int, int]:
        self.model.eval()
        share = np.arange(first, len(self.data[part]), step)  # type: ignore[arg-type]
        starts = range(0, len(share), VALIDATION_BATCH)
        batches = (share[start : start + VALIDATION_BATCH] for start in starts)
        correct = sum(
            self.task.correct(self.model, self._batch(part, numbers)) for numbers in batches
        )
        return correct, len(share)

    def _batch(self, part: Part, numbers: NDArray[np.int64]) -> Any:
        data = self.data[part]
        return default_collate([data[int(number)] for number in numbers])
