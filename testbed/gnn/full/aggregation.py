"""`Neighbours`: the sum over a vertex's neighbours, on any rank, as a function of torch's
autograd.
"""

import warnings
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from testbed.exchange.halo import Halo
from testbed.gnn.full.channel import Channel, Slot
from testbed.gnn.full.meter import Meter
from testbed.gnn.full.part import Part

__all__ = ["Neighbours"]

Direction = Literal["forward", "backward"]


class Neighbours(nn.Module):
    """One layer's sum over neighbours: ``A x``, whose gradient is ``Aᵀ g``.

    The contribution of neighbours on the same rank is a sparse product; that of the others comes
    from an exchange, one for each direction.
    """

    def __init__(self, part: Part, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self._local = {"forward": local_adjacency(part.forward)}
        self._local["backward"] = (
            self._local["forward"] if part.symmetric else local_adjacency(part.backward)
        )
        self._channel = Channel()
        self._meter = Meter()
        self._received = torch.empty(0, 0)  # kept, because new memory costs page faults

    def join(self, channel: Channel, meter: Meter) -> None:
        """Use these exchanges and this meter from now on."""
        self._channel, self._meter = channel, meter

    def forward(self, x: Tensor) -> Tensor:
        """Sum: float32 of shape (owned vertices, d), for each vertex the rows of its neighbours on
        all ranks.

        :raises CollectiveError: The exchange could not complete.
        """
        summed: Tensor = _Sum.apply(x, self)  # type: ignore[no-untyped-call]
        return summed

    def sum(self, x: Tensor, direction: Direction) -> Tensor:
        """Sum in one direction, without a gradient."""
        x = x.detach().contiguous()
        total = torch.mm(self._local[direction], x)
        if self._channel.exchanges:
            total += self._from_others(x, direction)
        return total

    def _from_others(self, x: Tensor, direction: Direction) -> Tensor:
        exchange = self._channel.exchanges[Slot(self.layer, direction)]
        if not self.training:
            exchange = self._channel.exchanges.get(Slot(self.layer, "evaluation"), exchange)
        if self._received.shape != x.shape:
            self._received = torch.empty_like(x)
        with self._meter.collective():
            exchange.aggregate(x.numpy(), self._received.numpy())
        return self._received


class _Sum(torch.autograd.Function):
    """The autograd function of `Neighbours`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, neighbours: Neighbours) -> Tensor:
        ctx.neighbours = neighbours
        return neighbours.sum(x, "forward")

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.neighbours.sum(gradients[0], "backward"), None


def local_adjacency(halo: Halo) -> Tensor:
    """Return the adjacency among a rank's own vertices: a sparse matrix of ones, shape (n, n)."""
    n, entries = halo.num_owned, len(halo.local_indices)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        return torch.sparse_csr_tensor(
            torch.from_numpy(halo.local_indptr.astype(np.int32)),
            torch.from_numpy(halo.local_indices),
            torch.ones(entries),
            (n, n),
            check_invariants=False,  # they forbid repeated edges, which are summed correctly
        )
