"""How a tensor is laid out in chunks: its lanes, then zeros, and the status at the end of the last
frame.

So the status is in the same place in all tensors that take as many frames of the same length. If
ranks reduce different tensors, the sum of their statuses shows it.

The last word of each chunk is its check, so lanes and status leave it out (`weigh` of
``testbed/native/lanes.h``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from testbed.kernel.abi import Struct, constant
from testbed.protocol.lanes import Lanes
from testbed.protocol.status import identity_of, status_bytes
from testbed.protocol.wire import BLOCK, FRAME_BYTES, MAX_PAYLOAD

__all__ = ["BLOCKS", "CHECK_BYTES", "LEAST_BLOCK", "Layout", "chunk_bytes_for", "chunks_for"]

BLOCKS = 8
"""Number of blocks in which a large tensor is quantized, and the maximum number of kicks per
collective. Each block is sent while the next is quantized.
"""

CHECK_BYTES = constant("RING_CHECK_BYTES")
"""Bytes of a chunk's check."""

LEAST_BLOCK = 1 << 20
"""Minimum bytes of lanes in a block. A smaller tensor is not split, because a kick would cost more
than waiting.
"""


def chunk_bytes_for(mtu: int) -> int:
    """Payload of a frame: as many whole blocks as fit into an IP packet of ``mtu`` bytes."""
    overhead = FRAME_BYTES - 14
    return min((mtu - overhead) // BLOCK * BLOCK, MAX_PAYLOAD)


@dataclass(frozen=True)
class Layout:
    """``struct ring_layout``.

    A tensor of one chunk is sent in the shortest possible frame; with more chunks every frame is
    full, because a frame that becomes the next chunk may have no room to grow.

    :param count: Number of values.
    :param identity: What ranks must agree on: `status.identity_of` the tensor.
    :param status_at: Offset of the status in bytes, not counting checks.
    :param status: Bytes of the status.
    :param total: Number of chunks.
    :param length: Payload of a frame, bytes.
    :param block: Chunks that are quantized and published at a time.
    """

    count: int
    identity: int
    status_at: int
    status: int
    total: int
    length: int
    block: int

    @cached_property
    def _native(self) -> Struct:
        return Struct("ring_layout", **asdict(self))

    @cached_property
    def address(self) -> int:
        """The address of the struct, for C; valid as long as this object lives."""
        return self._native.address

    @classmethod
    def plan(cls, size: int, lanes: Lanes, chunk_bytes: int, count: int | None = None) -> Self:
        """Lay out the values of a tensor in chunks of at most ``chunk_bytes``.

        :param size: Elements of the tensor.
        :param count: Number of elements that are laid out: all, or 0 for the status alone.
        """
        count = size if count is None else count
        status = status_bytes(lanes.ranks)
        stream = _pad(count * lanes.bytes, 8) + status
        usable = chunk_bytes - CHECK_BYTES
        total = -(-stream // usable)
        length = chunk_bytes if total > 1 else _pad(stream + CHECK_BYTES, BLOCK)
        whole = count // (usable // lanes.bytes)
        return cls(
            count,
            identity_of(size, lanes.bits),
            total * (length - CHECK_BYTES) - status,
            status,
            total,
            length,
            max(-(-whole // BLOCKS), -(-LEAST_BLOCK // chunk_bytes)),
        )

    def lanes_in(
        self,
        memory: NDArray[np.uint8],
        chunk_bytes: int,
        indices: NDArray[np.intp],
        dtype: np.dtype[np.unsignedinteger],
    ) -> NDArray[np.unsignedinteger]:
        """Extract the lanes of some elements from chunks.

        :param memory: The chunks, ``chunk_bytes`` apart.
        :param dtype: Type of a lane.
        """
        per_chunk = (self.length - CHECK_BYTES) // dtype.itemsize
        starts = indices // per_chunk * chunk_bytes + indices % per_chunk * dtype.itemsize
        places = starts[:, None] + np.arange(dtype.itemsize)
        lanes: NDArray[np.unsignedinteger] = memory[places].view(dtype)[:, 0]
        return lanes

    def status_in(self, memory: NDArray[np.uint8], chunk_bytes: int) -> bytes:
        """Extract the status from chunks.

        :param memory: The chunks, ``chunk_bytes`` apart.
        """
        usable = self.length - CHECK_BYTES
        first, last = self.status_at // usable, (self.status_at + self.status - 1) // usable
        chunks = memory[first * chunk_bytes : (last + 1) * chunk_bytes].reshape(-1, chunk_bytes)[
            :, :usable
        ]
        start = self.status_at - first * usable
        return chunks.tobytes()[start : start + self.status]


def chunks_for(count: int, lanes: Lanes, chunk_bytes: int) -> int:
    """Chunks that a tensor of ``count`` values needs."""
    return Layout.plan(count, lanes, chunk_bytes).total


def _pad(count: int, to: int) -> int:
    return -(-count // to) * to
