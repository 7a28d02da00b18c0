"""GCN and GraphSAGE on whole neighbourhoods, written as for one process: `Neighbours` handles other
ranks.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from testbed.core.registry import load
from testbed.gnn.full.aggregation import Neighbours
from testbed.gnn.full.channel import Channel, transforms_first
from testbed.gnn.full.dropout import Dropout
from testbed.gnn.full.meter import Meter
from testbed.gnn.full.part import Part
from testbed.gnn.models import MODELS
from testbed.gnn.options import ModelSpec

__all__ = ["FullModel", "Gcn", "Sage"]


class Gcn(nn.Module):
    """A layer of a graph convolutional network (Kipf and Welling, ICLR 2017): ``D^-1/2 (A + I)
    D^-1/2 x W + b``.

    The normalisation scales rows before and after a plain sum, and the loop at each vertex is a
    separate summand, so only rows to be summed are exchanged. Weights are initialized as in Glorot
    and Bengio (AISTATS 2010), biases with 0.
    """

    def __init__(self, inputs: int, outputs: int, part: Part, layer: int) -> None:
        super().__init__()
        bound = math.sqrt(6 / (inputs + outputs))
        self.weight = nn.Parameter(torch.empty(inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.neighbours = Neighbours(part, layer)
        self.scale = (part.degrees + 1).rsqrt()
        self.early = transforms_first(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return float32 of shape (owned vertices, outputs)."""
        x = self.scale * (x @ self.weight if self.early else x)
        x = self.scale * (self.neighbours(x) + x)
        return (x if self.early else x @ self.weight) + self.bias


class Sage(nn.Module):
    """A layer of GraphSAGE with mean aggregation (Hamilton, Ying and Leskovec, NeurIPS 2017): ``x V
    + b + mean(x) W``.

    The mean is a sum divided by the vertex's degree; without neighbours it is 0.
    """

    def __init__(self, inputs: int, outputs: int, part: Part, layer: int) -> None:
        super().__init__()
        self.own = nn.Linear(inputs, outputs)
        self.others = nn.Linear(inputs, outputs, bias=False)
        self.neighbours = Neighbours(part, layer)
        self.scale = 1 / part.degrees.clamp(min=1)
        self.early = transforms_first(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return float32 of shape (owned vertices, outputs)."""
        own: Tensor = self.own(x)
        if self.early:
            others: Tensor = self.scale * self.neighbours(self.others(x))
        else:
            others = self.others(self.scale * self.neighbours(x))
        return own + others


class FullModel(nn.Module):
    """A network on a rank's part of a graph; the same seed gives the same weights on all ranks.

    Each layer but the last is followed by ReLU. Dropout comes before each layer of a GCN, as
    published, and of GraphSAGE before each but the first.

    :param part: This rank's part.
    :param num_classes: Logits per vertex.
    """

    def __init__(self, spec: ModelSpec, part: Part, num_classes: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        kind = MODELS[spec.name]
        make, sizes = load(kind.layer), spec.widths(part.x.shape[1], num_classes)
        self.layers = nn.ModuleList(
            make(a, b, part, layer) for layer, (a, b) in enumerate(pairwise(sizes))
        )
        rates = [
            spec.dropout if layer or kind.drops_features else 0.0 for layer in range(spec.layers)
        ]
        self.dropouts = nn.ModuleList(
            Dropout(p, seed, layer, part.forward.owned) for layer, p in enumerate(rates)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of this rank's vertices; a collective where a channel has been joined."""
        for dropout, layer in zip(self.dropouts, self.layers, strict=True):
            x = layer(dropout(functional.relu(x) if layer is not self.layers[0] else x))
        return x

    def join(self, channel: Channel, meter: Meter) -> None:
        """Use a channel for neighbours on other ranks, and meter its collectives."""
        for module in self.modules():
            if isinstance(module, Neighbours):
                module.join(channel, meter)

    def begin(self, epoch: int) -> None:
        """From now on, use the dropout masks of this epoch."""
        for dropout in self.dropouts:
            assert isinstance(dropout, Dropout)
            dropout.epoch = epoch
