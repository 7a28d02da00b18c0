"""``tcp-ring``: ring all-reduce over plain TCP sockets, the main baseline of the in-kernel ring.

The inner loop is C (``testbed/native/tcp_ring.c``), because an interpreter would slow down short
all-reduces. Partial sums are kept in a buffer that stays in the cache, and a call allocates
nothing.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from testbed import native
from testbed.collectives.neighbours import Neighbours, Side
from testbed.comm.affinity import apply_affinity
from testbed.comm.backend import Backend, Tensor
from testbed.comm.collective import Counters
from testbed.comm.group import GroupSpec
from testbed.comm.netdev import read_counters
from testbed.core.errors import CollectiveError
from testbed.kernel.abi import Struct, constant
from testbed.plan import Datapath

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["TcpRing"]

# Best of a short sweep: 4 ranks on 2 cores, star, MTU 1500, offloads on; medians of 5 to 9 runs in
# turns.
BLOCK = 1 << 20  # elements of a block of a slice: at 64 MiB, 256 KiB took 239 ms and 4 MiB 168 ms
SEGMENT = 1 << 16  # elements read from the socket at once, and added while they are in the cache
SLOTS = 2  # blocks of partial sums
BUFFER_BYTES = 512 << 10  # at 64 MiB, 4 MiB took 267 ms and this 212 ms (blocks of 1 MiB)
SPIN_NS = 200_000  # 4 KiB took 0.46 ms without and 0.31 ms with 500 us; a busy machine may differ


# enum tcp_ring_outcome: which neighbour, and whether it was silent or has closed
_OUTCOMES: dict[int, tuple[Side, bool]] = {
    constant("TCP_RING_LEFT_FAILED"): ("left", False),
    constant("TCP_RING_RIGHT_FAILED"): ("right", False),
    constant("TCP_RING_LEFT_SILENT"): ("left", True),
    constant("TCP_RING_RIGHT_SILENT"): ("right", True),
}


class TcpRing(Backend):
    """Ring all-reduce over one TCP connection to the right and one from the left."""

    name: ClassVar[str] = "tcp-ring"
    needs: ClassVar[Datapath] = "sockets"

    def __init__(self, context: WorkerContext, spec: GroupSpec) -> None:
        super().__init__(context, spec)
        self._neighbours: Neighbours | None = None
        self._scratch = np.empty(SLOTS * BLOCK + SEGMENT, np.float32)
        self._call = native.load("tcp_ring").tcp_ring_all_reduce
        self._call.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
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
        )
        self._base = Counters()

    def connect(self) -> None:
        """Connect to both neighbours; see `Backend.connect`."""
        apply_affinity(self.spec)
        self._base = read_counters(self.context.host.ifname)
        if self.spec.size > 1:
            self._neighbours = Neighbours(self.spec, BUFFER_BYTES)
            self._ring.left = self._neighbours.left.fileno()
            self._ring.right = self._neighbours.right.fileno()

    def _all_reduce(self, tensor: Tensor, out: Tensor) -> None:
        if self.spec.size == 1:
            np.copyto(out, tensor)
            return
        if self._neighbours is None:
            raise CollectiveError(f"tcp-ring: rank {self.spec.rank} is not connected")
        ring = self._ring
        start, waited = time.perf_counter(), ring.wait_ns
        outcome = self._call(ring.address, tensor.ctypes.data, out.ctypes.data, tensor.size)
        wait = (ring.wait_ns - waited) * 1e-9
        self._phases["wait"] += wait
        self._phases["communicate"] += time.perf_counter() - start - wait
        if outcome:
            side, silent = _OUTCOMES[outcome]
            cause = ctypes.get_errno()
            error = self._neighbours.blame(side, silent)
            self.close()
            raise error from (OSError(cause, os.strerror(cause)) if cause and not silent else None)

    def counters(self) -> Counters:
        """The device's counters since `connect`; see `read_counters`."""
        return read_counters(self.context.host.ifname) - self._base

    def close(self) -> None:
        """Close the connections."""
        if self._neighbours is not None:
            self._neighbours.close()
            self._neighbours = None
