"""`Neighbours`: the sum over a vertex's neighbours, on any rank, as a function of torch's
autograd.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from testbed.gnn.full.adjacency_matrix import matrix_of_ones
from testbed.gnn.full.channel import Channel, Slot, Use
from testbed.gnn.full.meter import Meter
from testbed.gnn.full.part import Part
from testbed.gnn.full.vertex_cut import VertexCut

__all__ = ["Neighbours"]

Direction = Literal["forward", "backward"]


class Neighbours(nn.Module):
    """One layer's sum over neighbours: ``A x``, whose gradient is ``Aᵀ g``.

    The contribution of neighbours on the same rank is a sparse product; that of the others comes
    from an exchange, one for each direction.
    """

    def __init__(self, part: Part, layer: int) -> None:
        super().__init__()
        self.layer, self._cut = layer, part.cut
        self._local = {
            "forward": matrix_of_ones(part.forward.local_indptr, part.forward.local_indices)
        }
        self._local["backward"] = (
            self._local["forward"]
            if part.symmetric
            else matrix_of_ones(part.backward.local_indptr, part.backward.local_indices)
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
        if self._cut is not None:
            return self._sum_by_proxies(self._cut, x, direction)
        total = torch.mm(self._local[direction], x)
        if self._channel.exchanges:
            total += self._from_others(x, direction)
        return total

    def _sum_by_proxies(self, cut: VertexCut, x: Tensor, direction: Direction) -> Tensor:
        rows = x.new_zeros(cut.num_proxies, x.shape[1])
        rows[: len(x)] = x
        if self._channel.exchanges:
            rows[len(x) :] = self._exchanged("broadcast", rows)[len(x) :]
        sums = torch.mm(cut.adjacency[direction], rows)
        total = sums[: len(x)].clone()
        if self._channel.exchanges:
            total += self._exchanged("reduce", sums)[: len(x)]
        return total

    def _exchanged(self, use: Use, rows: Tensor) -> Tensor:
        if self._received.shape != rows.shape:
            self._received = torch.empty_like(rows)
        with self._meter.collective():
            self._channel.exchanges[Slot(self.layer, use)].aggregate(
                rows.numpy(), self._received.numpy()
            )
        return self._received

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
