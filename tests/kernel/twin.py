"""A rank of which everything is done twice: by the loaded programs and by `testbed.protocol`, and compared after every step."""

import ctypes
import ipaddress
import time
from collections.abc import Callable

import numpy as np

from testbed.collectives import ring_maps as maps
from testbed.kernel import XDP_DROP, XDP_REDIRECT, XDP_TX, BpfObject, TestRun
from testbed.protocol.memory import ASKS, COUNTERS, ORDERS, PARKING, Config, Event, EventKind, OrderEntry
from testbed.protocol.process import Process
from testbed.protocol.ring import Rank
from testbed.protocol.wire import Frame, Words, decode, encode, ip_sum
from tests.native.process import NativeProcess

FREE, PARKED = 0, 2  # enum ring_parked_state, between calls
LOOPBACK = 1


class KernelRank:
    """``bpf/ring.bpf.c``, loaded for one rank, and its maps as a process sees them.

    :param spare: Elements that the maps have beyond what the programs are told.
    """

    def __init__(self, config: Config, spare: int = 0) -> None:
        self.config = config
        rodata = maps.Config(
            cookie=config.cookie,
            rank=config.rank,
            ranks=config.ranks,
            group=config.group,
            chunk_bytes=config.chunk_bytes,
            chunks=config.chunks,
            upstream=config.upstream,
            gap=config.gap,
            uplink=LOOPBACK,
        )
        me = config.peers[config.rank]
        for rank, peer in enumerate(config.peers):
            address = int.from_bytes(ipaddress.IPv4Address(peer.ip).packed, "little")
            rodata.peers[rank] = maps.Peer(tuple(peer.mac_bytes), ip_sum(me.ip, peer.ip), address)
        self.object = BpfObject(
            "ring",
            rodata=rodata,
            max_entries=dict.fromkeys(("inputs", "results", "chunks"), config.chunks + spare),
            value_sizes=dict.fromkeys(("inputs", "results", "parking_data"), config.chunk_bytes),
        )
        shared = self.object.maps
        self.inputs, self.results = shared["inputs"].view(), shared["results"].view()
        self.records = shared["chunks"].view(_dtype(maps.Chunk)).reshape(-1)
        self.bytes = {name: shared[name].view(np.uint8) for name in ("control", "parking", "orders")}
        self.control = maps.Control.from_buffer(self.bytes["control"].data)
        self.parking = (maps.Parked * PARKING).from_buffer(self.bytes["parking"].data)
        self.orders = (maps.RingOrder * ORDERS).from_buffer(self.bytes["orders"].data)
        self.consumer, self.producer, self.data = shared["events"].ring_buffer()

    def close(self) -> None:
        self.object.close()

    def reset(self, generation: int = 0, quench_us: int = 0) -> None:
        """As new, but for the generation that the process is said to have entered."""
        for memory in (self.inputs, self.results, *self.bytes.values()):
            memory[:] = 0
        self.records[:] = 0
        counters = self.object.maps["counters"]
        counters.update(0, bytes(counters.stride * counters.per_cpu))
        self.consumer[0] = self.producer[0]
        for name in ("asks", "fronts"):
            table = self.object.maps[name]
            for key in range(table.max_entries):
                table.update(key, bytes(table.stride * table.per_cpu or table.value_size))
        self.control.progress, self.control.quench_us = generation << 32, quench_us

    def run(self, program: str, data: bytes) -> TestRun:
        return self.object.programs[program].test_run(data)

    def counters(self) -> dict[str, int]:
        table = np.frombuffer(self.object.maps["counters"].lookup(0), np.uint64).reshape(-1, len(COUNTERS))
        return dict(zip(COUNTERS, table.sum(axis=0).tolist(), strict=True))

    def events(self) -> list[Event]:
        """What the ring buffer has had since the last call; a record is a header of 8 bytes and an event of 16."""
        found = []
        while self.consumer[0] < self.producer[0]:
            place = int(self.consumer[0]) % (self.data.size // 2) + 8
            event = maps.Event.from_buffer_copy(self.data[place : place + ctypes.sizeof(maps.Event)].tobytes())
            found.append(Event(EventKind(event.kind), event.rank, event.generation, event.stored))
            self.consumer[0] += 8 + ctypes.sizeof(maps.Event)
        return found

    def asks(self) -> list[OrderEntry]:
        """What the programs want sent, all CPUs' together: test runs stay on one."""
        table = self.object.maps["asks"]
        queues = (maps.RingAsks * table.per_cpu).from_buffer_copy(table.lookup(0))
        entries = [queue.orders[index % ASKS] for queue in queues for index in range(queue.taken, queue.given)]
        return [OrderEntry(entry.kind, entry.generation, entry.chunk, entry.attempt) for entry in entries]

    def snapshot(self) -> tuple[bytes, ...]:
        """All that a process goes by, without counters, results that are not done and what is left in free parking slots."""
        done, parked = self.records["done"] != 0, self.bytes["parking"].view(np.uint32)[:, 0] != FREE
        memory = self.inputs, self.results[done], self.records, self.bytes["parking"][parked]
        data = b"".join(self.object.maps["parking_data"].lookup(int(slot)) for slot in np.flatnonzero(parked))
        return *(part.tobytes() for part in memory), bytes(self.control), bytes(self.orders), data

    def assert_same(self, rank: Rank) -> None:
        """The maps hold what the twin holds. Times are left out: the clocks differ."""
        control = self.control
        assert self.counters() == rank.counters
        assert (control.progress >> 32, control.progress & 0xFFFFFFFF) == (rank.generation, rank.ready)
        assert (control.next >> 32, control.next & 0xFFFFFFFF) == (rank.next_generation, rank.next_slot)
        for name in ("stored", "wake_at", "rtt_samples", "quench_us", "settled"):
            assert getattr(control, name) == getattr(rank, name), name
        waiting = control.ordered - control.taken & 0xFFFFFFFF
        entries = (self.orders[(control.taken + index) % ORDERS] for index in range(waiting))
        assert [OrderEntry(e.kind, e.generation, e.chunk, e.attempt) for e in entries] == list(rank.orders)
        assert self.asks() == list(rank.asks)
        for owner, expected in enumerate(rank.fronts):
            front = maps.Front.from_buffer_copy(self.object.maps["fronts"].lookup(owner))
            assert (front.generation, front.slot) == (expected.generation, expected.slot), owner
        for index, chunk in enumerate(rank.chunks):
            record = self.records[index]
            for name in ("input_sum", "claimed", "done", "attempt"):
                assert int(record[name]) == getattr(chunk, name), (index, name)
            assert bool(record["sent_us"]) == bool(chunk.sent_us), index
            if chunk.done and chunk.claimed == chunk.done:
                assert int(record["result_sum"]) == chunk.result_sum
                words = rank.tensors[chunk.done & 1].length // 8
                np.testing.assert_array_equal(self.results[index, :words], rank.results[index, :words])
        for slot, (parked, frame) in enumerate(zip(self.parking, rank.parking, strict=True)):
            assert parked.state == (FREE if frame is None else PARKED), slot
            if frame is not None:
                for name in ("generation", "chunk", "attempt", "hop", "length", "tag", "checksum"):
                    assert getattr(parked, name) == getattr(frame.header, name), (slot, name)
                data = self.object.maps["parking_data"].lookup(slot)
                assert data[: frame.header.length] == frame.payload.tobytes()
        assert self.events() == rank.events
        rank.events.clear()


class TwinRank(Rank):
    """A `Rank` whose every frame goes through the kernel as well."""

    kernel: KernelRank

    def on_frame(self, frame: Frame, now_us: int = 0) -> Frame | None:
        return self._both("ring_link", XDP_TX, super().on_frame, frame)

    def on_order(self, bell: Frame, now_us: int = 0) -> Frame | None:
        return self._both("ring_order", XDP_REDIRECT, super().on_order, bell)

    def on_bytes(self, data: bytes) -> Frame | None:
        """Any bytes by the link: what is no frame of the ring's is dropped and changes nothing."""
        frame = decode(data)
        if frame is not None:
            assert encode(frame)[42:] == data[42:]
            return self._both("ring_link", XDP_TX, super().on_frame, frame, data)
        assert self.kernel.run("ring_link", data).retval == XDP_DROP
        self.kernel.assert_same(self)
        return None

    def _both(
        self,
        program: str,
        verdict: int,
        twin: Callable[[Frame, int], Frame | None],
        frame: Frame,
        data: bytes | None = None,
    ) -> Frame | None:
        run = self.kernel.run(program, encode(frame) if data is None else data)
        out = twin(frame, time.monotonic_ns() // 1000)
        assert run.retval == (XDP_DROP if out is None else XDP_REDIRECT if self.asking else verdict)
        if out is not None:
            assert run.data == encode(out)
        self.kernel.assert_same(self)
        return out


class TwinProcess(Process):
    """A `Process` whose every step is also done by ``testbed/native/ring.c``, on the programs' maps."""

    def __init__(self, rank: TwinRank, window: int) -> None:
        super().__init__(rank, window)
        self.kernel = kernel = rank.kernel
        setting = rank.config
        shared = {name: getattr(kernel, name) for name in ("control", "parking", "orders")}
        shared["records"] = (maps.Chunk * setting.chunks).from_buffer(kernel.object.maps["chunks"].view(np.uint8).data)
        self.native = NativeProcess(setting.rank, setting.ranks, window, **shared)
        self._in_c = False  # C is at work, and does by itself what this class does step by step

    def begin(self, generation: int, total: int, length: int, tag: int) -> None:
        super().begin(generation, total, length, tag)
        self.native.begin(generation, total, length, tag)

    def fill(self, chunk: int, words: Words) -> None:
        super().fill(chunk, words)
        self.kernel.inputs[chunk, : words.size] = words
        self.kernel.records["input_sum"][chunk] = self.memory.chunks[chunk].input_sum

    def publish(self, ready: int) -> None:
        self._in_c = True
        super().publish(ready)
        self._in_c = False
        self.native.publish(self.memory.generation, ready)
        self.native.rings()

    def replay(self) -> None:
        outermost, self._in_c = not self._in_c, True
        super().replay()
        if outermost:
            self._in_c = False
            self.native.replay(self.memory.generation, self.memory.ready)

    def verify(self) -> bool:
        good = super().verify()
        self.kernel.control.settled = self.memory.settled
        return good

    def refuse(self, chunk: int) -> None:
        self._in_c = True
        super().refuse(chunk)
        self._in_c = False
        self.native.refuse(chunk)

    def order(self, kind: maps.Order, generation: int, chunk: int, attempt: int = 0) -> None:
        super().order(kind, generation, chunk, attempt)
        if not self._in_c:
            self.native.order(kind, generation, chunk, attempt)

    def take(self, most: int) -> int:
        first = super().take(most)
        assert self.native.take(most) == first
        return first


def _dtype(structure: type[ctypes.Structure]) -> np.dtype:
    return np.dtype(structure)
