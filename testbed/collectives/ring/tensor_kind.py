"""What a rank keeps about tensors of one size."""

from __future__ import annotations

import zlib

import numpy as np

from testbed.collectives.ring.layout import BY_RULE, Layout, Pace
from testbed.collectives.ring.port import RingPort
from testbed.kernel.abi import Struct, dtype
from testbed.protocol.lanes import Lanes
from testbed.protocol.status import Operation

__all__ = ["TensorKind", "TensorPlan"]


class TensorKind:
    """What a rank keeps about tensors of one size, or one segment of such tensors.

    :param size: Elements of such a tensor.
    :param part: The elements that are laid out: a segment, all, or none for the status alone.
    :param pace: How it is cut up.
    :param operation: What is done with it. In a reduce-scatter and an all-gather, `part` is that of
        each rank's block.
    :param root: Of a broadcast: the rank whose tensor it is.
    :param memory: ``struct ring_segment`` for native code; a `TensorPlan`'s, or its own.
    """

    def __init__(
        self,
        size: int,
        lanes: Lanes,
        chunk_bytes: int,
        part: range | None = None,
        pace: Pace = BY_RULE,
        operation: Operation = Operation.ALL_REDUCE,
        root: int = 0,
        memory: Struct | None = None,
    ) -> None:
        part = range(size) if part is None else part
        self.size = size
        self.first = part.start
        self.bits = lanes.bits
        self.operation = operation
        self.root = root
        self.layout = (
            Layout.plan(size, lanes, chunk_bytes, len(part), pace)
            if operation is Operation.ALL_REDUCE
            else Layout.plan_blocks(operation, size, part, lanes, chunk_bytes, pace, root)
        )
        self.native = memory or Struct("ring_segment")
        self.native.layout, self.native.first = self.layout.address, self.first
        self._tags: dict[int, int] = {}

    @property
    def exponent(self) -> int | None:
        """The exponent to quantize with; None: nothing is known yet."""
        return self.native.exponent if self.native.known else None

    def retag(self) -> None:
        """Tell native code the tag of the exponent that is predicted."""
        exponent = self.native.exponent
        self.native.tagged, self.native.tag, self.native.has_tag = exponent, self.tag(exponent), 1

    def tag(self, exponent: int) -> int:
        """Return 16 bits that stand for all that ranks must agree on besides the number of chunks.
        They reveal most tensors that differ with the first frame; the status reveals all.
        """
        if exponent not in self._tags:
            text = f"{self.operation} {self.root} {self.bits} {self.size} {exponent}"
            self._tags[exponent] = zlib.crc32(text.encode()) & 0xFFFF
        return self._tags[exponent]


class TensorPlan:
    """What a rank keeps about tensors of one size: ``struct ring_plan``.

    :param size: Elements of such a tensor.
    """

    def __init__(self, size: int, pace: Pace, port: RingPort, lanes: Lanes) -> None:
        parts = pace.cut(size, lanes)
        self._memory = np.zeros(len(parts), dtype("ring_segment"))
        self.kinds = [
            TensorKind(size, lanes, port.maps.chunk_bytes, part, pace, memory=memory)
            for part, memory in zip(parts, Struct.each(self._memory), strict=True)
        ]
        self.native = Struct(
            "ring_plan", size=size, segments=self._memory.ctypes.data, count=len(parts)
        )
