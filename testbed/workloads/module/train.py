"""Training of one rank's module: minibatches of its share of the samples."""

import random
from contextlib import AbstractContextManager
from typing import Any, Final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.parameter import is_lazy
from torch.utils.data import Dataset, IterableDataset, default_collate

from testbed.comm.backend import Backend
from testbed.core.errors import SpecError
from testbed.core.numbers import shown
from testbed.core.users_code import users_code
from testbed.gnn.options import MinibatchSpec
from testbed.gnn.result import share_of
from testbed.gnn.sampling import shares
from testbed.gnn.train import DROPOUT, SHUFFLE, Minibatches
from testbed.gnn.weights import give, pack, unpack
from testbed.host.estimates import VALIDATION_BATCH
from testbed.workloads.module.scenario import ModuleTable
from testbed.workloads.module.task import TASKS, Part, Task

__all__ = ["PARTS", "ModuleTrainer", "make_dataset", "make_model", "make_task"]

PARTS: Final[tuple[Part, ...]] = get_args(Part)


def make_task(table: ModuleTable) -> Task:
    """Return the task of a scenario.

    :raises SpecError: It refuses its arguments.
    :raises UsersError: It has raised another error.
    """
    kind = TASKS[table.task]
    with users_code(f"task {table.task}"):
        try:
            return kind(**table.arguments)
        except (TypeError, ValueError) as error:
            raise SpecError(f"module.arguments: task {table.task}: {error}") from error


def make_model(table: ModuleTable, task: Task) -> torch.nn.Module:
    """Return a new module.

    :raises SpecError: It is none, has no parameters to train, or others than float32.
    :raises UsersError: The task has raised an error.
    """
    with users_code(f"task {table.task}: model"):
        model = task.model()
    if not isinstance(model, torch.nn.Module):
        raise SpecError(f"task {table.task}: model: must be a torch.nn.Module, not {shown(model)}")
    if lazy := [name for name, each in model.named_parameters() if is_lazy(each)]:
        raise SpecError(
            f"task {table.task}: its module must know the shapes of its parameters; it finds out"
            f" those of {', '.join(lazy)} with its first batch: give it one in model()"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SpecError(f"task {table.task}: its module has no parameter to train")
    kinds = {str(each.dtype) for each in model.parameters() if each.requires_grad}
    if kinds != {"torch.float32"}:
        has = ", ".join(sorted(kinds))
        raise SpecError(
            f"task {table.task}: the parameters that it trains must be torch.float32; it has {has}"
        )
    return model


def make_dataset(table: ModuleTable, task: Task, part: Part) -> "Dataset[Any]":
    """Return a part of a task's data.

    :raises SpecError: Its samples cannot be counted or picked.
    :raises UsersError: The task has raised an error.
    """
    what = f"task {table.task}: dataset({part!r})"
    with users_code(what):
        data = task.dataset(part)
        countable = all(hasattr(data, each) for each in ("__len__", "__getitem__"))
        if isinstance(data, IterableDataset) or not countable:
            raise SpecError(
                f"{what}: must have a length, and samples by number (__len__, __getitem__), which"
                f" {type(data).__name__} has not"
            )
        len(data)  # type: ignore[arg-type]  # it has one
    return data


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

    tells_use = True

    def __init__(
        self, table: ModuleTable, training: MinibatchSpec, rank: int, world: int, seed: int
    ) -> None:
        torch.set_num_threads(1)  # ranks share the machine's cores
        seed_all(seed)
        self.table, self.task = table, make_task(table)
        super().__init__(make_model(table, self.task), training, rank, world, seed)
        self.data = {part: make_dataset(table, self.task, part) for part in PARTS}

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
            with self._users("loss"):
                return self.task.loss(self.model.train(), batch)

    def differentiate(self, loss: torch.Tensor) -> None:
        """See `Minibatches.differentiate`."""
        with self._users("gradient of the loss"):
            super().differentiate(loss)

    def begin(self, backend: Backend) -> None:
        """Let all ranks begin as rank 0 does, whatever the module's weights are drawn with."""
        give(backend, self._all())

    def snapshot(self) -> NDArray[np.uint8]:
        """Return all of the module's values."""
        return pack(self._all())

    def restore(self, values: NDArray[np.uint8]) -> None:
        """Go back to a `snapshot`, of this module or of another that was made likewise."""
        unpack(values, self._all())

    def _all(self) -> list[torch.Tensor]:
        return [*self.model.parameters(), *self.model.buffers()]

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
        correct = 0
        for numbers in batches:
            batch = self._batch(part, numbers)
            with self._users("correct"):
                correct += self.task.correct(self.model, batch)
        return correct, len(share)

    def _batch(self, part: Part, numbers: NDArray[np.int64]) -> Any:
        data = self.data[part]
        with self._users(f"batch of dataset({part!r})"):
            return default_collate([data[int(number)] for number in numbers])

    def _users(self, what: str) -> AbstractContextManager[None]:
        return users_code(f"task {self.table.task}: {what}")
