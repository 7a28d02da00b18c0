"""The C of ``testbed/native/ring.c`` on memory of the test's choice, with a socket pair for a doorbell."""

import ctypes
import socket

from testbed.collectives.ring_maps import Chunk, Control, Lane, NativeRing, Parked, Rank, RingOrder
from testbed.native import load
from testbed.protocol.memory import ORDERS, PARKING, Order, OrderEntry
from testbed.protocol.wire import MAX_RANKS

__all__ = ["NativeProcess"]

RECORDS = 64
U16, U32 = ctypes.c_uint16, ctypes.c_uint32


class NativeProcess:
    """``struct ring``, and its functions by name.

    :param shared: Memory to work on, where it is not to be this object's own.
    """

    def __init__(
        self, rank: int, ranks: int, window: int, **shared: ctypes.Structure | ctypes.Array
    ) -> None:
        self.window = window
        self.control = shared.get("control", Control())
        self.parking = shared.get("parking", (Parked * PARKING)())
        self.orders = shared.get("orders", (RingOrder * ORDERS)())
        self.records = shared.get("records", (Chunk * RECORDS)())
        self.lanes = shared.get("lanes", (Lane * 1)())
        self.peers = shared.get("peers", (Rank * MAX_RANKS)())
        self.quiet = (ctypes.c_uint64 * 3)()
        self.bell = ctypes.create_string_buffer(16)
        self.near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.far.setblocking(False)
        self.ring = NativeRing(
            control=ctypes.addressof(self.control),
            parking=ctypes.addressof(self.parking),
            orders=ctypes.addressof(self.orders),
            records=ctypes.addressof(self.records),
            cpus=ctypes.addressof(self.lanes),
            peers=ctypes.addressof(self.peers),
            cpu_count=1,
            quiet=ctypes.addressof(self.quiet),
            window=window,
            bell=ctypes.addressof(self.bell),
            bell_length=len(self.bell),
            doorbell=self.near.fileno(),
            rank=rank,
            ranks=ranks,
        )
        self.library = load("ring")
        self.library.ring_order.restype = self.library.ring_replay.restype = self.library.ring_stall.restype = None
        self.library.ring_refuse.restype = self.library.ring_probe.restype = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.near.close()
        self.far.close()

    def call(self, function: str, *arguments: int) -> int:
        return getattr(self.library, f"ring_{function}")(ctypes.byref(self.ring), *arguments) or 0

    def begin(self, generation: int, total: int, length: int, tag: int) -> None:
        self.library.ring_begin(ctypes.byref(self.ring), U32(generation), U32(total), U16(length), U16(tag), U32(self.window))

    def publish(self, generation: int, ready: int) -> None:
        assert self.call("publish", U32(generation), U32(ready)) == 0

    def replay(self, generation: int, ready: int) -> None:
        self.call("replay", U32(generation), U32(ready))

    def refuse(self, chunk: int) -> None:
        self.call("refuse", U32(chunk))

    def stall(self, total: int, now_us: int, still: bool) -> None:
        self.library.ring_stall(ctypes.byref(self.ring), U32(total), U32(now_us), ctypes.c_bool(still))

    def probe(self, generation: int, cpu: int) -> None:
        self.call("probe", U32(generation), U32(cpu))

    def order(self, kind: Order, generation: int, chunk: int, attempt: int = 0, extra: int = 0) -> None:
        self.call("order", U32(kind), U32(generation), U32(chunk), U32(attempt), U32(extra))

    def waiting(self) -> list[OrderEntry]:
        control = self.control
        count = control.ordered - control.taken & 0xFFFFFFFF
        entries = (self.orders[(control.taken + index) % ORDERS] for index in range(count))
        return [OrderEntry(entry.kind, entry.generation, entry.chunk, entry.attempt, entry.extra) for entry in entries]

    def rings(self) -> int:
        """Bells since the last call."""
        count = 0
        try:
            while self.far.recv(64):
                count += 1
        except BlockingIOError:
            return count
