"""A rank that takes every step twice, in the loaded programs and in `testbed.protocol`, and
compares the two.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple

import numpy as np

from testbed.kernel import XDP_DROP, XDP_REDIRECT, XDP_TX, BpfObject, TestRun
from testbed.kernel.abi import Struct, constant
from testbed.protocol.ring.memory import (
    COUNTERS,
    NACK_ENTRIES,
    Config,
    Nack,
    NackQueue,
    ResultState,
    WrKind,
)
from testbed.protocol.ring.process import Process
from testbed.protocol.ring.rank import Rank
from testbed.protocol.wire import Frame, Words, decode, encode, net_peer
from tests.support.native.process import STRUCTS, NativeProcess, sq_pending

FREE, WAITING = constant("RING_EARLY_FREE"), constant("RING_EARLY_WAITING")  # between calls
LOOPBACK = 1


class KernelRank:
    """``bpf/ring.bpf.c`` loaded for one rank, and its maps as a process sees them.

    :param spare: Elements that the maps have beyond the number that the programs know.
    """

    def __init__(self, config: Config, spare: int = 0) -> None:
        self.config = config
        own = (
            "cookie",
            "rank",
            "ranks",
            "group",
            "chunk_bytes",
            "chunks",
            "retransmit_slots",
            "upstream",
            "reorder_threshold",
        )
        rodata = Struct(
            "ring_config", uplink=LOOPBACK, **{name: getattr(config, name) for name in own}
        )
        me = config.peers[config.rank]
        for rank, peer in enumerate(config.peers):
            rodata.peers[rank] = net_peer(me, peer)
        self.object = BpfObject(
            "ring",
            rodata=rodata,
            max_entries=dict.fromkeys(
                ("ring_inputs", "ring_results", "ring_chunks"), config.chunks + spare
            )
            | dict.fromkeys(("ring_retransmit", "ring_retransmit_data"), config.retransmit_slots)
            | {"ring_streams": max(os.sched_getaffinity(1)) + 1},
            value_sizes={
                f"ring_{name}": config.chunk_bytes
                for name in ("inputs", "results", "early_data", "retransmit_data")
            },
        )
        shared, dtype = self.object.maps, self.object.dtype
        self.inputs, self.results = shared["ring_inputs"].view(), shared["ring_results"].view()
        self.memory = {
            name: shared[f"ring_{name}"].view(dtype(struct)).reshape(-1)
            for name, struct in STRUCTS.items()
        }
        self.records, self.sq = self.memory["chunks"], self.memory["sq"]
        self.control = Struct(self.memory["control"])
        records = (Struct.each(self.memory[name]) for name in ("early_frames", "streams", "ranks"))
        self.early_frames, self.streams, self.ranks = records
        self.consumer, self.producer, self.data = shared["ring_events"].ring_buffer()

    def close(self) -> None:
        self.object.close()

    def reset(self, seq: int = 0, nack_holdoff_us: int = 0) -> None:
        """Reset to the initial state, except for the sequence number that the process has
        entered.
        """
        for memory in (self.inputs, self.results, *self.memory.values()):
            memory[:] = np.zeros((), memory.dtype)
        counters = self.object.maps["ring_counters"]
        counters.update(0, bytes(counters.stride * counters.per_cpu))
        self.consumer[0] = self.producer[0]
        for name in ("ring_nacks", "ring_retransmit"):
            table = self.object.maps[name]
            for key in range(table.max_entries):
                table.update(key, bytes(table.stride * table.per_cpu or table.value_size))
        self.control.progress, self.control.nack_holdoff_us = seq << 32, nack_holdoff_us

    def run(self, program: str, data: bytes) -> TestRun:
        return self.object.programs[program].test_run(data)

    def counters(self) -> dict[str, int]:
        table = np.frombuffer(self.object.maps["ring_counters"].lookup(0), np.uint64).reshape(
            -1, len(COUNTERS)
        )
        return dict(zip(COUNTERS, table.sum(axis=0).tolist(), strict=True))

    def events(self) -> list[int]:
        """The sequence numbers in the ring buffer since the last call; a record has a header of 8
        bytes in front of each.
        """
        found = []
        while self.consumer[0] < self.producer[0]:
            place = int(self.consumer[0]) % (self.data.size // 2) + 8
            found.append(int.from_bytes(self.data[place : place + 8].tobytes(), "little"))
            self.consumer[0] += 16
        return found

    def nacks(self, cpu: int) -> Struct:
        """The nack queue of a CPU."""
        table = self.object.maps["ring_nacks"]
        return Struct.each(np.frombuffer(table.lookup(0), self.object.dtype("ring_nacks")))[cpu]

    def snapshot(self) -> tuple[bytes, ...]:
        """Everything that a process acts on; without counters, unfinished results, and the contents
        of free slots.
        """
        done, early = self.records["result"] != 0, self.memory["early_frames"]["state"] != FREE
        memory = self.inputs, self.results[done], self.records, self.memory["early_frames"][early]
        data = b"".join(
            self.object.maps["ring_early_data"].lookup(int(slot)) for slot in np.flatnonzero(early)
        )
        return *(part.tobytes() for part in memory), bytes(self.control), self.sq.tobytes(), data

    def assert_same(self, rank: Rank) -> None:
        """Check that the maps equal the reference model's memory. Times are left out, because the
        clocks differ.
        """
        control = self.control
        assert self.counters() == rank.counters
        assert (control.progress >> 32, control.progress & 0xFFFFFFFF) == (rank.seq, rank.ready)
        assert (control.next >> 32, control.next & 0xFFFFFFFF) == (rank.next_seq, rank.next_slot)
        for name in (
            "stored",
            "wake_at",
            "nack_holdoff_us",
            "rto_us",
            "late_us",
            "verified",
            "front",
            "flushed",
            "lossy",
            "ended",
        ):
            assert getattr(control, name) == getattr(rank, name), name
        assert sq_pending(control, self.sq) == list(rank.sq)
        cpu = rank.stream_number(0)
        nacks = self.nacks(cpu)
        assert nacks.frames == rank.nacks[0].frames
        _assert_same_queue(nacks.fresh, rank.nacks[0].fresh)
        _assert_same_queue(nacks.again, rank.nacks[0].again)
        stream, expected = self.streams[cpu], rank.streams[0]
        assert (stream.seq, stream.prev, stream.progress) == (
            expected.seq,
            expected.prev,
            expected.progress,
        )
        assert {
            other: count for other, count in enumerate(stream.heard.tolist()) if count
        } == expected.heard
        for peer, said in zip(self.ranks, rank.ranks, strict=False):
            found = peer.seq, peer.verified, peer.verified_acked, peer.front, peer.ended
            assert found == astuple(said)
        for index, chunk in enumerate(rank.chunks):
            record = self.records[index]
            for name in ("input_sum", "reduced", "result", "nacks", "tries"):
                assert int(record[name]) == getattr(chunk, name), (index, name)
            for name in ("before", "lost", "attempt"):
                assert record[name].tolist() == getattr(chunk, name), (index, name)
            for name in ("nacked_us", "resent_us"):
                assert bool(record[name]) == bool(getattr(chunk, name)), (index, name)
            if chunk.result & 0xFF in (ResultState.DONE, ResultState.REFUSED, ResultState.VERIFIED):
                assert int(record["result_sum"]) == chunk.result_sum
                words = rank.tensors[chunk.result >> 32 & 1].length // 8
                np.testing.assert_array_equal(
                    self.results[index, :words], rank.results[index][:words]
                )
        for slot, saved in enumerate(rank.retransmit):
            record = self.object.maps["ring_retransmit"].lookup(slot)
            found = Struct(np.frombuffer(record, self.object.dtype("ring_retransmit")))
            expected = saved.owner, saved.valid, saved.sum, saved.round
            assert (found.owner, found.valid, found.sum, found.round) == expected, slot
            if saved.valid:
                data = self.object.maps["ring_retransmit_data"].lookup(slot)
                assert data[: saved.data.nbytes] == saved.data.tobytes()
        for slot, (early, frame) in enumerate(
            zip(self.early_frames, rank.early_frames, strict=True)
        ):
            assert early.state == (FREE if frame is None else WAITING), slot
            if frame is not None:
                for name in ("seq", "chunk", "attempt", "hop", "round", "length", "tag"):
                    assert getattr(early, name) == getattr(frame.header, name), (slot, name)
                assert early.sum == frame.sum(frame.header.length)
                data = self.object.maps["ring_early_data"].lookup(slot)
                assert data[: frame.header.length] == frame.take(frame.header.length).tobytes()
        assert self.events() == rank.events
        rank.events.clear()


def _assert_same_queue(queue: np.void, expected: NackQueue) -> None:
    """Check that the nacks are the same, except for their due times."""

    def entries(first: int, end: int) -> list[tuple[int, ...]]:
        found = queue["nacks"][[index % NACK_ENTRIES for index in range(first, end)]]
        return found[["seq", "item", "due_frame"]].tolist()

    def of(nacks: Iterable[Nack]) -> list[tuple[int, ...]]:
        return [(nack.seq, nack.item, nack.due_frame) for nack in nacks]

    assert entries(int(queue["taken"]), int(queue["carried"])) == of(expected.carried)
    assert entries(int(queue["carried"]), int(queue["given"])) == of(expected.waiting)


class ReferenceRank(Rank):
    """A `Rank` each of whose frames also goes through the kernel."""

    kernel: KernelRank

    def stream_number(self, cpu: int) -> int:
        return min(os.sched_getaffinity(0))

    def on_frame(self, frame: Frame, now_us: int = 0, cpu: int = 0) -> Frame | None:
        return self._both("ring_link", XDP_TX, super().on_frame, frame)

    def on_wr(self, kick: Frame, now_us: int = 0, cpu: int = 0) -> Frame | None:
        return self._both("ring_execute", XDP_REDIRECT, super().on_wr, kick)

    def on_bytes(self, data: bytes) -> Frame | None:
        """Any bytes on the link: whatever is no frame of the ring must be dropped and change
        nothing.
        """
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
        reference: Callable[[Frame, int], Frame | None],
        frame: Frame,
        data: bytes | None = None,
    ) -> Frame | None:
        run = self.kernel.run(program, encode(frame) if data is None else data)
        out = reference(frame, time.monotonic_ns() // 1000)
        assert run.retval == (
            XDP_DROP if out is None else XDP_REDIRECT if self.nack_due else verdict
        )
        if out is not None:
            assert run.data == encode(out)
        self.kernel.assert_same(self)
        return out


class ReferenceProcess(Process):
    """A `Process` each of whose steps is also taken by ``testbed/native/ring.c``, on the programs'
    maps.
    """

    def __init__(self, rank: ReferenceRank, window: int) -> None:
        super().__init__(rank, window)
        self.kernel = kernel = rank.kernel
        setting, stream = rank.config, rank.stream_number(0)
        shared = {
            name: kernel.memory[name]
            for name in ("control", "early_frames", "sq", "chunks", "ranks")
        }
        shared["results"] = kernel.results
        shared["streams"] = kernel.memory["streams"][stream : stream + 1]
        self.native = NativeProcess(setting.rank, setting.ranks, window, shared)
        self._in_c = (
            False  # native code is running, and does by itself what this class does step by step
        )

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
        super().begin(seq, total, length, tag, scattered, gathered, root)
        self.native.begin(seq, total, length, tag, scattered, gathered, root)

    def verify_scattered(self) -> bool:
        self._in_c = True
        done = super().verify_scattered()
        self._in_c = False
        assert self.native.end_scatter(self.memory.tensors[self.memory.seq & 1]) == done
        return done

    def fill(self, chunk: int, words: Words) -> None:
        super().fill(chunk, words)
        self.kernel.inputs[chunk, : words.size] = words
        self.kernel.records["input_sum"][chunk] = self.memory.chunks[chunk].input_sum

    def publish(self, ready: int) -> None:
        self._in_c = True
        super().publish(ready)
        self._in_c = False
        self.native.publish(self.memory.seq, ready)
        self.native.kicks()

    def replay(self) -> None:
        outermost, self._in_c = not self._in_c, True
        super().replay()
        if outermost:
            self._in_c = False
            self.native.replay(self.memory.seq, self.memory.ready)

    def mark_verified(self) -> None:
        super().mark_verified()
        self.kernel.control.verified = self.memory.verified

    def stall(self, now_us: int, still: bool = True) -> None:
        now_us = time.monotonic_ns() // 1000 & 0xFFFFFFFF
        self.native.ring.stalls = self.stalls
        self._in_c = True
        super().stall(now_us, still)
        self._in_c = False
        self.native.stall(self.total, now_us, still)

    def probe(self, cpu: int, now_us: int) -> None:
        self._in_c = True
        super().probe(cpu, now_us)
        self._in_c = False
        self.native.probe(self.memory.seq, cpu, now_us)

    def refuse(self, chunk: int) -> None:
        outermost, self._in_c = not self._in_c, True
        super().refuse(chunk)
        if outermost:
            self._in_c = False
            self.native.refuse(chunk)

    def post(self, kind: WrKind, seq: int, chunk: int, attempt: int = 0, extra: int = 0) -> None:
        super().post(kind, seq, chunk, attempt, extra)
        if not self._in_c:
            self.native.post(kind, seq, chunk, attempt, extra)
