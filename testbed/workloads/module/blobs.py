"""``blobs``: a perceptron that tells clouds of points apart; an example of a `Task`."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from testbed.workloads.module.task import Part, Task

__all__ = ["Blobs"]


class Blobs(Task):
    """A perceptron with a hidden layer on normal clouds of points.

    :param hidden: Width of the hidden layer.
    :param features: Dimensions of the points.
    :param classes: Number of clouds.
    :param samples: Points of the training set; the others have a quarter of that.
    """

    def __init__(
        self, hidden: int = 256, features: int = 32, classes: int = 8, samples: int = 2048
    ) -> None:
        self.hidden, self.features, self.classes, self.samples = hidden, features, classes, samples

    def model(self) -> nn.Module:
        """See `Task.model`."""
        return nn.Sequential(
            nn.Linear(self.features, self.hidden), nn.ReLU(), nn.Linear(self.hidden, self.classes)
        )

    def dataset(self, part: Part) -> TensorDataset:
        """See `Task.dataset`."""
        draw = torch.Generator().manual_seed(1)
        centres = torch.randn(self.classes, self.features, generator=draw)
        draw.manual_seed({"train": 2, "val": 3, "test": 4}[part])
        n = self.samples if part == "train" else self.samples // 4
        labels = torch.randint(self.classes, (n,), generator=draw)
        return TensorDataset(
            centres[labels] + torch.randn(n, self.features, generator=draw), labels
        )
