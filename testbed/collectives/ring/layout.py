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

from testbed.comm.options import CollectiveOptions
from testbed.kernel.abi import Struct, constant
from testbed.protocol.lanes import Lanes
from testbed.protocol.status import Operation, identity_of, status_bytes
from testbed.protocol.wire import (
    BLOCK,
    FRAME_BYTES,
    JUMBO_OFFSET,
    LINEAR_PAYLOAD,
    MAX_PAYLOAD,
)

__all__ = [
    "BLOCKS",
    "BY_RULE",
    "CHECK_BYTES",
    "LEAST_BLOCK",
    "MOST_IN_FLIGHT",
    "MOST_TOKENS",
    "Layout",
    "Pace",
    "chunk_bytes_for",
    "chunks_for",
    "cut_blocks",
    "least_chunks",
    "nack_holdoff_for",
    "retransmit_slots_for",
    "window_for",
]

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

LEAST_SHARE = 1024
"""Minimum payload of a jumbo group's frame, where a tensor takes more than one: a hop costs as much
as adding a kilobyte or two.
"""

ONE_TOKEN = 1 << 19
"""Bytes of lanes up to which each rank of a jumbo group has one frame in flight; beyond, two."""

NACK_HOLDOFF_US = 50
"""The time between the first two nacks for a frame: two round trips on an idle machine.

Goodput at 10 % loss, relative to the lossless one (4 ranks, 16 MiB): 0.17 to 0.28 with 200 us, 0.21
with 100 us, 0.40 to 0.48 with 50 us, 0.44 with 25 us.
"""

REPRODUCIBLE_HOLDOFF_US = 200_000
"""Longer than a busy machine takes to answer a nack: no frame is nacked again that is under way."""

MOST_IN_FLIGHT = 192
"""Maximum number of frames in flight, whatever the window: a veth's queue has 256 entries, and
drops frames beyond that.
"""

MOST_TOKENS = 2
"""Maximum number of jumbo frames in flight per rank that the rule gives: more are no faster, and
each takes buffers.
"""

_RETRANSMIT_SLOTS = 8
"""Slots for partial sums per frame in flight."""


def window_for(
    window: int, ranks: int, chunk_bytes: int, most: int = MOST_IN_FLIGHT, tokens: int = 0
) -> int:
    """Frames in flight per rank; all ranks together may have ``most``.

    :param tokens: Jumbo frames in flight per rank; 0: the rule decides.
    """
    if chunk_bytes > LINEAR_PAYLOAD:
        window = tokens or min(window, MOST_TOKENS)
    return max(1, min(window, most // ranks))


def retransmit_slots_for(window: int, ranks: int, chunks: int = 0) -> int:
    """Slots of a rank's retransmit buffer, a power of two.

    :param chunks: Number of chunks that must have a slot of their own.
    """
    return 1 << (max(_RETRANSMIT_SLOTS * window * ranks, chunks) - 1).bit_length()


def nack_holdoff_for(reproducible: bool) -> int:
    """The time between the first two nacks for a frame, microseconds."""
    return REPRODUCIBLE_HOLDOFF_US if reproducible else NACK_HOLDOFF_US


def chunk_bytes_for(mtu: int, most: int = 0) -> int:
    """Payload of a frame: as many whole blocks as fit into an IP packet of ``mtu`` bytes.

    :param most: Maximum bytes; 0: no maximum.
    """
    ethernet, most = 14, most // BLOCK * BLOCK or MAX_PAYLOAD
    jumbo = min((mtu + ethernet - JUMBO_OFFSET) // BLOCK * BLOCK, most)
    if jumbo > LINEAR_PAYLOAD:
        return min(jumbo, MAX_PAYLOAD)
    return min((mtu + ethernet - FRAME_BYTES) // BLOCK * BLOCK, most, LINEAR_PAYLOAD)


@dataclass(frozen=True)
class Pace:
    """How a tensor is cut up, where that is not left to the rule.

    :param tokens: Jumbo frames in flight per rank; 0: `ONE_TOKEN` and `MOST_TOKENS` decide.
    :param slice: Bytes of lanes that are quantized at a time; 0: `BLOCKS` and `LEAST_BLOCK` decide.
    :param segment: Bytes of lanes that are reduced at a time, one segment after the other in the
        same memory, which so stays in the cache; 0: all.
    """

    tokens: int = 0
    slice: int = 0
    segment: int = 0

    @classmethod
    def of(cls, options: CollectiveOptions) -> Self:
        """What a group's options say."""
        return cls(options.tokens, options.slice, options.segment)

    def longest(self, size: int, lanes: Lanes) -> int:
        """Values of a tensor that are reduced at a time, at most."""
        return min(size, max(1, self.segment // lanes.bytes)) if self.segment else size

    def cut(self, size: int, lanes: Lanes) -> list[range]:
        """Divide a tensor into segments of equal length; one without values is one segment."""
        parts = max(1, -(-size // max(1, self.longest(size, lanes))))
        each = max(1, -(-size // parts))
        return [range(first, min(size, first + each)) for first in range(0, max(1, size), each)]


BY_RULE = Pace()


@dataclass(frozen=True)
class Layout:
    """``struct ring_layout``.

    A tensor of one chunk is sent in the shortest possible frame. With more chunks, all frames have
    the same length, because a frame that becomes the next chunk may have no room to grow: the
    maximum that the MTU allows, but jumbo frames are as long as gives all ranks equally many, so
    that they work at once and end together.

    :param count: Number of values.
    :param identity: What ranks must agree on: `status.identity_of` the tensor.
    :param status_at: Offset of the status in bytes, not counting checks.
    :param status: Bytes of the status.
    :param total: Number of chunks.
    :param length: Payload of a frame, bytes.
    :param block: Chunks that are quantized and published at a time.
    :param window: Frames in flight per rank; 0: as many as the group allows.
    :param scattered: Chunks before this one are only scattered: in a reduce-scatter all but the
        status, which comes last.
    :param gathered: Chunks from this one on are only gathered: in an all-gather all but the status,
        which comes first; 0: none.
    :param root: The rank that owns all of these, and 1: a broadcast; 0: each has an owner of its
        own.
    :param share: Bytes of values in each rank's block, or in that of the root.
    :param stride: Bytes from one rank's block to the next.
    """

    count: int
    identity: int
    status_at: int
    status: int
    total: int
    length: int
    block: int
    window: int = 0
    scattered: int = 0
    gathered: int = 0
    root: int = 0
    share: int = 0
    stride: int = 0

    @cached_property
    def _native(self) -> Struct:
        return Struct("ring_layout", **asdict(self))

    @cached_property
    def address(self) -> int:
        """The address of the struct, for C; valid as long as this object lives."""
        return self._native.address

    @classmethod
    def plan(
        cls,
        size: int,
        lanes: Lanes,
        chunk_bytes: int,
        count: int | None = None,
        pace: Pace = BY_RULE,
    ) -> Self:
        """Lay out the values of a tensor in chunks of at most ``chunk_bytes``.

        :param size: Elements of the tensor.
        :param count: Number of elements that are laid out: all, or 0 for the status alone.
        :param pace: What is not left to the rule.
        """
        count = size if count is None else count
        status = status_bytes(lanes.ranks)
        stream = _pad(count * lanes.bytes, 8) + status
        longest = chunk_bytes
        if chunk_bytes > LINEAR_PAYLOAD:
            share = -(-stream // (lanes.ranks * _rounds(stream, lanes, chunk_bytes)))
            longest = max(LEAST_SHARE, _pad(share + CHECK_BYTES, BLOCK))
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
            -(-pace.slice // longest) or max(-(-whole // BLOCKS), -(-LEAST_BLOCK // longest)),
            0
            if chunk_bytes <= LINEAR_PAYLOAD
            else pace.tokens or (1 if count * lanes.bytes <= ONE_TOKEN else MOST_TOKENS),
        )

    @classmethod
    def plan_blocks(
        cls,
        operation: Operation,
        size: int,
        part: range,
        lanes: Lanes,
        chunk_bytes: int,
        pace: Pace = BY_RULE,
        root: int = 0,
    ) -> Self:
        """Lay out a tensor that has a block for each rank, in as many chunks for each, or that is
        the block of the root of a broadcast.

        Chunk *c* of a reduce-scatter belongs to the block of rank *c* - 1, where its sum is
        complete; those of an all-gather and a broadcast to the block of their owner, and they carry
        its values as they are.

        :param size: Elements of the whole tensor, a multiple of the number of blocks.
        :param part: The elements of each block that are laid out: all, or a segment.
        """
        ranks, gathers = lanes.ranks, operation is not Operation.REDUCE_SCATTER
        status = status_bytes(ranks)
        blocks = _blocks(operation, ranks)
        block = len(part) * (4 if gathers else lanes.bytes)
        each = -(-block // -(-block // (chunk_bytes - CHECK_BYTES)))
        length = min(chunk_bytes, _pad(max(each, status) + CHECK_BYTES, BLOCK))
        usable = length - CHECK_BYTES
        data, extra = -(-block // usable) * blocks, -(-status // usable)
        window = pace.tokens or (1 if block * blocks <= ONE_TOKEN else MOST_TOKENS)
        return cls(
            0,
            identity_of(size, lanes.bits, operation),
            (extra if gathers else data + extra) * usable - status,
            status,
            data + extra,
            length,
            max(-(-data // BLOCKS), -(-LEAST_BLOCK // length)),
            0 if chunk_bytes <= LINEAR_PAYLOAD else window,
            0 if gathers else data,
            extra if gathers else 0,
            root + 1 if operation is Operation.BROADCAST else 0,
            len(part) * 4,
            size // blocks * 4,
        )

    def lanes_in(
        self,
        memory: NDArray[np.uint8],
        chunk_bytes: int,
        indices: NDArray[np.intp],
        dtype: np.dtype[np.unsignedinteger],
        every: int = 1,
    ) -> NDArray[np.unsignedinteger]:
        """Extract the lanes of some elements from chunks.

        :param memory: The chunks, ``chunk_bytes`` apart.
        :param dtype: Type of a lane.
        :param every: Distance of chunks with neighbouring elements.
        """
        per_chunk = (self.length - CHECK_BYTES) // dtype.itemsize
        starts = indices // per_chunk * every * chunk_bytes + indices % per_chunk * dtype.itemsize
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
    """Chunks that tensors of up to ``count`` values need at most."""
    if chunk_bytes <= LINEAR_PAYLOAD:
        return Layout.plan(count, lanes, chunk_bytes).total
    stream = _pad(count * lanes.bytes, 8) + status_bytes(lanes.ranks)
    return lanes.ranks * _rounds(stream, lanes, chunk_bytes)


def least_chunks(lanes: Lanes, chunk_bytes: int) -> int:
    """Chunks that the shortest reduce-scatter or all-gather needs: the status, and one per rank."""
    return -(-status_bytes(lanes.ranks) // (chunk_bytes - CHECK_BYTES)) + lanes.ranks


def cut_blocks(
    operation: Operation,
    share: int,
    lanes: Lanes,
    chunk_bytes: int,
    chunks: int,
    pace: Pace = BY_RULE,
) -> list[range]:
    """Divide the blocks of a reduce-scatter or an all-gather into segments of equal length.

    :param share: Elements of a block.
    :param chunks: Number of chunks that a segment may take.
    """
    width = lanes.bytes if operation is Operation.REDUCE_SCATTER else 4
    blocks = _blocks(operation, lanes.ranks)
    each = 1 + (chunks - least_chunks(lanes, chunk_bytes)) // blocks
    most = each * (chunk_bytes - CHECK_BYTES) // width
    if pace.segment:
        most = max(1, min(most, pace.segment // (width * blocks)))
    length = -(-share // -(-share // most))
    return [range(first, min(share, first + length)) for first in range(0, share, length)]


def _blocks(operation: Operation, ranks: int) -> int:
    """Blocks of a tensor."""
    return 1 if operation is Operation.BROADCAST else ranks


def _rounds(stream: int, lanes: Lanes, chunk_bytes: int) -> int:
    """How many of the longest frames each rank needs for ``stream`` bytes of lanes and status."""
    return -(-stream // (lanes.ranks * (chunk_bytes - CHECK_BYTES)))


def _pad(count: int, to: int) -> int:
    return -(-count // to) * to
