"""One rank's end of the ring: its programs, the memory that it shares with them, its doorbell."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from testbed.collectives.ring.layout import Layout, chunk_bytes_for, chunks_for
from testbed.comm.backend import PHASES
from testbed.comm.doorbell import Doorbell
from testbed.comm.group import GroupSpec
from testbed.comm.lanes import NativeLanes
from testbed.core.closing import Closing
from testbed.core.errors import SpecError
from testbed.datapath.dispatcher import DOORBELL_FAR, LINK, Dispatcher
from testbed.kernel import BpfObject
from testbed.kernel.abi import Struct, constant, dtype
from testbed.kernel.cpumap import fill_cpumap
from testbed.native import load
from testbed.protocol.lanes import EXPONENTS, Lanes
from testbed.protocol.ring.memory import ANYWHERE, COUNTERS, EARLY_SLOTS, WrKind
from testbed.protocol.scale import SLACK
from testbed.protocol.wire import MAX_CHUNKS, Frame, Header, Kind, encode, net_peer, offset_of

__all__ = ["Outcome", "Peer", "RingPort"]

_NACK_HOLDOFF_US = 50
"""Between two requests for a frame, the first time: two round trips on a quiet machine.

Goodput at 10 % loss, of the lossless one (4 ranks, 16 MiB): 200 us 0.17 to 0.28, 100 us 0.21, 50 us
0.40 to 0.48, 25 us 0.44.
"""
_MOST_TOKENS = 192
"""Frames under way at most, whatever the window: a veth's queue has 256 places, and drops what it
has no room for.
"""
_RETRANSMIT_SLOTS = 8
"""Slots for partial sums, for each frame under way."""
_SLICE_NS = 100_000_000
"""How long `reduce` waits before it leaves it to the recovery to find out who is there."""


class Outcome(IntEnum):
    """What became of a collective: ``enum ring_outcome``."""

    DONE = constant("RING_DONE")
    LATE = constant("RING_LATE")
    NONFINITE = constant("RING_NONFINITE")
    FAULTY = constant("RING_FAULTY")
    MISFIT = constant("RING_MISFIT")
    FAILED = constant("RING_FAILED")


_OUTCOMES = tuple(Outcome)


@dataclass(frozen=True)
class Peer:
    """What another rank has said of itself last: `testbed.protocol.ring.liveness.PeerState`."""

    seq: int
    verified: int
    verified_acked: int
    front: int


class RingPort(Closing):
    """Programs of ``bpf/ring.bpf.c`` for one group, and every way to talk to them."""

    def __init__(self, dispatcher: Dispatcher, spec: GroupSpec, lanes: Lanes) -> None:
        self.spec = spec
        self.chunk_bytes = chunk_bytes_for(spec.mtu)
        # a smaller tensor may be spread over all ranks in shorter frames
        chunks = max(chunks_for(spec.capacity, lanes, self.chunk_bytes), spec.size)
        if chunks > MAX_CHUNKS:
            raise SpecError(
                f"group: capacity = {spec.capacity}: must be at most what {MAX_CHUNKS} frames"
                f" carry, of {self.chunk_bytes} bytes each with mtu = {spec.mtu}; this takes"
                f" {chunks}"
            )
        cpus = sorted(os.sched_getaffinity(1))
        if cpus != list(range(len(cpus))):
            cpus = [
                0
            ]  # the program takes them for 0..n-1: without spreading it is slower, not wrong
        self.window = max(1, min(spec.window, _MOST_TOKENS // spec.size))
        retransmit_slots = 1 << (_RETRANSMIT_SLOTS * self.window * spec.size - 1).bit_length()
        config = Struct(
            "ring_config",
            cookie=spec.cookie,
            rank=spec.rank,
            ranks=spec.size,
            group=spec.group_id,
            chunk_bytes=self.chunk_bytes,
            chunks=chunks,
            retransmit_slots=retransmit_slots,
            upstream=spec.recovery == "upstream",
            reorder_threshold=spec.reorder_threshold,
            cpus=len(cpus),
            uplink=socket.if_nametoindex(LINK),
        )
        for other in spec.members:
            config.peers[other.rank] = net_peer(spec.me.endpoint, other.endpoint)
        payload = ("ring_inputs", "ring_results", "ring_early_data", "ring_retransmit_data")
        sizes = dict.fromkeys(("ring_inputs", "ring_results", "ring_chunks"), chunks)
        sizes |= {"ring_streams": os.sysconf("SC_NPROCESSORS_CONF"), "ring_cpus": len(cpus)}
        sizes |= {"ring_retransmit": retransmit_slots, "ring_retransmit_data": retransmit_slots}
        with contextlib.ExitStack() as stack:
            self._object = stack.enter_context(
                BpfObject(
                    "ring",
                    rodata=config,
                    max_entries=sizes,
                    value_sizes=dict.fromkeys(payload, self.chunk_bytes),
                )
            )
            self._share()
            doorbell = stack.enter_context(Doorbell(spec))
            self._check = doorbell.check
            self._connect(doorbell, lanes, len(cpus))
            ends = (self._object.programs[f"ring_{end}"] for end in ("link", "doorbell", "execute"))
            dispatcher.add(spec.group_id, *ends)
            # The group's frames belong to nobody from then on.
            stack.callback(dispatcher.remove, spec.group_id)
            self._open = stack.pop_all()

    def _share(self) -> None:
        shared, layout_of = self._object.maps, self._object.dtype
        self.inputs: NDArray[np.uint8] = shared["ring_inputs"].view(np.uint8).reshape(-1)
        self.results: NDArray[np.uint8] = shared["ring_results"].view(np.uint8).reshape(-1)
        self.records = shared["ring_chunks"].view(layout_of("ring_chunk")).reshape(-1)
        self.control = Struct(shared["ring_control"].view(layout_of("ring_control")))
        self.early_frames = shared["ring_early_frames"].view(np.uint8)
        self.sq = shared["ring_sq"].view(np.uint8)
        self.streams = shared["ring_streams"].view(layout_of("ring_stream")).reshape(-1)
        self._ranks = shared["ring_ranks"].view(layout_of("ring_rank")).reshape(-1)
        self.control.nack_holdoff_us = _NACK_HOLDOFF_US
        far = socket.if_nametoindex(DOORBELL_FAR)
        for index, device in enumerate((socket.if_nametoindex(LINK), far)):
            shared["ring_fan_nack"].update(index, device)
        for fan in ("ring_fan_small", "ring_fan_large"):
            for index in range(shared[fan].max_entries):
                shared[fan].update(index, far)
        remote = self._object.programs["ring_remote"].fd
        fill_cpumap(
            shared["ring_cpus"], range(shared["ring_cpus"].max_entries), EARLY_SLOTS, remote
        )
        self._events = shared["ring_events"]
        self._counters = shared["ring_counters"]
        self._consumer, self._producer, _ = self._events.ring_buffer()

    def _connect(self, doorbell: Doorbell, lanes: Lanes, cpus: int) -> None:
        kick = encode(Frame(Header(Kind.DOORBELL, self.spec.group_id, self.spec.cookie, prev=0)))
        kick = kick.ljust(
            offset_of(self.chunk_bytes) + self.chunk_bytes, b"\0"
        )  # as long as what it becomes, so that it need not grow
        self._kick = ctypes.create_string_buffer(kick, len(kick))
        self._quiet = np.zeros(cpus, dtype("ring_quiet"))
        self._native = Struct(
            "ring",
            control=self.control.address,
            early_frames=self.early_frames.ctypes.data,
            kick=ctypes.addressof(self._kick),
            kick_length=len(self._kick),
            doorbell=doorbell.fd,
            events=self._events.fd,
            rank=self.spec.rank,
            ranks=self.spec.size,
            sq=self.sq.ctypes.data,
            inputs=self.inputs.ctypes.data,
            results=self.results.ctypes.data,
            records=self.records.ctypes.data,
            lanes=NativeLanes(lanes).format.value,
            chunk_bytes=self.chunk_bytes,
            cpus=self.streams.ctypes.data,
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
        self._ring = self._native.address
        pointer, u16, u32 = ctypes.c_void_p, ctypes.c_uint16, ctypes.c_uint32
        self._reduce = library.ring_reduce
        self._reduce.argtypes = [pointer, pointer, u32, u16, pointer, pointer, u32, ctypes.c_int32]
        self._complete = library.ring_complete
        self._complete.argtypes = [pointer, pointer, pointer, ctypes.c_int32]
        self._finish = library.ring_finish
        self._finish.argtypes = [pointer, pointer, u32, pointer]
        self._post = library.ring_post
        self._post.argtypes, self._post.restype = [pointer, u32, u32, u32, u32, u32], None
        self._begin = library.ring_begin
        self._begin.argtypes, self._begin.restype = [pointer, u32, u32, u16, u16, u32], None
        self._flush = library.ring_flush
        self._flush.argtypes = [pointer]
        self._wait = library.ring_wait
        self._wait.argtypes = [pointer, u32, ctypes.c_int64]

    def reduce(
        self,
        layout: Layout,
        seq: int,
        tag: int,
        values: int,
        out: int,
        absmax: float,
        exponent: int,
    ) -> Outcome:
        """A whole collective, as far as it goes by itself.

        :param values: Address of the float32 values.
        :param out: Address of the sums, which may be the same.
        :param absmax: A magnitude that the status is to count with besides the values'.
        """
        bits = _bits(absmax) if absmax else 0
        outcome: int = self._reduce(
            self._ring, layout.address, seq, tag, values, out, bits, exponent
        )
        if outcome == Outcome.FAILED:
            self._check(self._native.error)
        return _OUTCOMES[outcome]

    def complete(self, layout: Layout, out: int, exponent: int) -> Outcome:
        """What follows when all results are stored: the status is read, and the sums are turned
        into floats.
        """
        outcome: int = self._complete(self._ring, layout.address, out, exponent)
        return _OUTCOMES[outcome]

    def finish(self, layout: Layout, seq: int, status: bytes) -> None:
        """Publish the end of the input with a status of the caller's."""
        self._check(self._finish(self._ring, layout.address, seq, status))

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

    def begin(self, seq: int) -> None:
        """Enter a sequence number with nothing to reduce."""
        self._begin(self._ring, seq, 0, 0, 0, 0)

    def post(
        self, kind: WrKind, seq: int, chunk: int, attempt: int = 0, extra: int = ANYWHERE
    ) -> None:
        """Post a work request; `flush` kicks the doorbell."""
        self._post(self._ring, kind, seq, chunk, attempt, extra)

    def flush(self) -> None:
        """Kick the doorbell for the work requests that wait."""
        self._check(self._flush(self._ring))

    def wait(self, target: int, seconds: float) -> bool:
        """Sleep until ``target`` results are stored (True), or time is up (False); recover what is
        missing.
        """
        result = self._wait(self._ring, target, int(seconds * 1e9))
        self._check(-result if result < 0 else 0)
        return bool(result)

    def moved(self) -> int:
        """Frames that have brought something new, since the start."""
        return int(self.streams["progress"].sum())

    def heard(self) -> NDArray[np.uint64]:
        """Frames from each rank, since the start."""
        found: NDArray[np.uint64] = self.streams["heard"].sum(axis=0, dtype=np.uint64)[
            : self.spec.size
        ]
        return found

    def peers(self) -> list[Peer]:
        """What each rank has said of itself last; zeros: nothing."""
        return [
            Peer(
                int(row["seq"]), int(row["verified"]), int(row["verified_acked"]), int(row["front"])
            )
            for row in self._ranks[: self.spec.size].copy()
        ]

    def forget(self, seq: int) -> None:
        """Reset what is stored of collectives before ``seq``, so that it does not pass for future
        results when numbers wrap.
        """
        for name in ("reduced", "result"):
            words = self.records[name]
            words[words >> np.uint64(32) != seq] = 0

    def counters(self) -> dict[str, int]:
        """All of ``enum ring_counter``, summed over CPUs."""
        table = np.frombuffer(self._counters.lookup(0), np.uint64).reshape(-1, len(COUNTERS))
        return dict(zip(COUNTERS, table.sum(axis=0).tolist(), strict=True))

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
        self._open.close()


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))
