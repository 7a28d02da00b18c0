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
from testbed.collectives.ring_port import RingPort, chunk_bytes_for
from testbed.collectives.ring_recovery import Recovery
from testbed.collectives.transport import Counters, Datapath, Tensor, Transport
from testbed.collectives.xdp_host import XdpHost
from testbed.errors import CollectiveError
from testbed.protocol import status as statuses
from testbed.protocol.scale import SLACK, ScaleGuess

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["BLOCKS", "XdpRing"]

BLOCKS = 8
"""Parts that a large tensor is quantized in, each sent while the next is worked on."""

LEAST_BLOCK = 64 << 10
"""Bytes of lanes below which a tensor is not split: ringing costs more than waiting."""


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
        self._chunk_bytes = chunk_bytes_for(spec.mtu)
        self._status_bytes = statuses.status_bytes(spec.size)
        self._generation = 0
        self._guesses: dict[int, ScaleGuess] = {}
        self._port: RingPort | None = None
        self._failed: str | None = None

    def connect(self) -> None:
        """See `Transport.connect`."""
        if self.spec.size == 1:
            return
        stream = _pad(self.spec.capacity * self.lanes.bytes, 8) + self._status_bytes
        self._port = RingPort(XdpHost.of(self.context), self.spec, -(-stream // self._chunk_bytes))
        self._recovery = Recovery(self._port)
        self._inputs = self._port.inputs.ctypes.data
        self._results = self._port.results.ctypes.data
        self._records = self._port.records.ctypes.data
        self._recovery.meet()

    def _all_reduce(self, tensor: Tensor, out: Tensor) -> None:
        if self._failed:
            raise CollectiveError(f"this group has failed before, form it again: {self._failed}")
        if tensor.size == 0:
            return
        if self.spec.size == 1:
            np.copyto(out, tensor)
            return
        guess = self._guesses.setdefault(tensor.size, ScaleGuess())
        if guess.exponent is None:
            guess.learn(self._pass(tensor[:0], self._magnitude(tensor), 0).exponent)
        while True:
            assert guess.exponent is not None
            exponent = guess.exponent
            status = self._pass(tensor, 0.0, exponent)
            holds = guess.holds(status.exponent)
            guess.learn(status.exponent)
            if holds:
                break
            self.redone += 1
        started = time.perf_counter()
        self._native.dequantize(self._results, tensor.size, out.ctypes.data, exponent)
        self.phases["dequantize"] += time.perf_counter() - started

    def _magnitude(self, tensor: Tensor) -> float:
        started = time.perf_counter()
        absmax = self._native.absmax(tensor.ctypes.data, tensor.size)
        self.phases["quantize"] += time.perf_counter() - started
        return absmax

    def _pass(self, tensor: Tensor, absmax: float, exponent: int) -> statuses.Status:
        """One collective of a tensor's lanes and the status; leaves the sums in the port's results."""
        port = self._port
        assert port is not None
        started = time.perf_counter()
        quantized = 0.0
        lane_bytes, chunk_bytes = self.lanes.bytes, self._chunk_bytes
        data = _pad(tensor.size * lane_bytes, 8)
        stream = data + self._status_bytes
        total = -(-stream // chunk_bytes)
        length = chunk_bytes if total > 1 else _pad(stream, 64)
        self._generation = generation = 2 if self._generation == 0xFFFFFFFF else self._generation + 1
        port.begin(generation, total, length, _tag(tensor.size, exponent))
        per_chunk = chunk_bytes // lane_bytes
        whole = tensor.size // per_chunk
        block = max(-(-whole // BLOCKS), LEAST_BLOCK // chunk_bytes)
        begun = time.perf_counter()
        address = tensor.ctypes.data
        for first in range(0, whole, block):
            last = min(first + block, whole)
            # The rest behind the last whole chunk goes with it.
            count = (last - first) * per_chunk if last < whole else tensor.size - first * per_chunk
            absmax = max(absmax, self._quantize(address, first, count, exponent))
            if last < whole:
                quantized += time.perf_counter() - begun
                port.publish(generation, last)
                begun = time.perf_counter()
        if not whole and tensor.size:
            absmax = max(absmax, self._quantize(address, 0, tensor.size, exponent))
        self._finish(tensor, data, total, length, whole, self.lanes.exponent_for(absmax))
        quantized += time.perf_counter() - begun
        port.publish(generation, total)
        waiting = time.perf_counter()
        try:
            self._recovery.wait(generation, total)
        except CollectiveError as error:
            self._failed = str(error)
            raise
        ended = time.perf_counter()
        self.phases["quantize"] += quantized
        self.phases["wait"] += ended - waiting
        self.phases["communicate"] += waiting - started - quantized
        return statuses.decode(self.spec.size, port.results[data : data + self._status_bytes])

    def _quantize(self, address: int, chunk: int, count: int, exponent: int) -> float:
        per_chunk = self._chunk_bytes // self.lanes.bytes
        return self._native.quantize(
            address + chunk * per_chunk * 4,
            count,
            self._inputs + chunk * self._chunk_bytes,
            per_chunk,
            self._records + chunk * 32,
            exponent,
        )

    def _finish(self, tensor: Tensor, data: int, total: int, length: int, whole: int, exponent: int) -> None:
        """Behind the tensor's last lane: zeros to the next word, the status, zeros to the end of the frame."""
        port = self._port
        assert port is not None
        end = total * length if total == 1 else total * self._chunk_bytes
        used = tensor.size * self.lanes.bytes
        port.inputs[used:end] = 0
        status = statuses.encode(self.spec.size, self.spec.rank, exponent)
        port.inputs[data : data + len(status)] = np.frombuffer(status, np.uint8)
        first = min(whole, total - 1)
        self._native.checksum(
            self._inputs + first * self._chunk_bytes, total - first, length, self._records + first * 32
        )

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


def _pad(count: int, to: int) -> int:
    return -(-count // to) * to


def _tag(size: int, exponent: int) -> int:
    """What ranks must agree on besides the number of chunks, in 16 bits."""
    return zlib.crc32(f"{size} {exponent}".encode()) & 0xFFFF
