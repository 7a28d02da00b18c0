"""How a tensor lies in chunks: its lanes, zeros, and the status at the end of the last frame.

So tensors that take as many frames of the same length have their statuses in the same place, and
ranks find out by their sum that they reduce different ones.

The last word of each chunk is its check, which the lanes and the status pass over (`weigh` of
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
from testbed.protocol.wire import (
    BLOCK,
    FRAME_BYTES,
    JUMBO_OFFSET,
    LINEAR_PAYLOAD,
    MAX_PAYLOAD,
)

__all__ = ["BLOCKS", "CHECK_BYTES", "LEAST_BLOCK", "Layout", "chunk_bytes_for", "chunks_for"]

BLOCKS = 8
"""Parts that a large tensor is quantized in, each sent while the next is worked on: the bound of
doorbells a collective.
"""

CHECK_BYTES = constant("RING_CHECK_BYTES")
"""What a chunk's check takes of it."""

LEAST_BLOCK = 1 << 20
"""Bytes of lanes below which a tensor is not split: ringing costs more than waiting."""

LEAST_SHARE = 1024
"""Payload of a jumbo group's frame at least, where a tensor takes more than one: a hop costs as
much as adding a kilobyte or two.
"""

ONE_TOKEN = 1 << 19
"""Bytes of lanes up to which each rank of a jumbo group has one frame under way, and two beyond."""


def chunk_bytes_for(mtu: int) -> int:
    """Payload of a frame: the most whole blocks that an IP packet of ``mtu`` bytes has room for."""
    ethernet = 14
    jumbo = (mtu + ethernet - JUMBO_OFFSET) // BLOCK * BLOCK
    if jumbo > LINEAR_PAYLOAD:
        return min(jumbo, MAX_PAYLOAD)
    return min((mtu + ethernet - FRAME_BYTES) // BLOCK * BLOCK, LINEAR_PAYLOAD)


@dataclass(frozen=True)
class Layout:
    """``struct ring_layout``.

    A tensor of one chunk travels in a frame as short as it can be; of more chunks all frames are
    equally long, because a frame that becomes the next chunk may have no room to grow. That is the
    longest that the MTU allows, but for jumbo frames no more than one rank's share of the tensor,
    so that all ranks work at once.

    :param count: Values.
    :param identity: What ranks must agree on: `status.identity_of` the tensor.
    :param status_at: Where the status begins, bytes, checks left out.
    :param status: Its bytes.
    :param total: Chunks.
    :param length: Payload of a frame, bytes.
    :param block: Chunks that are quantized and published at a time.
    :param window: Frames of a rank under way; 0: as many as the group has.
    """

    count: int
    identity: int
    status_at: int
    status: int
    total: int
    length: int
    block: int
    window: int = 0

    @cached_property
    def _native(self) -> Struct:
        return Struct("ring_layout", **asdict(self))

    @cached_property
    def address(self) -> int:
        """Of the struct, as C takes it; it lives as long as this object."""
        return self._native.address

    @classmethod
    def plan(cls, size: int, lanes: Lanes, chunk_bytes: int, count: int | None = None) -> Self:
        """Lay out the values of a tensor in chunks of at most ``chunk_bytes``.

        :param size: Of the tensor, elements.
        :param count: Of these, how many are laid out: all, or 0 for the status alone.
        """
        count = size if count is None else count
        status = status_bytes(lanes.ranks)
        stream = _pad(count * lanes.bytes, 8) + status
        longest = chunk_bytes
        if chunk_bytes > LINEAR_PAYLOAD:
            share = _pad(-(-stream // lanes.ranks) + CHECK_BYTES, BLOCK)
            longest = max(LEAST_SHARE, min(share, chunk_bytes))
        usable = longest - CHECK_BYTES
        total = -(-stream // usable)
        length = longest if total > 1 else _pad(stream + CHECK_BYTES, BLOCK)
        whole = count // (usable // lanes.bytes)
        return cls(
            count,
            identity_of(size, lanes.bits),
            total * (length - CHECK_BYTES) - status,
            status,
            total,
            length,
            max(-(-whole // BLOCKS), -(-LEAST_BLOCK // longest)),
            0 if chunk_bytes <= LINEAR_PAYLOAD else 1 if count * lanes.bytes <= ONE_TOKEN else 2,
        )

    def lanes_in(
        self,
        memory: NDArray[np.uint8],
        chunk_bytes: int,
        indices: NDArray[np.intp],
        dtype: np.dtype[np.unsignedinteger],
    ) -> NDArray[np.unsignedinteger]:
        """Take lanes of some elements out of chunks.

        :param memory: The chunks, ``chunk_bytes`` apart.
        :param dtype: Of a lane.
        """
        per_chunk = (self.length - CHECK_BYTES) // dtype.itemsize
        starts = indices // per_chunk * chunk_bytes + indices % per_chunk * dtype.itemsize
        places = starts[:, None] + np.arange(dtype.itemsize)
        lanes: NDArray[np.unsignedinteger] = memory[places].view(dtype)[:, 0]
        return lanes

    def status_in(self, memory: NDArray[np.uint8], chunk_bytes: int) -> bytes:
        """Take the status out of chunks.

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
