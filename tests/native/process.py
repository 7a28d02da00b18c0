"""The C of ``testbed/native/ring.c`` on memory of the test's choice, with a socket pair for a doorbell."""

import ctypes
import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.kernel.abi import Struct, dtype
from testbed.native import load
from testbed.protocol.ring.memory import ORDERS, PARKING, Order, OrderEntry
from testbed.protocol.wire import BLOCK, MAX_RANKS

__all__ = ["STRUCTS", "NativeProcess", "orders_waiting"]

RECORDS = 64
Memory = Mapping[str, NDArray[Any]]
NONE: Memory = MappingProxyType({})
U16, U32 = ctypes.c_uint16, ctypes.c_uint32
#: Maps that the process shares with its programs, and the struct that each is an array of.
STRUCTS = {
    "control": "ring_control",
    "parking": "ring_parked",
    "orders": "ring_order",
    "chunks": "ring_chunk",
    "lanes": "ring_lane",
    "ranks": "ring_rank",
}
CHUNK_WORDS = BLOCK // 8
SIZES = {"control": 1, "parking": PARKING, "orders": ORDERS, "chunks": RECORDS, "lanes": 1, "ranks": MAX_RANKS}


class NativeProcess:
    """``struct ring``, and its functions by name.

    :param shared: Arrays to work on, by the name of the map, where they are not to be this object's own.
    """

    def __init__(self, rank: int, ranks: int, window: int, shared: Memory = NONE) -> None:
        self.window = window
        own = {name: np.zeros(size, dtype(STRUCTS[name])) for name, size in SIZES.items()}
        self.memory = own | {"results": np.zeros((RECORDS, CHUNK_WORDS), np.uint64)} | dict(shared)
        self.control = Struct(self.memory["control"])
        self.parking, self.records, self.peers = (Struct.each(self.memory[name]) for name in ("parking", "chunks", "ranks"))
        self.quiet = Struct("ring_quiet")
        self.bell = ctypes.create_string_buffer(16)
        self.near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.far.setblocking(False)
        self.ring = Struct(
            "ring",
            control=self.control.address,
            parking=self.memory["parking"].ctypes.data,
            orders=self.memory["orders"].ctypes.data,
            records=self.memory["chunks"].ctypes.data,
            results=self.memory["results"].ctypes.data,
            chunk_bytes=self.memory["results"].strides[0],
            cpus=self.memory["lanes"].ctypes.data,
            peers=self.memory["ranks"].ctypes.data,
            cpu_count=1,
            quiet=self.quiet.address,
            window=window,
            bell=ctypes.addressof(self.bell),
            bell_length=len(self.bell),
            doorbell=self.near.fileno(),
            rank=rank,
            ranks=ranks,
        )
        self.pointer = ctypes.c_void_p(self.ring.address)
        self.library = load("ring")
        self.library.ring_order.restype = self.library.ring_replay.restype = self.library.ring_stall.restype = None
        self.library.ring_refuse.restype = self.library.ring_probe.restype = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.near.close()
        self.far.close()

    def call(self, function: str, *arguments: int) -> int:
        return getattr(self.library, f"ring_{function}")(self.pointer, *arguments) or 0

    def begin(self, generation: int, total: int, length: int, tag: int) -> None:
        self.library.ring_begin(self.pointer, U32(generation), U32(total), U16(length), U16(tag), U32(self.window))

    def publish(self, generation: int, ready: int) -> None:
        assert self.call("publish", U32(generation), U32(ready)) == 0

    def replay(self, generation: int, ready: int) -> None:
        self.call("replay", U32(generation), U32(ready))

    def refuse(self, chunk: int) -> None:
        self.call("refuse", U32(chunk))

    def stall(self, total: int, now_us: int, still: bool) -> None:
        self.library.ring_stall(self.pointer, U32(total), U32(now_us), ctypes.c_bool(still))

    def probe(self, generation: int, cpu: int) -> None:
        self.call("probe", U32(generation), U32(cpu))

    def order(self, kind: Order, generation: int, chunk: int, attempt: int = 0, extra: int = 0) -> None:
        self.call("order", U32(kind), U32(generation), U32(chunk), U32(attempt), U32(extra))

    def waiting(self) -> list[OrderEntry]:
        return orders_waiting(self.control, self.memory["orders"])

    def rings(self) -> int:
        """Bells since the last call."""
        count = 0
        try:
            while self.far.recv(64):
                count += 1
        except BlockingIOError:
            return count


def orders_waiting(control: Struct, orders: NDArray[Any]) -> list[OrderEntry]:
    """The orders that are given and not taken."""
    count = control.ordered - control.taken & 0xFFFFFFFF
    return [OrderEntry(*orders[(control.taken + index) % ORDERS].item()) for index in range(count)]
