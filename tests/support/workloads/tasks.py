"""Tasks as other people write them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from testbed.workloads.module.task import Part, Task

__all__ = [
    "AllFrozen",
    "Alone",
    "Bars",
    "Broken",
    "Doubles",
    "Frozen",
    "Lazy",
    "ManyLosses",
    "Normed",
    "NumpyInit",
    "Shared",
    "Stream",
    "Unread",
    "Unused",
]


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


class Stream(Bars):
    """Has samples without numbers."""

    def dataset(self, part: Part) -> Any:
        class Samples(IterableDataset[Any]):
            def __iter__(self) -> Any:
                return iter(Pictures(8, 0))

        return Samples()


class Lazy(Bars):
    """Finds out about shapes with the first batch."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(1))


class Alone(Bars):
    """A layer that normalizes over a batch; here the batch is one sample."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


class Unread(Bars):
    """Has samples that cannot be read."""

    def dataset(self, part: Part) -> Any:
        class Samples(Pictures):
            def __getitem__(self, number: int) -> dict[str, Tensor]:
                return {}["no such"]  # type: ignore[return-value]

        return Samples(8, 0)


class ManyLosses(Bars):
    """Has a loss for each sample."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        answer: Tensor = model(batch["picture"])[:, 0]
        return answer


class Broken(Bars):
    """Has no module."""

    def model(self) -> nn.Module:
        raise RuntimeError("no module\ntoday")


class Frozen(Bars):
    """Trains its last layer only."""

    def model(self) -> nn.Module:
        model = super().model()
        for parameter in model[0].parameters():  # type: ignore[index]
            parameter.requires_grad_(False)
        return model


class AllFrozen(Bars):
    """Trains nothing."""

    def model(self) -> nn.Module:
        return super().model().requires_grad_(False)


class Apart(nn.Module):
    """Has a layer that it does not use."""

    def __init__(self, used: nn.Module) -> None:
        super().__init__()
        self.spare = nn.Linear(3, 3)
        self.used = used

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.used(x)
        return answer


class Unused(Bars):
    """Has a layer in front that it does not use."""

    def model(self) -> nn.Module:
        return Apart(super().model())


class Twice(nn.Module):
    """Uses one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = self.first
        self.last = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.last(self.second(self.first(x.flatten(1)).relu()).relu())
        return answer


class Shared(Bars):
    """Has one layer under two names."""

    def model(self) -> nn.Module:
        return Twice()


class Normed(Bars):
    """Normalizes batches, and so has buffers of floats and of an integer."""

    def model(self) -> nn.Module:
        model = super().model()
        return nn.Sequential(model[0], nn.BatchNorm2d(4), *model[1:])  # type: ignore[index,misc]


class NumpyInit(Bars):
    """Draws its weights by numpy, from a generator that nobody seeds."""

    def model(self) -> nn.Module:
        model = super().model()
        draw = np.random.default_rng()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.from_numpy(0.1 * draw.standard_normal(parameter.shape)))
        return model


class Cleared(Bars):
    """Clears gradients by itself."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        model.zero_grad()
        return super().loss(model, batch)


class Clipping(nn.Module):
    """Gives its first layer new memory in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.first.weight.data = self.first.weight.data.clamp(-0.05, 0.05)
        answer: Tensor = self.last(self.first(x.flatten(1)).relu())
        return answer


class Clipped(Bars):
    """Clips weights, as a Wasserstein GAN does."""

    def model(self) -> nn.Module:
        return Clipping()


class Mirror(nn.Module):
    """Has parameters, and a buffer, in the memory of another parameter."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 1)
        self.second.weight.data = self.first.weight.data
        self.register_buffer("seen", self.last.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.last(self.second(self.first(x.flatten(1)).relu()).relu())
        return answer + self.seen.sum()


class Mirrored(Bars):
    """Has parameters that share memory."""

    def model(self) -> nn.Module:
        return Mirror()


class Heads(nn.Module):
    """Uses one of its heads in even steps, another in odd ones, and a third one later."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(64, 1) for _ in range(3))
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        answer: Tensor = self.heads[self.steps % 2](flat)
        if self.steps > 4:
            answer = answer + self.heads[2](flat)
        self.steps += self.training
        return answer


class InTurns(Bars):
    """Uses parameters now and then."""

    def model(self) -> nn.Module:
        return Heads()


class Odd(nn.Module):
    """Has an empty buffer, one of conjugate numbers, and a frozen parameter of doubles."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 1)
        self.register_buffer("nothing", torch.empty(0))
        self.register_buffer("turned", torch.tensor([1 + 2j, 3j], dtype=torch.complex64).conj())
        self.fixed = nn.Parameter(torch.ones(1, dtype=torch.float64), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.last(x.flatten(1))
        return answer + self.fixed.float()


class Oddities(Bars):
    """Has buffers and frozen parameters of many kinds."""

    def model(self) -> nn.Module:
        return Odd()


class Sparse(Bars):
    """Looks its weights up, with gradients that are sparse."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), Looked())


class Looked(nn.Module):
    """A layer whose gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 1, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.table(torch.arange(0, 64, 2))
        return x[:, ::2] @ found
