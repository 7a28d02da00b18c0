"""`Task`: what a module and its data have to offer to be trained."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal

from testbed.core.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import Dataset

__all__ = ["TASKS", "Part", "Task"]

Part = Literal["train", "val", "test"]


class Task(ABC):
    """A module and its data. A scenario's ``[module] arguments`` are those of the constructor.

    It is made once in each rank. Ranks start from the same seed, so that `model` may draw its
    weights; data must be the same on all ranks.
    """

    @abstractmethod
    def model(self) -> "nn.Module":
        """Return a new module, with float32 parameters only."""

    @abstractmethod
    def dataset(self, part: Part) -> "Dataset[Any]":
        """Return a part of the data: with a length, and samples that torch's ``default_collate``
        makes a batch of, such as pairs of features and label.
        """

    def loss(self, model: "nn.Module", batch: Any) -> "Tensor":
        """Return the mean loss of a batch; unless overridden, cross-entropy of pairs."""
        from torch.nn import functional

        x, y = batch
        return functional.cross_entropy(model(x), y)

    def correct(self, model: "nn.Module", batch: Any) -> int:
        """Return for how many samples of a batch the module is right; unless overridden, for how
        many pairs the label has the largest output.
        """
        x, y = batch
        return int((model(x).argmax(1) == y).sum())


TASKS: Registry[type[Task]] = Registry(
    "task",
    f"{__name__}:Task",
    {"blobs": "testbed.workloads.module.blobs:Blobs"},
    group="testbed.tasks",
)
