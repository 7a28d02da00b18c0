"""What one rank sends in an exchange: frames, to whom, and which of them again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.comm.group import GroupSpec
from testbed.exchange.interface import Embeddings
from testbed.exchange.pinch.layout import Bundles
from testbed.exchange.pinch.maps import Maps
from testbed.exchange.pinch.placement import Placement
from testbed.exchange.pinch.process import Process
from testbed.protocol.pinch.packet import ACK_BEHIND, SQ_ENTRIES, UNKNOWN

__all__ = ["Sending"]

_ACK_EVERY = 8
_MOST_IN_FLIGHT = 192
"""Copies of frames in flight at most: the ring of a veth's queue has 256 places, and drops what it
has no room for.
"""


class Sending:
    """The frames of one rank.

    :param parts: Frames that an embedding takes.
    """

    def __init__(
        self, group: GroupSpec, parts: int, placement: Placement, maps: Maps, process: Process
    ) -> None:
        self._group, self._parts, self._placement = group, parts, placement
        self._maps, self._process = maps, process
        self._copies = 0

    def address(self, bundles: Bundles) -> None:
        """Set the ranks of each frame, and which frames ask for acknowledgements, from the next
        `Handshakes.enter` on.
        """
        maps, frames_to = self._maps, self._process.frames_to
        to = np.repeat(bundles.to, self._parts)
        frames = maps.frames[: len(to)]
        flows = self._placement.flows
        peers = -(-(self._group.size - 1) // len(flows))  # per flow
        window = min(self._group.window * peers, _MOST_IN_FLIGHT)
        every = max(1, min(_ACK_EVERY, window // (4 * peers)))
        ask = np.zeros(len(to), np.uint32)
        # Before late acknowledgements find the new bitmaps.
        maps.acked[:] = np.uint64(self._process.seq << 32)
        maps.wanted[:] = 0
        frames_to[:] = 0
        for rank in range(self._group.size):
            mine = np.flatnonzero(to >> np.uint32(rank) & np.uint32(1))
            frames_to[rank] = len(mine)
            if len(mine):
                asked = np.zeros(len(mine), bool)
                asked[every - 1 :: every] = True
                asked[-1] = True
                # An acknowledgement reaches so far back.
                asked[:-1] |= np.diff(mine // 32) > max(ACK_BEHIND // every, 1)
                ask[mine[asked]] |= np.uint32(1 << rank)
                np.bitwise_or.at(
                    maps.wanted[rank], mine // 32, np.uint64(1) << (mine % 32).astype(np.uint64)
                )
        frames["to"], frames["ask"] = to, ask
        frames["copies"] = np.bitwise_count(to)
        for flow in flows:
            numbers = np.flatnonzero(to & np.uint32(self._placement.ranks_of(flow)))
            maps.schedule(flow)[: len(numbers)] = numbers
            maps.flows["total"][flow] = len(numbers)
        maps.control.window = window
        self._copies = int(frames["copies"].sum())

    def send(
        self, x: Embeddings, bundles: Bundles, factor: float, last: NDArray[np.int32] | None
    ) -> None:
        """Quantize and send.

        :param last: See `Numbers.fill`.
        """
        self._maps.control.copies = self._copies
        self._process.send(x, bundles, factor, last)

    @property
    def copies(self) -> int:
        """Acknowledgements that have yet to arrive."""
        copies = int(self._maps.control.copies)
        return 0 if copies == UNKNOWN else copies

    @property
    def in_flight(self) -> bool:
        """Whether a sent frame is not acknowledged."""
        return bool(self._maps.flows["in_flight"].any())

    def lacking(self, rank: int) -> NDArray[np.int64]:
        """Frames that were sent to a rank and are not acknowledged."""
        maps, flow = self._maps, self._placement.homes[rank]
        words = maps.acked[rank]
        acked = np.where(
            words >> np.uint64(32) == np.uint64(self._process.seq), words, np.uint64(0)
        )
        missing = maps.wanted[rank] & ~acked & np.uint64(0xFFFFFFFF)
        bits = np.unpackbits(missing.astype("<u4").view(np.uint8), bitorder="little")
        numbers: NDArray[np.int64] = np.flatnonzero(bits)
        sent = maps.schedule(flow)[: int(maps.flows["next"][flow])]
        return numbers[np.isin(numbers, sent.astype(np.int64))]

    def post(self, rank: int, numbers: NDArray[np.int64]) -> None:
        """Post work requests to retransmit frames that a rank lacks, or to ask about them; a kick
        carries them out.
        """
        number = self._placement.homes[rank]
        flow = self._maps.flows[number]
        room = SQ_ENTRIES - (int(flow["sq_tail"]) - int(flow["sq_head"])) % (1 << 32)
        entries = np.uint64(self._process.seq << 32) | numbers[:room].astype(np.uint64)
        places = (int(flow["sq_tail"]) + np.arange(len(entries))) % SQ_ENTRIES
        self._maps.sq[number, places] = entries
        flow["sq_tail"] = (int(flow["sq_tail"]) + len(entries)) % (1 << 32)
