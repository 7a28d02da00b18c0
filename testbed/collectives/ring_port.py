"""One rank's end of the ring: its programs, the memory that it shares with them, its doorbell."""

from __future__ import annotations

import ctypes
import os
import socket
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from testbed.collectives import ring_maps as maps
from testbed.collectives.group import GroupSpec
from testbed.collectives.lanes import EXPONENTS, Lanes, NativeLanes
from testbed.collectives.ring_layout import Layout, chunk_bytes_for, chunks_for
from testbed.collectives.transport import PHASES
from testbed.errors import CollectiveError, SpecError
from testbed.fabric.dispatch import BELL_FAR, BELL_NEAR, LINK, Dispatcher
from testbed.kernel import BpfObject
from testbed.kernel.cpumap import fill_cpumap
from testbed.kernel.libbpf import explain
from testbed.native import load
from testbed.protocol.memory import ANYWHERE
from testbed.protocol.scale import SLACK
from testbed.protocol.wire import MAX_CHUNKS

__all__ = ["Outcome", "Peer", "RingPort"]

_HOLDOFF_US = 50
"""Between two requests for a frame, the first time: two round trips on a quiet machine.

Goodput at 10 % loss, of the lossless one (4 ranks, 16 MiB): 200 us 0.17 to 0.28, 100 us 0.21, 50 us 0.40 to 0.48, 25 us 0.44.
"""
_MOST_TOKENS = 192
"""Frames under way at most, whatever the window: a veth's queue has 256 places, and drops what it has no room for."""
_KEPT = 8
"""Slots for partial sums, for each frame under way."""
_SLICE_NS = 100_000_000
"""How long `reduce` waits before it leaves it to the recovery to find out who is there."""


class Outcome(IntEnum):
    """What became of a collective: ``enum outcome`` of ``testbed/native/ring.c``."""

    DONE = 0
    LATE = 1
    ODD = 2
    FAULTY = 3
    MISFIT = 4
    FAILED = 5


_OUTCOMES = tuple(Outcome)


@dataclass(frozen=True)
class Peer:
    """What another rank has said of itself last: `testbed.protocol.liveness.PeerState`."""

    generation: int
    settled: int
    told: int
    front: int


class RingPort:
    """Programs of ``bpf/ring.bpf.c`` for one group, and every way to talk to them."""

    def __init__(self, dispatcher: Dispatcher, spec: GroupSpec, lanes: Lanes) -> None:
        self.spec = spec
        self.dispatcher = dispatcher
        self.chunk_bytes = chunk_bytes_for(spec.mtu)
        chunks = chunks_for(spec.capacity, lanes, self.chunk_bytes)
        if chunks > MAX_CHUNKS:
            raise SpecError(
                f"group: capacity = {spec.capacity}: allowed is at most what {MAX_CHUNKS} frames carry, of {self.chunk_bytes} "
                f"bytes each with mtu = {spec.mtu}; this takes {chunks}"
            )
        cpus = sorted(os.sched_getaffinity(1))
        if cpus != list(range(len(cpus))):
            cpus = [0]  # the program takes them for 0..n-1: without spreading it is slower, not wrong
        self.window = max(1, min(spec.window, _MOST_TOKENS // spec.size))
        kept = 1 << (_KEPT * self.window * spec.size - 1).bit_length()
        config = maps.Config(
            cookie=spec.cookie,
            rank=spec.rank,
            ranks=spec.size,
            group=spec.group_id,
            chunk_bytes=self.chunk_bytes,
            chunks=chunks,
            kept=kept,
            upstream=int(spec.recovery == "upstream"),
            gap=spec.gap,
            cpus=len(cpus),
            uplink=socket.if_nametoindex(LINK),
        )
        for other in spec.members:
            config.peers[other.rank] = maps.peer(spec.me, other)
        payload = ("inputs", "results", "parking_data", "kept_data")
        lanes_ = {"lanes": os.sysconf("SC_NPROCESSORS_CONF"), "kept": kept, "kept_data": kept}
        self._object = BpfObject(
            "ring",
            rodata=config,
            max_entries=dict.fromkeys(("inputs", "results", "chunks"), chunks) | {"cpus": len(cpus)} | lanes_,
            value_sizes=dict.fromkeys(payload, self.chunk_bytes),
        )
        self.doorbell: socket.socket | None = None
        try:
            self._share()
            self._connect_doorbell(lanes, len(cpus))
            dispatcher.add(spec.group_id, *(self._object.programs[f"ring_{end}"] for end in ("link", "bell", "order")))
        except BaseException:
            self._close_own()
            raise

    def _share(self) -> None:
        shared = self._object.maps
        self.inputs: NDArray[np.uint8] = shared["inputs"].view(np.uint8).reshape(-1)
        self.results: NDArray[np.uint8] = shared["results"].view(np.uint8).reshape(-1)
        self.records = shared["chunks"].view(np.dtype(maps.Chunk)).reshape(-1)
        self.control = maps.Control.from_buffer(shared["control"].view(np.uint8).data)
        self.parking = shared["parking"].view(np.uint8)
        self.orders = shared["orders"].view(np.uint8)
        self.lanes = shared["lanes"].view(np.dtype(maps.Lane)).reshape(-1)
        self._ranks = shared["ranks"].view(np.dtype(maps.Rank)).reshape(-1)
        self.control.holdoff_us = _HOLDOFF_US
        far = socket.if_nametoindex(BELL_FAR)
        for index, device in enumerate((socket.if_nametoindex(LINK), far)):
            shared["fan_ask"].update(index, device)
        for fan, width in (("fan_small", maps.FAN_SMALL), ("fan_large", maps.FAN_LARGE)):
            for index in range(width):
                shared[fan].update(index, far)
        remote = self._object.programs["ring_remote"].fd
        fill_cpumap(shared["cpus"], range(shared["cpus"].max_entries), maps.PARKING, remote)
        self._events = shared["events"]
        self._counters = shared["counters"]
        self._consumer, self._producer, _ = self._events.ring_buffer()

    def _connect_doorbell(self, lanes: Lanes, cpus: int) -> None:
        self.doorbell = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.doorbell.bind((BELL_NEAR, 0))
        bell = maps.make_bell(maps.Kind.BELL, self.spec, maps.FRAME_BYTES + self.chunk_bytes)
        self._bell = ctypes.create_string_buffer(bell, len(bell))
        self._quiet = np.zeros((cpus, 3), np.uint64)
        self._native = maps.NativeRing(
            control=ctypes.addressof(self.control),
            parking=self.parking.ctypes.data,
            bell=ctypes.addressof(self._bell),
            bell_length=len(self._bell),
            doorbell=self.doorbell.fileno(),
            events=self._events.fd,
            rank=self.spec.rank,
            ranks=self.spec.size,
            orders=self.orders.ctypes.data,
            inputs=self.inputs.ctypes.data,
            results=self.results.ctypes.data,
            records=self.records.ctypes.data,
            lanes=NativeLanes(lanes),
            chunk_bytes=self.chunk_bytes,
            cpus=self.lanes.ctypes.data,
            peers=self._ranks.ctypes.data,
            cpu_count=cpus,
            window=self.window,
            timeout_ns=_SLICE_NS,
            quiet=self._quiet.ctypes.data,
            yields=self.spec.yields,
            slack=SLACK,
            consumer=self._consumer.ctypes.data,
            producer=self._producer.ctypes.data,
            least_exponent=EXPONENTS.start,
            exponents=len(EXPONENTS),
        )
        library = load("ring")
        self._ring = ctypes.addressof(self._native)
        pointer, u16, u32 = ctypes.c_void_p, ctypes.c_uint16, ctypes.c_uint32
        layout = ctypes.POINTER(Layout)
        self._reduce = library.ring_reduce
        self._reduce.argtypes = [pointer, layout, u32, u16, pointer, pointer, u32, ctypes.c_int32]
        self._complete = library.ring_complete
        self._complete.argtypes = [pointer, layout, pointer, ctypes.c_int32]
        self._finish = library.ring_finish
        self._finish.argtypes = [pointer, layout, u32, pointer]
        self._order = library.ring_order
        self._order.argtypes, self._order.restype = [pointer, u32, u32, u32, u32, u32], None
        self._begin = library.ring_begin
        self._begin.argtypes, self._begin.restype = [pointer, u32, u32, u16, u16, u32], None
        self._flush = library.ring_flush
        self._flush.argtypes = [pointer]
        self._wait = library.ring_wait
        self._wait.argtypes = [pointer, u32, ctypes.c_int64]

    def reduce(self, layout: Layout, generation: int, tag: int, values: int, out: int, absmax: float, exponent: int) -> Outcome:
        """A whole collective, as far as it goes by itself.

        :param values: Address of the float32 values.
        :param out: Address of the sums, which may be the same.
        :param absmax: A magnitude that the status is to count with besides the values'.
        """
        bits = _bits(absmax) if absmax else 0
        outcome: int = self._reduce(self._ring, layout, generation, tag, values, out, bits, exponent)
        if outcome == Outcome.FAILED:
            self._check(self._native.error)
        return _OUTCOMES[outcome]

    def complete(self, layout: Layout, out: int, exponent: int) -> Outcome:
        """What follows when all results are stored: the status is read, and the sums are turned into floats."""
        outcome: int = self._complete(self._ring, layout, out, exponent)
        return _OUTCOMES[outcome]

    def finish(self, layout: Layout, generation: int, status: bytes) -> None:
        """Publish the end of the input with a status of the caller's."""
        self._check(self._finish(self._ring, layout, generation, status))

    @property
    def seen(self) -> int:
        """The exponent that the last status has shown."""
        return int(self._native.seen)

    def status_bytes(self, layout: Layout) -> bytes:
        """The whole status that has come back."""
        return layout.status_in(self.results, self.chunk_bytes)

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent since the start, by phase."""
        return {phase: getattr(self._native, f"{phase}_ns") * 1e-9 for phase in PHASES}

    def begin(self, generation: int) -> None:
        """Enter a generation with nothing to reduce."""
        self._begin(self._ring, generation, 0, 0, 0, 0)

    def order(self, kind: maps.Order, generation: int, chunk: int, attempt: int = 0, extra: int = ANYWHERE) -> None:
        """Prepare an order; `flush` rings for what has been prepared."""
        self._order(self._ring, kind, generation, chunk, attempt, extra)

    def flush(self) -> None:
        """Ring for the orders that wait."""
        self._check(self._flush(self._ring))

    def wait(self, target: int, seconds: float) -> bool:
        """Sleep until ``target`` results are stored (True), or time is up (False); have what is missing sent again."""
        result = self._wait(self._ring, target, int(seconds * 1e9))
        self._check(-result if result < 0 else 0)
        return bool(result)

    def moved(self) -> int:
        """Frames that have brought something new, since the start."""
        return int(self.lanes["progress"].sum())

    def heard(self) -> NDArray[np.uint64]:
        """Frames from each rank, since the start."""
        found: NDArray[np.uint64] = self.lanes["heard"].sum(axis=0, dtype=np.uint64)[: self.spec.size]
        return found

    def peers(self) -> list[Peer]:
        """What each rank has said of itself last; zeros: nothing."""
        return [
            Peer(int(row["generation"]), int(row["settled"]), int(row["told"]), int(row["front"]))
            for row in self._ranks[: self.spec.size].copy()
        ]

    def forget(self, generation: int) -> None:
        """What is stored of collectives before ``generation`` must not pass for results to come, when numbers begin anew."""
        for name in ("reduced", "result"):
            words = self.records[name]
            words[words >> np.uint64(32) != generation] = 0

    def counters(self) -> dict[str, int]:
        """All of ``enum ring_counter``, summed over CPUs."""
        table = np.frombuffer(self._counters.lookup(0), np.uint64).reshape(-1, len(maps.COUNTERS))
        return dict(zip(maps.COUNTERS, table.sum(axis=0).tolist(), strict=True))

    @property
    def refused(self) -> int:
        """Results that were not what their check said."""
        return int(self._native.refused)

    @property
    def syscalls(self) -> int:
        """System calls that the ring itself has made."""
        return int(self._native.syscalls)

    def close(self) -> None:
        """Leave the group's frames to the dispatcher's counter of strangers, and unload."""
        self.dispatcher.remove(self.spec.group_id)
        self._close_own()

    def _close_own(self) -> None:
        if self.doorbell is not None:
            self.doorbell.close()
        self._object.close()

    def _check(self, code: int) -> None:
        if code:
            raise CollectiveError(
                f"rank {self.spec.rank} ({self.spec.me.name}): doorbell {BELL_NEAR}-{BELL_FAR}: {explain(code)}"
            )


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))
