"""Tasks as other people write them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from testbed.workloads.module.task import Part, Task

__all__ = ["Bars", "Doubles"]


class Pictures(Dataset[dict[str, Tensor]]):
    """Pictures of an upright or a lying bar, as dictionaries."""

    def __init__(self, count: int, first: int) -> None:
        self.count, self.first = count, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        draw = torch.Generator().manual_seed(self.first + number)
        label = number % 2
        picture = 0.3 * torch.randn(8, 8, generator=draw)
        place = int(torch.randint(8, (1,), generator=draw))
        (picture if label else picture.T)[place] += 1
        return {"picture": picture[None], "label": torch.tensor(float(label))}


class Bars(Task):
    """A convolution that tells them apart, with a loss of its own."""

    def __init__(self, count: int = 64) -> None:
        self.count = count

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(4, 1)
        )

    def dataset(self, part: Part) -> Pictures:
        return Pictures(self.count, {"train": 0, "val": 1000, "test": 2000}[part])

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        logits = model(batch["picture"])[:, 0]
        return nn.functional.binary_cross_entropy_with_logits(logits, batch["label"])

    def correct(self, model: nn.Module, batch: Any) -> int:
        return int(((model(batch["picture"])[:, 0] > 0) == (batch["label"] > 0.5)).sum())


class Doubles(Bars):
    """Has parameters that the backends do not sum."""

    def model(self) -> nn.Module:
        return super().model().double()
