"""Ring all-reduce inside the kernel: float32 in and out, lanes on the wire, sums by XDP programs.

The process quantizes into memory that it shares with the kernel, rings, sleeps, and dequantizes; everything between is
``bpf/ring.bpf.c``. System calls a collective: a doorbell a block of input (at most `BLOCKS`), and one sleep.
"""

from __future__ import annotations

import math
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
from testbed.errors import CollectiveError
from testbed.fabric.dispatch import Dispatcher
from testbed.protocol.generation import generation_after
from testbed.protocol.scale import SLACK, ScaleGuess
from testbed.protocol.status import Fault, Status, decode, encode, finite_absmax, inspect

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
            self._port = RingPort(Dispatcher.of(self.context), self.spec, self.lanes)
            self._recovery = Recovery(self._port)
            self._recovery.meet()
            self._port.seconds()  # waiting for ranks to come is no collective's time

    def _all_reduce(self, tensor: Tensor, out: Tensor) -> None:
        if self._failed:
            raise CollectiveError(f"this group has failed before, form it again: {self._failed}")
        if tensor.size == 0:
            return
        if self.spec.size == 1:
            self._alone(tensor, out)
            return
        guess = self._guesses.setdefault(tensor.size, ScaleGuess())
        if guess.exponent is None:
            guess.learn(self._agree(tensor).exponent)
        values = tensor
        while True:
            assert guess.exponent is not None
            exponent = guess.exponent
            status = self._pass(values, exponent)
            if status.faults:
                # All ranks see the same faults, so all come here, and all go on or give up together.
                values = self._mend(tensor, status)
            holds = guess.holds(status.exponent)
            guess.learn(status.exponent)
            if holds and not status.faults:
                break
            self.redone += 1
        started = time.perf_counter()
        assert self._port is not None
        self._native.dequantize(self._port.results.ctypes.data, tensor.size, out.ctypes.data, exponent)
        if self.lanes.may_overflow(exponent):
            self._limit(out)
        self.phases["dequantize"] += time.perf_counter() - started

    def _alone(self, tensor: Tensor, out: Tensor) -> None:
        fault = inspect(tensor, 0)
        np.copyto(out, tensor if fault is None else self._mend(tensor, Status(0, (fault,))))

    def _agree(self, tensor: Tensor) -> Status:
        """A lap of the status alone, for tensors of a size that nothing is known about yet."""
        started = time.perf_counter()
        absmax = self._native.absmax(tensor.ctypes.data, tensor.size)
        self.phases["quantize"] += time.perf_counter() - started
        if not math.isfinite(absmax):
            # The pass to come reports it; this one only has to tell the exponent of the rest.
            absmax = finite_absmax(tensor)
        return self._pass(tensor[:0], 0, absmax, tensor.size)

    def _pass(self, tensor: Tensor, exponent: int, absmax: float = 0.0, size: int | None = None) -> Status:
        """One collective of a tensor's lanes and the status; leaves the sums in the port's results.

        :param absmax: A magnitude that the status is to count with besides the tensor's own.
        :param size: Of the tensor that the ranks have to agree on, if it is not this one.
        """
        port = self._port
        assert port is not None
        layout = self._layouts.get(tensor.size)
        if layout is None:
            layout = self._layouts[tensor.size] = Layout.plan(tensor.size, self.lanes, port.chunk_bytes)
        self._generation = generation = generation_after(self._generation)
        tag = _tag(tensor.size if size is None else size, exponent)
        absmax = port.send(layout, generation, tag, tensor.ctypes.data, absmax, exponent)
        if not math.isfinite(absmax):
            fault = inspect(tensor, self.spec.rank)
            rest = self.lanes.exponent_for(finite_absmax(tensor))
            port.finish(layout, generation, encode(self.spec.size, self.spec.rank, rest, fault))
        try:
            self._recovery.wait(generation, layout.total)
        except CollectiveError as error:
            self._failed = str(error)
            raise
        finally:
            for phase, seconds in port.seconds().items():
                self.phases[phase] += seconds
        seen = port.status(layout)
        return Status(seen, ()) if seen is not None else decode(self.spec.size, port.status_bytes(layout))

    def _mend(self, tensor: Tensor, status: Status) -> Tensor:
        """What to reduce instead of a tensor with values that are not finite.

        :raises CollectiveError: ``on_overflow`` is "error"; the text names ranks and indices.
        """
        if self.spec.on_overflow == "error":
            raise CollectiveError("all-reduce: " + "; ".join(self._describe(fault) for fault in status.faults))
        mine = [fault for fault in status.faults if fault.rank == self.spec.rank]
        if not mine:
            return tensor
        self.saturated += mine[0].count
        most = finite_absmax(tensor)
        return np.nan_to_num(tensor, nan=0.0, posinf=most, neginf=-most)

    def _describe(self, fault: Fault) -> str:
        name = self.spec.members[fault.rank].name
        return f"rank {fault.rank} ({name}) has {fault.kind.noun} at index {fault.index} ({fault.count} values are not finite)"

    def _limit(self, out: Tensor) -> None:
        """Sums beyond float32: an error, or the largest float32.

        :raises CollectiveError: ``on_overflow`` is "error"; the text names the index.
        """
        index = self._native.find_nonfinite(out.ctypes.data, out.size)
        if index == out.size:
            return
        if self.spec.on_overflow == "error":
            raise CollectiveError(
                f"all-reduce: the sum over ranks 0..{self.spec.size - 1} overflows float32 at index {index}, as rank "
                f"{self.spec.rank} ({self.spec.me.name}) and all others see"
            )
        self.saturated += int(np.isinf(out).sum())
        most = np.finfo(np.float32).max
        np.clip(out, -most, most, out=out)

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
