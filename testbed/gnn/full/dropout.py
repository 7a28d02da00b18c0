"""Dropout whose masks depend on the vertex and not on the rank: they are the same for every
partition.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from testbed.gnn.mix import GOLDEN, mix, mix32

__all__ = ["Dropout", "row_keys"]

COLUMN = np.uint32(0x9E3779B9)  # as GOLDEN, of 2**32
BLOCK = 1 << 16  # elements at a time, so that they stay in a core's cache


def row_keys(stream: int, moment: int, vertices: NDArray[np.integer[Any]]) -> NDArray[np.uint32]:
    """Return what decides about the elements of vertices' rows.

    :param stream: Of seed and layer; `moment`: of epoch and step; both below 2**64.
    """
    first, second = mix(np.array([stream, moment], np.uint64))
    return mix(vertices.astype(np.uint64) + first ^ second).astype(np.uint32)


class Dropout(nn.Module):
    """Inverted dropout (Srivastava et al., JMLR 2014): a hash of seed, epoch, layer, vertex and
    column decides which elements are kept.

    :param p: Share of elements that become 0.
    :param vertices: int64, shape (n,): the numbers in the graph of the rows that `forward` gets.
    """

    def __init__(self, p: float, seed: int, layer: int, vertices: NDArray[np.int64]) -> None:
        super().__init__()
        self.p = p
        self.epoch = 0
        self._stream = (seed << 32 | layer) * GOLDEN % 2**64
        self._vertices = vertices.astype(np.uint64)

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of `x`, float32 of shape (n, d), and scale up the others; in evaluation
        return it unchanged.
        """
        return x * self.mask(x.shape[1]) if self.training and self.p else x

    def keys(self) -> NDArray[np.uint32]:
        """Return what decides about the rows in this epoch."""
        return row_keys(self._stream, self.epoch, self._vertices)

    def mask(self, dim: int) -> Tensor:
        """Return the factors of the elements in this epoch: 0 or 1 / (1 - p); float32, shape (n,
        dim).
        """
        keys = self.keys()
        columns = np.arange(1, dim + 1, dtype=np.uint32) * COLUMN
        out = np.empty((len(keys), dim), np.float32)
        rows = max(BLOCK // dim, 1)
        for first in range(0, len(keys), rows):
            drawn = keys[first : first + rows, None] ^ columns
            mix32(drawn)
            np.multiply(
                drawn >= np.uint32(self.p * 2**32),
                np.float32(1 / (1 - self.p)),
                out=out[first : first + rows],
            )
        return torch.from_numpy(out)
