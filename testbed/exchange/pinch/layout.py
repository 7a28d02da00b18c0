"""How embeddings are laid out in frames, and which vertices share a frame. Pure.

A frame's payload is words of 64 bits: the vertices' positions at their owner, 32 bits each, padded
to a word, then a row of words for each vertex. An embedding that does not fit into a frame is split
into parts of equal length, one per frame; then the first word's upper half is the number of the
part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import SpecError
from testbed.exchange.options import SumWidth
from testbed.plan import MAX_LINEAR_MTU
from testbed.protocol.pinch.packet import MAX_WORDS
from testbed.protocol.wire import FRAME_BYTES

__all__ = ["HEADROOM", "Bundles", "RowLayout", "bundle", "bundle_bound", "is_packed"]

HEADROOM = 8
"""Bits by which lanes are narrower than packed sums, so ``2**HEADROOM`` rows fit into one."""
_ETHERNET = 14


@dataclass(frozen=True)
class RowLayout:
    """The shape of embeddings on the wire.

    :param dim: Elements of an embedding.
    :param bits: Bits of a lane: 16 or 32.
    :param words: 64-bit words of a vertex in a frame.
    :param parts: Frames that an embedding takes.
    :param rows: Vertices in a full frame; 1 if `parts` is more than 1.
    :param packed: Sums of lanes of 32 bits have 32 bits as well; lanes are at most
        ``2**(31 - HEADROOM) - 1``.
    """

    dim: int
    bits: int
    words: int
    parts: int
    rows: int
    packed: bool = False

    @classmethod
    def plan(cls, dim: int, bits: int, mtu: int, packed: bool = False) -> RowLayout:
        """Make the layout for links with an MTU of `mtu` bytes.

        :raises SpecError: Not even one word fits.
        """
        room = min((min(mtu, MAX_LINEAR_MTU) + _ETHERNET - FRAME_BYTES) // 8, MAX_WORDS)
        if room < 2:
            raise SpecError(
                f"mtu: {mtu} is too small for embeddings: must be {FRAME_BYTES - _ETHERNET + 16} or"
                " more"
            )
        words = -(-dim * bits // 64)
        if words < room:
            rows = 2 * room // (2 * words + 1)
            return cls(dim, bits, words, 1, rows, packed)
        parts = -(-words // (room - 1))
        return cls(dim, bits, -(-words // parts), parts, 1, packed)

    def length(self, rows: int) -> int:
        """Bytes of a payload with this many vertices."""
        return 8 * ((rows + 1) // 2 + rows * self.words)

    @property
    def payload(self) -> int:
        """Bytes of a full frame's payload."""
        return self.length(self.rows)

    @property
    def sum_words(self) -> int:
        """64-bit words of one part in an accumulator, whose lanes are twice as wide, unless they
        are packed.
        """
        return self.words if self.packed else 2 * self.words

    @property
    def wide(self) -> int:
        """64-bit words of an accumulator."""
        return self.sum_words * self.parts

    @property
    def largest(self) -> int:
        """The largest lane."""
        return (1 << (self.bits - 1 - (HEADROOM if self.packed else 0))) - 1


@dataclass(frozen=True)
class Bundles:
    """Vertices that travel together.

    :param order: int32, shape (m,): positions of the vertices, bundle after bundle.
    :param starts: int64, shape (b + 1,): where each bundle begins in `order`.
    :param to: uint32, shape (b,): the ranks that each bundle goes to, one bit each.
    """

    order: NDArray[np.int32]
    starts: NDArray[np.int64]
    to: NDArray[np.uint32]


def bundle(positions: NDArray[np.integer], masks: NDArray[np.uint32], rows: int) -> Bundles:
    """Put vertices into frames of at most `rows`, those for the same ranks together.

    Vertices that do not fill a frame share one with the remainders for other ranks, and that frame
    goes to all of these ranks. This costs bytes, but separate frames would cost more. Full frames
    for different ranks alternate, because they are sent in this order while others are still being
    filled: so every rank has something to add from the beginning.

    :param positions: Shape (m,): positions of the vertices to send.
    :param masks: uint32, shape (m,): the ranks that need each vertex, one bit each; no mask is 0.
    """
    order = np.argsort(masks, kind="stable")
    sorted_masks = masks[order]
    _, first, counts = np.unique(sorted_masks, return_index=True, return_counts=True)
    place = np.arange(len(order)) - np.repeat(first, counts)  # among those with the same mask
    whole = place < np.repeat(counts // rows * rows, counts)
    # How far each full frame is among those for the same ranks, 0 to 1.
    progress = ((place + rows / 2) / np.repeat(np.maximum(counts // rows * rows, 1), counts))[whole]
    turns = np.argsort(progress[::rows], kind="stable")
    full = order[whole].reshape(-1, rows)[turns].reshape(-1)
    order = np.concatenate([full, order[~whole]])
    complete = len(full)
    starts = np.append(np.arange(0, complete, rows), np.arange(complete, len(order), rows))
    to = np.bitwise_or.reduceat(masks[order], starts) if len(order) else np.zeros(0, np.uint32)
    return Bundles(
        positions[order].astype(np.int32),
        np.append(starts, len(order)).astype(np.int64),
        to.astype(np.uint32),
    )


def is_packed(width: SumWidth, bits: int, aggregation: str) -> bool:
    """Whether two sums share a word, if programs add up rows of lanes of this width. Weighted sums
    do not, because the headroom is for weights, and maxima need none.
    """
    return width == "packed" and bits == 32 and aggregation == "sum"


def bundle_bound(vertices: int, rows: int) -> int:
    """Maximum number of bundles for any subset of this many vertices: all but the last are full."""
    return -(-vertices // rows)
