"""GraphSAGE on sampled blocks."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from testbed.gnn.options import ModelSpec
from testbed.gnn.sampling import Block, Sampler
from testbed.host.estimates import EVALUATION_BATCH

__all__ = ["Sage"]


class Sage(nn.Module):
    """GraphSAGE with mean aggregation (Hamilton, Ying and Leskovec, NeurIPS 2017), by
    torch-geometric.

    :param spec: Hidden size, layers, dropout.
    :param feature_dim: Features a vertex.
    :param num_classes: Logits a vertex.
    """

    def __init__(self, spec: ModelSpec, feature_dim: int, num_classes: int) -> None:
        from torch_geometric.nn import SAGEConv  # takes seconds

        super().__init__()
        self.layers = nn.ModuleList(
            SAGEConv(a, b) for a, b in pairwise(spec.widths(feature_dim, num_classes))
        )
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
        return self.activated(depth, x)

    def activated(self, depth: int, x: Tensor) -> Tensor:
        """Apply ReLU and dropout behind all layers but the last."""
        if depth + 1 < len(self.layers):
            x = functional.dropout(functional.relu(x), self.dropout, self.training)
        return x

    @torch.no_grad()
    def infer(self, sampler: Sampler, batch: int = EVALUATION_BATCH) -> Tensor:
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
