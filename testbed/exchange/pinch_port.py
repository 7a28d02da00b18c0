"""One rank's end of an exchange in the kernel: its programs, the memory that it shares with them, its doorbell."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from testbed.closing import Closing
from testbed.collectives import ring_maps
from testbed.errors import CollectiveError
from testbed.exchange import pinch_maps as maps
from testbed.exchange.interface import Embeddings, ExchangeSpec
from testbed.exchange.pinch_layout import Bundles, RowLayout, bundle_bound
from testbed.exchange.pinch_numbers import Numbers
from testbed.exchange.pinch_tables import Tables
from testbed.fabric.dispatch import BELL_FAR, BELL_NEAR, LINK, Dispatcher
from testbed.kernel import BpfObject
from testbed.kernel.libbpf import explain
from testbed.native import load
from testbed.protocol.wire import FRAME_BYTES, MAGIC, PORT, VERSION, PinchKind

__all__ = ["PinchPort"]

_QUENCH_US = 500
"""A frame that was sent less than this ago is not sent again for a gap, until round trips are known."""
_GAP = 4
"""Frames that may overtake another, since two CPUs send, before it counts as lost."""
_MOST_BANKS = 8
"""CPUs that may each have accumulators of their own; with more, one CPU aggregates a host's frames."""
_ACK_EVERY = 8
_MOST_FLYING = 192
"""Copies of frames in flight at most: the ring of a veth's queue has 256 places, and drops what it has no room for."""
_PARKING = 256  # frames that may wait for the CPU that aggregates


class PinchPort(Closing):
    """Programs of ``bpf/aggregate.bpf.c`` and ``bpf/broadcast.bpf.c`` for one exchange, and every way to talk to them.

    :param tables: What is received from whom, and what for.
    :raises KernelError: The kernel refused a program or map.
    """

    def __init__(self, dispatcher: Dispatcher, spec: ExchangeSpec, layout: RowLayout, tables: Tables, numbers: Numbers) -> None:
        self.spec, self.layout, self.dispatcher = spec, layout, dispatcher
        self.group = spec.group
        self.targets = len(tables.targets)
        cpus = sorted(os.sched_getaffinity(1))
        pinned = spec.processing == "pinned" or cpus[-1] >= _MOST_BANKS
        #: The CPU that aggregates for each rank; 0 stands for all where frames are aggregated anywhere.
        self.homes = [cpus[rank % len(cpus)] % maps.MAX_FLOWS if pinned else 0 for rank in range(self.group.size)]
        self.cpu = self.homes[self.group.rank] if pinned else maps.ANYWHERE
        self.banks = 1 if pinned else cpus[-1] + 1
        self.capacity = bundle_bound(len(tables.outgoing), layout.rows) * layout.parts
        self.acked_words = max(-(-self.capacity // 32), 1)
        self.doorbell: socket.socket | None = None
        self._objects: list[BpfObject] = []
        try:
            self._load(tables)
            self._share(tables)
            self._connect_doorbell(numbers)
            receive, send = (loaded.programs for loaded in self._objects)
            link, bell, order = (receive[f"pinch_{end}"] for end in ("link", "bell", "order"))
            dispatcher.add(self.group.group_id, link, bell, order, send["pinch_send"])
        except BaseException:
            self._close_own()
            raise

    def _load(self, tables: Tables) -> None:
        group, layout = self.group, self.layout
        config = maps.Config(
            cookie=group.cookie,
            rank=group.rank,
            ranks=group.size,
            group=group.group_id,
            words=layout.words,
            parts=layout.parts,
            rows=layout.rows,
            payload=layout.payload,
            bits=layout.bits,
            aggregation=maps.Aggregation[self.spec.aggregation.upper()],
            targets=max(self.targets, 1),
            banks=self.banks,
            cpu=self.cpu,
            slice=tables.slice,
            capacity=self.capacity,
            acked_words=self.acked_words,
            gap=_GAP,
            uplink=socket.if_nametoindex(LINK),
            bell=socket.if_nametoindex(BELL_NEAR),
            flows=max(self.homes) + 1,
            sources=tables.sources,
        )
        for other in group.members:
            config.peers[other.rank] = ring_maps.peer(group.me, other)
        for rank, home in enumerate(self.homes):
            config.home[rank] = home
            config.homes[home] |= 1 << rank
        sizes = {
            "frames": self.capacity,
            "payloads": self.capacity,
            "vertices": len(tables.vertices),
            "edges": len(tables.edges),
            "hubs": tables.hubs,
            "hub_queue": tables.hubs,
            "stash": tables.hubs,
            "seen": tables.seen,
            "acked": self.acked_words * group.size,
            "wanted": self.acked_words * group.size,
            "orders": maps.ORDERS,
            "accumulators": self.banks * self.targets,
            "cpus": max(self.homes) + 1,
            "flows": max(self.homes) + 1,
            "schedule": (max(self.homes) + 1) * self.capacity,
        }
        values = {"payloads": layout.payload, "stash": 8 * layout.words, "accumulators": 8 * layout.wide}
        receive = BpfObject("aggregate", config, {name: max(size, 1) for name, size in sizes.items()}, values)
        self._objects.append(receive)
        shared = {name: found for name, found in receive.maps.items() if not name.startswith(".")}
        self._objects.append(BpfObject("broadcast", config, reuse=shared))

    def _share(self, tables: Tables) -> None:
        shared = self._objects[0].maps
        self.control = maps.Control.from_buffer(shared["control"].view(np.uint8).data)
        self.flows = shared["flows"].view(maps.FLOW).reshape(-1)
        self._schedule = shared["schedule"].view(np.uint64).reshape(-1)
        self.frames = shared["frames"].view(maps.FRAME).reshape(-1)
        self.payloads: NDArray[np.uint8] = shared["payloads"].view(np.uint8)
        self.accumulators: NDArray[np.uint64] = shared["accumulators"].view(np.uint64)
        self.peers = shared["peers"].view(maps.PEER).reshape(-1)
        self._acked = shared["acked"].view(np.uint64).reshape(self.group.size, -1)
        self._wanted = shared["wanted"].view(np.uint64).reshape(self.group.size, -1)
        self._orders = shared["orders"].view(np.uint64).reshape(-1)
        self._counters = shared["counters"]
        if len(tables.vertices):
            shared["vertices"].view(maps.VERTEX).reshape(-1)[:] = tables.vertices
        if len(tables.edges):
            shared["edges"].view(maps.EDGE).reshape(-1)[:] = tables.edges
        near = socket.if_nametoindex(BELL_NEAR)
        for index, device in enumerate((near, socket.if_nametoindex(LINK))):
            shared["both"].update(index, device)
        if self.cpu != maps.ANYWHERE:
            remote = self._objects[0].programs["pinch_remote"].fd
            for cpu in set(self.homes):
                shared["cpus"].update(cpu, struct.pack("=Ii", _PARKING, remote))  # struct bpf_cpumap_val
        self.control.quench_us = _QUENCH_US
        self.control.tag = zlib.crc32(f"{self.layout} {self.spec.aggregation}".encode()) & 0xFFFF
        self._events = shared["events"]
        self._consumer, self._producer, _ = self._events.ring_buffer()

    def _connect_doorbell(self, numbers: Numbers) -> None:
        self.doorbell = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.doorbell.bind((BELL_NEAR, 0))
        # The dispatcher looks at these; addresses and lengths are the programs' business.
        lower = struct.pack("!12xH BB7xB10x HHHH", 0x0800, 0x45, 0, 17, PORT, PORT, 0, 0)
        bells = [self._bell(PinchKind.BELL, lower, cpu) for cpu in sorted(set(self.homes))]
        self._work = self._bell(PinchKind.WORK, lower)
        self._bells = ctypes.create_string_buffer(b"".join(bells))
        self._native = maps.NativePinch(
            format=numbers.format,
            control=ctypes.addressof(self.control),
            payloads=self.payloads.ctypes.data,
            frames=self.frames.ctypes.data,
            bells=ctypes.addressof(self._bells),
            consumer=self._consumer.ctypes.data,
            producer=self._producer.ctypes.data,
            bell_count=len(bells),
            bell_length=len(self._work),
            doorbell=self.doorbell.fileno(),
            events=self._events.fd,
        )
        self._address = ctypes.addressof(self._native)
        library = load("pinch")
        pointer, u32 = ctypes.c_void_p, ctypes.c_uint32
        self._send, self._wait, self._ring, self._done = (
            getattr(library, f"pinch_{name}") for name in ("send", "wait", "ring", "done")
        )
        self._send.argtypes = [pointer, pointer, pointer, pointer, u32, ctypes.c_double, pointer]
        self._wait.argtypes = [pointer, ctypes.c_int64]
        self._ring.argtypes = [pointer]
        self._done.argtypes, self._done.restype = [pointer], ctypes.c_bool

    def _bell(self, kind: PinchKind, lower: bytes, cpu: int = 0) -> bytes:
        """A frame of this host's own, as long as the ones that it is turned into."""
        group = self.group
        frame = ring_maps.Frame(
            magic=MAGIC, version=VERSION, kind=kind, group=group.group_id, cookie=group.cookie, last=group.rank, chunk=cpu
        )
        ctypes.memmove(frame.lower, lower, len(lower))
        return bytes(frame).ljust(FRAME_BYTES + self.layout.payload, b"\0")

    def address(self, bundles: Bundles) -> None:
        """Say who gets which frame, and of whom acknowledgements are asked for."""
        parts = self.layout.parts
        to = np.repeat(bundles.to, parts)
        frames = self.frames[: len(to)]
        peers = -(-(self.group.size - 1) // len(set(self.homes)))  # of a flow
        window = min(self.group.window * peers, _MOST_FLYING)
        every = max(1, min(_ACK_EVERY, window // (4 * peers)))
        ask = np.zeros(len(to), np.uint32)
        self._wanted[:] = 0
        for rank in range(self.group.size):
            mine = np.flatnonzero(to >> np.uint32(rank) & np.uint32(1))
            if len(mine):
                ask[mine[every - 1 :: every]] |= np.uint32(1 << rank)
                ask[mine[-1]] |= np.uint32(1 << rank)
                np.bitwise_or.at(self._wanted[rank], mine // 32, np.uint64(1) << (mine % 32).astype(np.uint64))
        frames["to"], frames["ask"] = to, ask
        frames["copies"] = np.bitwise_count(to)
        for flow in set(self.homes):
            ranks = np.uint32(sum(1 << rank for rank, home in enumerate(self.homes) if home == flow))
            numbers = np.flatnonzero(to & ranks)
            self._schedule[flow * self.capacity :][: len(numbers)] = numbers
            self.flows["total"][flow] = len(numbers)
        self.control.window = window
        self._copies = int(frames["copies"].sum())

    def open(self, generation: int) -> None:
        """Take frames of a generation in from here on; there is nothing to send yet.

        All of the one before has come and has been acknowledged, so nothing counts any more. Others' frames of this one count
        from the moment that `progress` says so, hence all counts begin before it; but bells must find no frame to send before
        they find `next` at its beginning.
        """
        control = self.control
        self.generation = generation
        control.expected = control.copies = maps.UNKNOWN
        control.acked = control.received = control.owed = control.queued = control.served = 0
        self.peers["received"] = 0
        self.peers["acked"] = 0
        control.progress = generation << 32
        self.flows["next"] = 0
        self.flows["flying"] = 0

    def expect(self, counts: NDArray[np.int64]) -> None:
        """Say how much there is to come: frames of each rank, and acknowledgements."""
        self._expected = counts
        self.control.expected = int(counts.sum())
        self.control.copies = self._copies

    def send(self, x: Embeddings, bundles: Bundles, factor: float, last: NDArray[np.int32] | None) -> None:
        """Quantize and send.

        :param last: See `Numbers.fill`.
        """
        addresses = x.ctypes.data, bundles.order.ctypes.data, bundles.starts.ctypes.data
        before = None if last is None else last.ctypes.data
        self._check(self._send(self._address, *addresses, len(bundles.to), factor, before))

    def ring(self, work: bool = False) -> None:
        """Get every flow going: a system call each, which may carry frames for a while.

        :param work: Go on with what has come in, too.
        :raises CollectiveError: The doorbell is gone.
        """
        assert self.doorbell is not None
        if work:
            self.doorbell.send(self._work)
        self._check(self._ring(self._address))

    @property
    def done(self) -> bool:
        """Whether all has come, been added, and been acknowledged."""
        return bool(self._done(self._address))

    def wait(self, seconds: float) -> bool:
        """Sleep until the exchange is complete (True), or time is up."""
        result = self._wait(self._address, int(max(seconds, 0.0) * 1e9))
        self._check(-result if result < 0 else 0)
        return bool(result)

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent in `send` and `wait` since the start, by phase."""
        return {phase: getattr(self._native, f"{phase}_ns") * 1e-9 for phase in ("quantize", "send", "wait")}

    def _check(self, code: int) -> None:
        if code:
            raise CollectiveError(
                f"rank {self.group.rank} ({self.group.me.name}): doorbell {BELL_NEAR}-{BELL_FAR}: {explain(code)}"
            )

    def lacking(self, rank: int) -> NDArray[np.int64]:
        """Frames that have been sent to a rank, and that it has not acknowledged."""
        words = self._acked[rank]
        have = np.where(words >> np.uint64(32) == np.uint64(self.generation), words, np.uint64(0))
        missing = self._wanted[rank] & ~have & np.uint64(0xFFFFFFFF)
        bits = np.unpackbits(missing.astype("<u4").view(np.uint8), bitorder="little")
        numbers: NDArray[np.int64] = np.flatnonzero(bits)
        flow = self.homes[rank]
        sent = self._schedule[flow * self.capacity :][: int(self.flows["next"][flow])]
        return numbers[np.isin(numbers, sent.astype(np.int64))]

    def absent(self, rank: int) -> bool:
        """Whether a rank still has something to send, or to acknowledge."""
        return bool(self.peers["received"][rank] < self._expected[rank]) or len(self.lacking(rank)) > 0

    def order(self, frames: NDArray[np.int64]) -> None:
        """Have frames sent again to those who lack them; `ring` carries it out."""
        room = maps.ORDERS - (self.control.ordered - self.control.taken) % (1 << 32)
        frames = frames[:room]
        self._orders[(self.control.ordered + np.arange(len(frames))) % maps.ORDERS] = self.generation << 32 | frames
        self.control.ordered = (self.control.ordered + len(frames)) % (1 << 32)

    def counters(self) -> dict[str, int]:
        """All of ``enum pinch_counter``, summed over CPUs."""
        table = np.frombuffer(self._counters.lookup(0), np.uint64).reshape(-1, len(maps.COUNTERS))
        return dict(zip(maps.COUNTERS, table.sum(axis=0).tolist(), strict=True))

    def close(self) -> None:
        """Leave the group's frames to the dispatcher's counter of strangers, and unload."""
        if self._objects:
            self.dispatcher.remove(self.group.group_id)
        self._close_own()

    def _close_own(self) -> None:
        if self.doorbell is not None:
            self.doorbell.close()
            self.doorbell = None
        while self._objects:
            self._objects.pop().close()
