"""The ring all-reduce of one rank as a state machine without I/O or clocks.

Twin of ``bpf/ring.bpf.c``, which the tests compare with it frame by frame. A frame goes in, at most one comes out:
`Rank.on_frame` is the program on the link, `Rank.on_order` the one on the doorbell. What C does against races with other CPUs
has no counterpart here: calls come one at a time. `testbed.protocol.process` is the process beside it. One rank alone needs no
ring: ranks are 2..32.
"""

from __future__ import annotations

from collections.abc import Callable

from testbed.protocol.generation import generation_after
from testbed.protocol.memory import PARKING, Event, EventKind, Memory, Order, OrderEntry, Tensor
from testbed.protocol.wire import BLOCK, FRAME_BYTES, USEFUL, VERSION, Frame, Kind, checksum

__all__ = ["Rank"]

_U32 = 0xFFFFFFFF
_U64 = 0xFFFFFFFFFFFFFFFF


class Rank(Memory):
    """The programs of one rank, and the memory that they work on."""

    def on_frame(self, frame: Frame, now_us: int = 0) -> Frame | None:
        """A frame has come in by the link (``ring_link``).

        :param now_us: Microseconds of any clock that does not go back.
        :returns: The frame that goes out by the same link, if any. The one passed in is not changed.
        """
        return self._run(self._on_frame, frame, now_us)

    def on_order(self, bell: Frame, now_us: int = 0) -> Frame | None:
        """One of the frames that a bell was made into has come back: carry out the next order (``ring_order``).

        :returns: The frame that goes out by the link, if any.
        """
        return self._run(self._on_order, bell, now_us)

    def _run(self, program: Callable[[Frame, int], Frame | None], frame: Frame, now_us: int) -> Frame | None:
        """``begin`` of the twin: what every frame must be before anything is looked at that it names."""
        if frame.header.cookie != self.config.cookie or frame.header.version != VERSION:
            return self._drop("bad_cookie")
        return program(frame.copy(), now_us & _U32)

    def _on_frame(self, frame: Frame, now: int) -> Frame | None:
        kind = frame.header.kind
        if kind == Kind.PROBE:
            return self._on_probe(frame)
        if kind == Kind.ALIVE:
            return self._on_alive(frame)
        if kind not in (Kind.REDUCE, Kind.RESULT, Kind.REQUEST):
            return self._drop("bad_kind")
        if not self._find_chunk(frame):
            return None
        if kind == Kind.REQUEST:
            return self._on_request(frame, now)
        if frame.source.ip != self.config.peers[self.config.before].ip:
            return self._drop("bad_rank")
        return self._on_reduce(frame, now) if kind == Kind.REDUCE else self._on_result(frame, now)

    def _on_reduce(self, frame: Frame, now: int) -> Frame | None:
        header, config = frame.header, self.config
        hop = (config.rank - header.chunk) % config.ranks
        if not hop or header.hop != hop:
            return self._drop("bad_rank")
        if self.chunks[header.chunk].done == header.generation:
            return self._answer(frame)
        if header.generation not in (self.generation, generation_after(self.generation)):
            return self._drop("bad_generation")
        if header.generation == self.generation and header.chunk < self.ready:
            return self._reduce(frame, now)
        return self._park(frame)

    def _on_result(self, frame: Frame, now: int) -> Frame | None:
        header, config = frame.header, self.config
        if header.last >= config.ranks or header.hop >= config.ranks:
            return self._drop("bad_rank")
        if self.chunks[header.chunk].done == header.generation:
            self._count("duplicate")
        elif header.generation != self.generation or header.chunk >= self.ready:
            # No sum can be whole without this rank's part: a forgery, or a frame of another age.
            return self._drop("bad_generation")
        else:
            if not self._store(frame, header.checksum, now):
                return None
            header.flags |= USEFUL
        if config.rank != header.last:
            header.hop += 1
            return self._send(frame, config.after, header.length)
        return self._launch_next(frame, now) if header.flags & USEFUL else None

    def _on_request(self, frame: Frame, now: int) -> Frame | None:
        header, config = frame.header, self.config
        chunk = self.chunks[header.chunk]
        if header.chunk % config.ranks != config.rank:
            return self._drop("bad_rank")
        if config.quench_us and (now - chunk.sent_us & _U32) < config.quench_us:
            return None
        if chunk.done == header.generation:
            chunk.sent_us = now
            self._count("resent")
            chunk.attempt += 1
            header.attempt = chunk.attempt & 0xFF
            return self._answer(frame)
        # Never launched: it will be, and nothing is lost yet.
        launched = header.chunk < self.ready and header.chunk // config.ranks < self.next_slot
        if header.generation != self.generation or not launched:
            return self._drop("bad_generation")
        self._count("resent")
        return self._launch(frame, header.chunk, chunk.attempt + 1, now)

    def _on_probe(self, frame: Frame) -> Frame | None:
        header, asker = frame.header, frame.header.last
        if asker >= self.config.ranks:
            return self._drop("bad_rank")
        header.kind, header.last = Kind.ALIVE, self.config.rank
        header.generation, header.chunk = self.generation, self.stored
        return self._send(frame, asker, 0)

    def _on_alive(self, frame: Frame) -> Frame | None:
        header = frame.header
        self.events.append(Event(EventKind.ALIVE, header.last, header.generation, header.chunk))
        return None

    def _on_order(self, frame: Frame, now: int) -> Frame | None:
        if frame.header.kind != Kind.BELL:
            return self._drop("bad_kind")
        if not self.orders:
            return None
        order = self.orders.popleft()
        if order.kind == Order.LAUNCH:
            if order.generation != self.generation or order.chunk >= self.ready:
                return self._drop("bad_generation")
            if order.attempt:
                self._count("resent")
            return self._launch(frame, order.chunk, order.attempt, now)
        if order.kind == Order.REPLAY:
            return self._replay(frame, order.chunk, now)
        if order.kind == Order.REQUEST:
            return self._request(frame, order)
        if order.kind == Order.PROBE:
            frame.header.kind, frame.header.last = Kind.PROBE, self.config.rank
            return self._send(frame, order.chunk, 0)
        return self._drop("bad_kind")

    def _find_chunk(self, frame: Frame) -> bool:
        """Refuse a frame if what it says cannot be true of the chunk that it names."""
        header, config = frame.header, self.config
        if header.chunk >= config.chunks:
            return self._refuse("bad_chunk")
        if not BLOCK <= header.length <= config.chunk_bytes or header.length % BLOCK:
            return self._refuse("bad_length")
        if header.generation != self.generation:
            # An earlier one is answered as it asks, what the next one will be is not known yet.
            return True
        tensor = self._tensor(header.generation)
        if header.chunk >= tensor.total:
            return self._refuse("bad_chunk")
        if header.length != tensor.length:
            return self._refuse("bad_length")
        return header.tag == tensor.tag or self._refuse("bad_tensor")

    def _park(self, frame: Frame) -> Frame | None:
        """Keep the frame until the process has its gradient ready and rings."""
        slot = self.park % PARKING
        self.park += 1
        if self.parking[slot] is not None:
            return self._drop("parking_full")
        words = frame.header.length // 8
        if frame.payload.size < words:
            return self._drop("bad_length")
        frame.payload, frame.trailer = frame.payload[:words], b""
        self.parking[slot] = frame
        return self._drop("parked")

    def _replay(self, bell: Frame, slot: int, now: int) -> Frame | None:
        """A parked frame's turn has come: the bell's frame takes its place."""
        if slot >= PARKING:
            return self._drop("bad_chunk")
        parked, self.parking[slot] = self.parking[slot], None
        if parked is None:
            return None
        bell.header.kind, bell.header.flags, kept = Kind.REDUCE, 0, parked.header
        bell.header.generation, bell.header.chunk, bell.header.attempt = kept.generation, kept.chunk, kept.attempt
        bell.header.hop, bell.header.checksum = kept.hop, kept.checksum
        bell.header.length, bell.header.tag = kept.length, kept.tag
        bell.payload, bell.trailer = parked.payload, b""
        return self._on_reduce(bell, now) if self._find_chunk(bell) else None

    def _reduce(self, frame: Frame, now: int) -> Frame | None:
        """Lap one, input ready: add it; the last rank of the lap has the sum."""
        header, config = frame.header, self.config
        words = header.length // 8
        expected = header.checksum + self.chunks[header.chunk].input_sum & _U64
        frame.payload[:words] += self.inputs[header.chunk, : min(words, frame.payload.size)]
        if header.hop + 1 < config.ranks:
            if frame.payload.size < words:
                return self._drop("bad_length")
            header.checksum = expected
            header.hop += 1
            return self._send(frame, config.after, header.length)
        if not self._store(frame, expected, now):
            return None
        header.kind, header.hop, header.last, header.flags = Kind.RESULT, 1, config.before, USEFUL
        header.checksum = expected
        return self._send(frame, config.after, header.length)

    def _store(self, frame: Frame, expected: int, now: int) -> bool:
        """Take the payload for a result if it is all there and has the right sum, and make it count."""
        chunk, words = self.chunks[frame.header.chunk], frame.header.length // 8
        payload = frame.payload[:words]
        if payload.size < words or checksum(payload) != expected:
            chunk.claimed = 0
            return self._refuse("bad_length" if payload.size < words else "bad_checksum")
        self.results[frame.header.chunk, :words] = payload
        chunk.result_sum, chunk.claimed, chunk.done = expected, self.generation, self.generation
        self._count("stored")
        own = frame.header.chunk % self.config.ranks == self.config.rank
        if own and not frame.header.attempt and not chunk.attempt:
            rtt = now - chunk.sent_us & _U32
            self.rtt_samples += 1
            self.rtt_sum_us += rtt
            self.rtt_max_us = max(self.rtt_max_us, rtt)
        self.stored += 1
        if self.stored == self.wake_at:
            self.events.append(Event(EventKind.STORED, 0, self.generation, 0))
        return True

    def _answer(self, frame: Frame) -> Frame | None:
        """Turn the frame into lap two of a result that this rank holds: it visits every other rank."""
        header, config, chunk = frame.header, self.config, self.chunks[frame.header.chunk]
        frame.resize(header.length)
        frame.payload[:] = self.results[header.chunk, : header.length // 8]
        if chunk.claimed != header.generation:
            return self._drop("overtaken")
        header.kind, header.hop, header.last, header.flags = Kind.RESULT, 1, config.before, 0
        header.checksum = chunk.result_sum
        self._count("answered")
        return self._send(frame, config.after, header.length)

    def _launch(self, frame: Frame, index: int, attempt: int, now: int) -> Frame | None:
        """The frame becomes this rank's own chunk ``index`` on its first lap."""
        header, chunk, tensor = frame.header, self.chunks[index], self._tensor(self.generation)
        frame.resize(tensor.length)
        frame.payload[:] = self.inputs[index, : tensor.length // 8]
        chunk.sent_us, chunk.attempt = now, attempt & 0xFF
        header.kind, header.generation, header.chunk = Kind.REDUCE, self.generation, index
        header.attempt, header.hop, header.last, header.flags = attempt & 0xFF, 1, 0, 0
        header.tag, header.checksum = tensor.tag, chunk.input_sum
        return self._send(frame, self.config.after, tensor.length)

    def _launch_next(self, frame: Frame, now: int) -> Frame | None:
        """The frame is at liberty: it carries on as this rank's next chunk, if there is one that is ready."""
        index = self.config.rank + self.config.ranks * self.next_slot
        self.next_slot += 1
        if self.next_generation != self.generation or index >= self.ready:
            return None
        return self._launch(frame, index, 0, now)

    def _request(self, frame: Frame, order: OrderEntry) -> Frame | None:
        """Ask the owner for a chunk, in a frame as long as the answer."""
        header, tensor = frame.header, self._tensor(order.generation)
        frame.resize(tensor.length)
        header.kind, header.generation, header.chunk = Kind.REQUEST, order.generation, order.chunk
        header.attempt, header.last, header.tag = order.attempt & 0xFF, self.config.rank, tensor.tag
        self._count("resent")
        return self._send(frame, order.chunk % self.config.ranks, tensor.length)

    def _send(self, frame: Frame, to: int, length: int) -> Frame:
        """Address the frame; its kind and payload are in place."""
        frame.source, frame.destination = self.config.peers[self.config.rank], self.config.peers[to]
        frame.header.length = length
        self._count("sent")
        self._count("sent_bytes", FRAME_BYTES + length)
        return frame

    def _tensor(self, generation: int) -> Tensor:
        return self.tensors[generation & 1]

    def _count(self, counter: str, by: int = 1) -> None:
        self.counters[counter] += by

    def _drop(self, reason: str) -> Frame | None:
        self._count(reason)
        return None

    def _refuse(self, reason: str) -> bool:
        self._count(reason)
        return False
