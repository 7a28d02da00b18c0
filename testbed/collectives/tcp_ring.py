"""``tcp-ring``: all-reduce and the other collectives around a ring of plain TCP sockets, the main
baseline of the in-kernel ring.

The inner loop is C (``testbed/native/tcp_ring.c``), because an interpreter would slow down short
all-reduces. Partial sums are kept in a buffer that stays in the cache, and a call allocates
nothing.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from testbed import native
from testbed.collectives.neighbours import Neighbours, Side
from testbed.comm.affinity import apply_affinity
from testbed.comm.backend import Backend, Tensor
from testbed.comm.collective import Counters
from testbed.comm.group import GroupSpec
from testbed.comm.netdev import read_counters
from testbed.comm.options import NUMBERS, OPS
from testbed.core.errors import CollectiveError
from testbed.kernel.abi import Struct, constant
from testbed.plan import Datapath

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["TcpRing"]

# Best of a short sweep: 4 ranks on 2 cores, star, MTU 1500, offloads on; medians of 5 to 9 runs in
# turns.
BLOCK = 4 << 20  # bytes of a block of a slice: at 64 MiB, 256 KiB took 239 ms and 4 MiB 168 ms
SEGMENT = 256 << 10  # bytes read from the socket at once, and added while they are in the cache
SLOTS = 2  # blocks of partial sums
BUFFER_BYTES = 512 << 10  # at 64 MiB, 4 MiB took 267 ms and this 212 ms (blocks of 1 MiB)
SPIN_NS = 200_000  # 4 KiB took 0.46 ms without and 0.31 ms with 500 us; a busy machine may differ


_OPS = {op: constant(f"TCP_RING_{op.upper()}") for op in ("sum", "min", "max")}
_TYPES = {name: constant(f"TCP_RING_{name.upper()}") for name in NUMBERS}
_ALL_REDUCE = constant("TCP_RING_ALL_REDUCE")
_REDUCE_SCATTER = constant("TCP_RING_REDUCE_SCATTER")
_ALL_GATHER = constant("TCP_RING_ALL_GATHER")
_BROADCAST = constant("TCP_RING_BROADCAST")
_DONE, _DECLINED = constant("TCP_RING_DONE"), constant("TCP_RING_DECLINED")
# The other outcomes: which neighbour, and whether it was silent or has closed
_OUTCOMES: dict[int, tuple[Side, bool]] = {
    constant("TCP_RING_LEFT_FAILED"): ("left", False),
    constant("TCP_RING_RIGHT_FAILED"): ("right", False),
    constant("TCP_RING_LEFT_SILENT"): ("left", True),
    constant("TCP_RING_RIGHT_SILENT"): ("right", True),
}


class TcpRing(Backend):
    """The ring over one TCP connection to the right and one from the left."""

    name: ClassVar[str] = "tcp-ring"
    needs: ClassVar[Datapath] = "sockets"
    OPS = OPS
    DTYPES = NUMBERS

    def __init__(self, context: WorkerContext, spec: GroupSpec) -> None:
        super().__init__(context, spec)
        self._neighbours: Neighbours | None = None
        self._scratch = np.empty(SLOTS * BLOCK + SEGMENT, np.uint8)
        pointer = ctypes.c_void_p
        self._operate = native.load("tcp_ring").tcp_ring_run
        u32, u64 = ctypes.c_uint32, ctypes.c_uint64
        self._operate.argtypes = (pointer, u32, u32, u32, pointer, pointer, u64)
        self._call = native.load_locked("tcp_ring").tcp_ring_all_reduce
        self._call.argtypes = (pointer, ctypes.py_object, ctypes.py_object)
        self._ring = Struct(
            "tcp_ring",
            rank=spec.rank,
            ranks=spec.size,
            timeout_ms=int(spec.timeout * 1e3),
            slots=SLOTS,
            block=BLOCK,
            segment=SEGMENT,
            scratch=self._scratch.ctypes.data,
            spin_ns=SPIN_NS,
            capacity=spec.capacity,
        )
        self._address = self._ring.address
        self._base = Counters()

    def connect(self) -> None:
        """Connect to both neighbours; see `Backend.connect`."""
        apply_affinity(self.spec)
        self._base = read_counters(self.context.host.ifname)
        if self.spec.size > 1:
            self._neighbours = Neighbours(self.spec, BUFFER_BYTES)
            self._ring.left = self._neighbours.left.fileno()
            self._ring.right = self._neighbours.right.fileno()

    @property
    def phases(self) -> dict[str, float]:
        """See `Backend.phases`."""
        wait = self._ring.wait_ns * 1e-9
        communicate = self._ring.total_ns * 1e-9 - wait
        return super().phases | {"communicate": communicate, "wait": wait}

    def all_reduce(self, tensor: Tensor, out: Tensor | None = None, op: str = "sum") -> Tensor:
        """See `Backend.all_reduce`; as in `XdpRing.all_reduce`, a single call of native code."""
        if type(tensor) is not np.ndarray or self._neighbours is None or op != "sum":
            return super().all_reduce(tensor, out, op)
        if out is None:
            out = np.empty(tensor.shape, tensor.dtype)
        elif type(out) is not np.ndarray:
            return super().all_reduce(tensor, out, op)
        outcome = self._call(self._address, tensor, out)
        if outcome == _DONE:
            return out
        if outcome == _DECLINED:
            return super().all_reduce(tensor, out, op)
        raise self._blame(outcome)

    def _all_reduce(self, tensor: Tensor, out: Tensor) -> None:
        self._run(_ALL_REDUCE, tensor, out, tensor.size)

    def _reduce_scatter(self, tensor: Tensor, out: Tensor) -> None:
        self._run(_REDUCE_SCATTER, tensor, out, out.size)

    def _all_gather(self, tensor: Tensor, out: Tensor) -> None:
        self._run(_ALL_GATHER, tensor, out, tensor.size)

    def _broadcast(self, tensor: Tensor, root: int) -> None:
        self._ring.root = root
        self._run(_BROADCAST, tensor, tensor, tensor.size)

    def _all_reduce_extreme(self, tensor: Tensor, out: Tensor, op: str) -> None:
        self._run(_ALL_REDUCE, tensor, out, tensor.size, op)

    def _reduce_scatter_extreme(self, tensor: Tensor, out: Tensor, op: str) -> None:
        self._run(_REDUCE_SCATTER, tensor, out, out.size, op)

    def _run(
        self, operation: int, tensor: Tensor, out: Tensor, count: int, op: str = "sum"
    ) -> None:
        if self.spec.size == 1:
            np.copyto(out, tensor)
            return
        if self._neighbours is None:
            raise CollectiveError(f"tcp-ring: rank {self.spec.rank} is not connected")
        kind, arrays = _TYPES[tensor.dtype.name], (tensor.ctypes.data, out.ctypes.data)
        outcome = self._operate(self._address, operation, _OPS[op], kind, *arrays, count)
        if outcome != _DONE:
            raise self._blame(outcome)

    def _blame(self, outcome: int) -> CollectiveError:
        """Close the connections, and say which neighbour failed."""
        assert self._neighbours is not None
        side, silent = _OUTCOMES[outcome]
        number = ctypes.get_errno()
        error = self._neighbours.blame(side, silent)
        self.close()
        if number and not silent:
            error.__cause__ = OSError(number, os.strerror(number))
        return error

    def counters(self) -> Counters:
        """The device's counters since `connect`; see `read_counters`."""
        return read_counters(self.context.host.ifname) - self._base

    def close(self) -> None:
        """Close the connections."""
        if self._neighbours is not None:
            self._neighbours.close()
            self._neighbours = None
