"""Ring all-reduce inside the kernel: float32 in and out, lanes on the wire, sums by XDP programs.

The process quantizes into memory that it shares with the kernel, rings, sleeps, and dequantizes; everything between is
``bpf/ring.bpf.c``. System calls a collective: a doorbell a block of input (at most `BLOCKS`), and one sleep.
"""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from testbed.collectives.group import GroupSpec
from testbed.collectives.lanes import Lanes, NativeLanes
from testbed.collectives.ring_layout import Layout
from testbed.collectives.ring_port import RingPort
from testbed.collectives.ring_recovery import Recovery
from testbed.collectives.transport import Counters, Datapath, Tensor, Transport
from testbed.collectives.xdp_host import XdpHost
from testbed.errors import CollectiveError
from testbed.protocol.scale import SLACK, ScaleGuess

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["XdpRing"]


class XdpRing(Transport):
    """One rank of a group. See `Transport`."""

    name: ClassVar[str] = "xdp-ring"
    needs: ClassVar[Datapath] = "xdp"

    def __init__(self, context: WorkerContext, spec: GroupSpec) -> None:
        super().__init__(context, spec)
        self.lanes = Lanes(16 if spec.lanes == "int16" else 32, spec.size)
        self.saturated = 0
        self.redone = 0
        self._native = NativeLanes(self.lanes)
        self._generation = 0
        self._guesses: dict[int, ScaleGuess] = {}
        self._layouts: dict[int, Layout] = {}
        self._port: RingPort | None = None
        self._failed: str | None = None

    def connect(self) -> None:
        """See `Transport.connect`."""
        if self.spec.size > 1:
            self._port = RingPort(XdpHost.of(self.context), self.spec, self.lanes)
            self._recovery = Recovery(self._port)
            self._recovery.meet()

    def _all_reduce(self, tensor: Tensor, out: Tensor) -> None:
        if self._failed:
            raise CollectiveError(f"this group has failed before, form it again: {self._failed}")
        if tensor.size == 0:
            return
        if self.spec.size == 1:
            np.copyto(out, tensor)
            return
        values = tensor.ctypes.data
        guess = self._guesses.setdefault(tensor.size, ScaleGuess())
        if guess.exponent is None:
            guess.learn(self._pass(0, 0, self._native.absmax(values, tensor.size), 0))
        while True:
            assert guess.exponent is not None
            exponent = guess.exponent
            seen = self._pass(values, tensor.size, 0.0, exponent)
            holds = guess.holds(seen)
            guess.learn(seen)
            if holds:
                break
            self.redone += 1
        started = time.perf_counter()
        self._native.dequantize(self._port.results.ctypes.data, tensor.size, out.ctypes.data, exponent)
        self.phases["dequantize"] += time.perf_counter() - started

    def _pass(self, values: int, count: int, absmax: float, exponent: int) -> int:
        """One collective of ``count`` values' lanes and the status; leaves the sums in the port's results.

        :returns: The exponent of the group's largest magnitude.
        """
        port = self._port
        assert port is not None
        layout = self._layouts.get(count)
        if layout is None:
            layout = self._layouts[count] = Layout.plan(count, self.lanes, port.chunk_bytes)
        self._generation = generation = 2 if self._generation == 0xFFFFFFFF else self._generation + 1
        absmax = port.send(layout, generation, _tag(count, exponent), values, absmax, exponent)
        try:
            self._recovery.wait(generation, layout.total)
        except CollectiveError as error:
            self._failed = str(error)
            raise
        finally:
            self.phases.update(zip(("quantize", "communicate", "wait"), port.seconds, strict=True))
        seen = port.status(layout)
        assert seen is not None
        return seen

    def counters(self) -> Counters:
        """See `Transport.counters`."""
        if self._port is None:
            return Counters()
        table = self._port.counters()
        return Counters(table["sent"], table["sent_bytes"], table["resent"])

    def error_bound(self, absmax: float) -> float:
        """Half a step a rank at the largest exponent that a guess may have; see `Lanes.error_bound`."""
        if self.spec.size == 1:
            return 0.0
        return self.lanes.error_bound(self.lanes.exponent_for(absmax) + SLACK, absmax)

    def close(self) -> None:
        """See `Transport.close`."""
        if self._port is not None:
            self._port.close()
            self._port = None


def _tag(size: int, exponent: int) -> int:
    """What ranks must agree on besides the number of chunks, in 16 bits."""
    return zlib.crc32(f"{size} {exponent}".encode()) & 0xFFFF
