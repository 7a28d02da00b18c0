"""A tensor as the ring's chunks, and back: what the process of a rank quantizes and dequantizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.collectives.ring.layout import CHECK_BYTES, Layout
from testbed.protocol import status
from testbed.protocol.lanes import Lanes
from testbed.protocol.wire import Words, weigh

__all__ = ["RingTensor"]


@dataclass(frozen=True)
class RingTensor:
    """The tensors of one size in one group.

    :param layout: Where lanes and status are.
    """

    lanes: Lanes
    layout: Layout

    def pack(self, values: NDArray[np.float32], rank: int, exponent: int, absmax: float) -> Words:
        """One rank's chunks: shape (chunks, words of a chunk).

        :param values: Shape (count of the layout,).
        :param exponent: To quantize with.
        :param absmax: The largest magnitude, which the status counts.
        """
        layout, usable = self.layout, self.layout.length - CHECK_BYTES
        stream = np.zeros(layout.total * usable, np.uint8)
        lanes = self.lanes.quantize(values, exponent).view(np.uint8)
        stream[: lanes.size] = lanes
        seen = self.lanes.exponent_for(absmax)
        summand = status.encode(self.lanes.ranks, rank, seen, layout.identity)
        stream[layout.status_at : layout.status_at + layout.status] = np.frombuffer(
            summand, np.uint8
        )
        chunks = np.zeros((layout.total, layout.length // 8), np.uint64)
        chunks[:, :-1] = stream.reshape(layout.total, usable).view(np.uint64)
        for chunk in chunks:
            chunk[-1] = weigh(chunk[:-1])
        return chunks

    def unpack(self, chunks: Words, exponent: int) -> tuple[NDArray[np.float32], int]:
        """The sums, shape (count of the layout,), and the exponent of the group's largest
        magnitude.

        :param chunks: Shape (chunks, words of a chunk).
        :param exponent: That the values were quantized with.
        """
        layout = self.layout
        stream = (
            np.ascontiguousarray(chunks[:, : layout.length // 8 - 1]).view(np.uint8).reshape(-1)
        )
        found = status.decode(
            self.lanes.ranks, stream[layout.status_at : layout.status_at + layout.status].tobytes()
        )
        lanes = stream[: layout.count * self.lanes.bytes].view(self.lanes.dtype)
        return self.lanes.dequantize(lanes, exponent), found.exponent
