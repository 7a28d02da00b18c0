"""The native code of ``testbed/native/ring.c`` on memory that the test provides, with a socket pair
as its doorbell.
"""

import ctypes
import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.kernel.abi import Struct, constant, dtype
from testbed.native import load
from testbed.protocol.ring.memory import EARLY_SLOTS, SQ_ENTRIES, Tensor, WorkRequest, WrKind
from testbed.protocol.wire import BLOCK, MAX_RANKS

__all__ = ["STRUCTS", "NativeProcess", "sq_pending"]

RECORDS = 64
Memory = Mapping[str, NDArray[Any]]
NONE: Memory = MappingProxyType({})
U32 = ctypes.c_uint32
#: Maps that the process shares with its programs; each is an array of the struct named here.
STRUCTS = {
    "control": "ring_control",
    "early_frames": "ring_early",
    "sq": "ring_wr",
    "chunks": "ring_chunk",
    "streams": "ring_stream",
    "ranks": "ring_rank",
}
CHUNK_WORDS = BLOCK // 8
SIZES = {
    "control": 1,
    "early_frames": EARLY_SLOTS,
    "sq": SQ_ENTRIES,
    "chunks": RECORDS,
    "streams": 1,
    "ranks": MAX_RANKS,
}


class NativeProcess:
    """``struct ring``, and its functions by name.

    :param shared: Arrays to work on instead of this object's own, by the name of the map.
    """

    def __init__(self, rank: int, ranks: int, window: int, shared: Memory = NONE) -> None:
        self.window = window
        own = {name: np.zeros(size, dtype(STRUCTS[name])) for name, size in SIZES.items()}
        self.memory = own | {"results": np.zeros((RECORDS, CHUNK_WORDS), np.uint64)} | dict(shared)
        self.control = Struct(self.memory["control"])
        records = (Struct.each(self.memory[name]) for name in ("early_frames", "chunks", "ranks"))
        self.early_frames, self.records, self.peers = records
        self.quiet = Struct("ring_quiet")
        self.kick = ctypes.create_string_buffer(16)
        self.near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.far.setblocking(False)
        self.ring = Struct(
            "ring",
            control=self.control.address,
            early_frames=self.memory["early_frames"].ctypes.data,
            sq=self.memory["sq"].ctypes.data,
            records=self.memory["chunks"].ctypes.data,
            results=self.memory["results"].ctypes.data,
            chunk_bytes=self.memory["results"].strides[0],
            cpus=self.memory["streams"].ctypes.data,
            peers=self.memory["ranks"].ctypes.data,
            cpu_count=1,
            quiet=self.quiet.address,
            window=window,
            kick=ctypes.addressof(self.kick),
            kick_length=len(self.kick),
            doorbell=self.near.fileno(),
            rank=rank,
            ranks=ranks,
        )
        self.pointer = ctypes.c_void_p(self.ring.address)
        self.library = load("ring")
        self.library.ring_post.restype = self.library.ring_replay.restype = (
            self.library.ring_stall.restype
        ) = None
        self.library.ring_refuse.restype = self.library.ring_probe.restype = None
        self.library.ring_answered.restype = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.near.close()
        self.far.close()

    def call(self, function: str, *arguments: int) -> int:
        return getattr(self.library, f"ring_{function}")(self.pointer, *arguments) or 0

    def begin(
        self,
        seq: int,
        total: int,
        length: int,
        tag: int,
        scattered: int = 0,
        gathered: int = 0,
        root: int = 0,
    ) -> None:
        tensor = Struct("ring_tensor")
        tensor.total, tensor.length, tensor.tag = total, length, tag
        tensor.scattered, tensor.gathered, tensor.root = scattered, gathered, root
        pointer = ctypes.c_void_p(tensor.address)
        self.library.ring_begin(self.pointer, U32(seq), pointer, U32(self.window))

    def end_scatter(self, tensor: Tensor) -> bool:
        """Whether all that is scattered is done."""
        layout = Struct("ring_layout", scattered=tensor.scattered, length=tensor.length)
        outcome = self.library.ring_end_scatter(self.pointer, ctypes.c_void_p(layout.address))
        assert outcome in (constant("RING_DONE"), constant("RING_APART"))
        return bool(outcome == constant("RING_DONE"))

    def publish(self, seq: int, ready: int) -> None:
        assert self.call("publish", U32(seq), U32(ready)) == 0

    def replay(self, seq: int, ready: int) -> None:
        self.call("replay", U32(seq), U32(ready))

    def refuse(self, chunk: int) -> None:
        self.call("refuse", U32(chunk))

    def stall(self, total: int, now_us: int, still: bool) -> None:
        self.library.ring_stall(self.pointer, U32(total), U32(now_us), ctypes.c_bool(still))

    def probe(self, seq: int, cpu: int, now_us: int) -> None:
        self.call("probe", U32(seq), U32(cpu), U32(now_us))

    def answered(self, answer: int) -> None:
        self.library.ring_answered(self.pointer, ctypes.c_uint64(answer))

    def post(self, kind: WrKind, seq: int, chunk: int, attempt: int = 0, extra: int = 0) -> None:
        self.call("post", U32(kind), U32(seq), U32(chunk), U32(attempt), U32(extra))

    def waiting(self) -> list[WorkRequest]:
        return sq_pending(self.control, self.memory["sq"])

    def kicks(self) -> int:
        """Kicks since the last call."""
        count = 0
        try:
            while self.far.recv(64):
                count += 1
        except BlockingIOError:
            return count


def sq_pending(control: Struct, sq: NDArray[Any]) -> list[WorkRequest]:
    """The work requests that are posted but not taken."""
    count = control.sq_tail - control.sq_head & 0xFFFFFFFF
    return [
        WorkRequest(*sq[(control.sq_head + index) % SQ_ENTRIES].item()) for index in range(count)
    ]
