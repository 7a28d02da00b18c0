"""GraphSAGE on sampled blocks, and a model's parameters as one vector."""

import hashlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import SAGEConv

from testbed.gnn.sampling import Block, Sampler
from testbed.spec.scenario import ModelSpec

__all__ = ["Sage", "digest", "flatten", "parameter_count"]


class Sage(nn.Module):
    """GraphSAGE with mean aggregation (Hamilton, Ying and Leskovec, NeurIPS 2017), by torch-geometric.

    :param spec: Hidden size, layers, dropout.
    :param feature_dim: Features a vertex.
    :param num_classes: Logits a vertex.
    """

    def __init__(self, spec: ModelSpec, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        sizes = [feature_dim, *[spec.hidden] * (spec.layers - 1), num_classes]
        self.layers = nn.ModuleList(SAGEConv(a, b) for a, b in pairwise(sizes))
        self.dropout = spec.dropout

    def forward(self, x: Tensor, blocks: Sequence[Block]) -> Tensor:
        """Return logits of the last block's targets.

        :param x: float32, features of the first block's sources.
        """
        for depth, block in enumerate(blocks):
            x = self._layer(depth, x, block)
        return x

    def _layer(self, depth: int, x: Tensor, block: Block) -> Tensor:
        x = self.layers[depth]((x, x[: block.num_targets]), torch.from_numpy(block.edge_index))
        if depth + 1 < len(self.layers):
            x = functional.dropout(functional.relu(x), self.dropout, self.training)
        return x

    @torch.no_grad()
    def infer(self, sampler: Sampler, batch: int = 4096) -> Tensor:
        """Return logits of all vertices, each from its whole neighbourhood, layer by layer.

        :param batch: Vertices at a time, which bounds the memory that messages take.
        """
        self.eval()
        n = sampler.graph.num_vertices
        x = torch.from_numpy(np.array(sampler.graph.x))
        for depth in range(len(self.layers)):
            parts = []
            for start in range(0, n, batch):
                block = sampler.block(np.arange(start, min(start + batch, n)), None)
                parts.append(self._layer(depth, x[torch.from_numpy(block.sources)], block))
            x = torch.cat(parts)
        return x


def flatten(model: nn.Module) -> nn.Parameter:
    """Move all parameters into one vector, and all gradients into another that is its ``grad``.

    The model's own parameters and their ``grad`` become views of these, so that backward writes into the
    vector that is summed over ranks, and the optimizer updates one tensor: no copies in between.

    :returns: float32, shape (number of parameters,).
    """
    parameters = list(model.parameters())
    with torch.no_grad():
        flat = nn.Parameter(torch.cat([parameter.reshape(-1) for parameter in parameters]))
        flat.grad = torch.zeros_like(flat)
        start = 0
        for parameter in parameters:
            end = start + parameter.numel()
            parameter.data = flat.data[start:end].view_as(parameter)
            parameter.grad = flat.grad[start:end].view_as(parameter)
            start = end
    return flat


def digest(weights: Tensor) -> str:
    """Return a hash of the bits of weights."""
    return hashlib.blake2b(weights.detach().numpy().tobytes(), digest_size=8).hexdigest()


def parameter_count(spec: ModelSpec, feature_dim: int, num_classes: int) -> int:
    """Return the number of float32 in a gradient: each layer has a bias and two weight matrices, one of a GCN."""
    sizes = [feature_dim, *[spec.hidden] * (spec.layers - 1), num_classes]
    matrices = 1 if spec.name == "gcn" else 2
    return sum(matrices * a * b + b for a, b in pairwise(sizes))
