"""The ring all-reduce of one rank as a state machine without I/O or clocks.

Twin of ``bpf/ring.bpf.c``, which the tests compare with it frame by frame. A frame goes in, at most one comes out:
`Rank.on_frame` is the program on the link, `Rank.on_order` the one on the doorbell. What C does against races with other CPUs
has no counterpart here: calls come one at a time. `testbed.protocol.process` is the process beside it. One rank alone needs no
ring: ranks are 2..32.
"""

from __future__ import annotations

from collections.abc import Callable

from testbed.protocol.generation import generation_after
from testbed.protocol.memory import PARKING, PARKING_TRIES, Event, EventKind, Order, OrderEntry
from testbed.protocol.sending import U32, U64, Sender
from testbed.protocol.wire import BLOCK, DOUBT, USEFUL, VERSION, Frame, Kind, checksum, seal

__all__ = ["Rank"]


class Rank(Sender):
    """The programs of one rank, and the memory that they work on."""

    def on_frame(self, frame: Frame, now_us: int = 0) -> Frame | None:
        """A frame has come in by the link (``ring_link``).

        :param now_us: Microseconds of any clock that does not go back.
        :returns: The frame that goes out by the same link, if any; the one passed in is not changed. If `asking` is set as
            well, a copy of it comes back by the doorbell, and is given to `on_order`.
        """
        return self._run(self._on_frame, frame, now_us)

    def on_order(self, bell: Frame, now_us: int = 0) -> Frame | None:
        """One of the frames that a bell was made into has come back: carry out the next order (``ring_order``).

        Or it is the copy of a frame that has gone on: ask for a chunk that is missing.

        :returns: The frame that goes out by the link, if any.
        """
        return self._run(self._on_order, bell, now_us)

    def _run(self, program: Callable[[Frame, int], Frame | None], frame: Frame, now_us: int) -> Frame | None:
        """``begin`` of the twin: what every frame must be before anything is looked at that it names."""
        self.asking = False
        if frame.header.cookie != self.config.cookie or frame.header.version != VERSION:
            return self._drop("bad_cookie")
        frame = frame.copy()
        out = program(frame, now_us & U32)
        if out is not None or not self.asking:
            return out
        self.asking = False  # a frame that goes nowhere asks by itself
        return self._on_ask(frame, now_us & U32)

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
        if not self._is_from(frame, self.config.before):
            return self._drop("bad_rank")
        return self._on_reduce(frame, now) if kind == Kind.REDUCE else self._on_result(frame, now)

    def _on_reduce(self, frame: Frame, now: int) -> Frame | None:
        header, config = frame.header, self.config
        hop = (config.rank - header.chunk) % config.ranks
        if not hop or header.hop != hop:
            return self._drop("bad_rank")
        if self._holds(frame):
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
            if not self._store(frame, header.checksum - seal(header) & U64, now):
                return None
            header.flags |= USEFUL
        if config.rank != header.last:
            header.hop += 1
            return self._send(frame, config.after, header.length)
        return self._launch_next(frame, now) if header.flags & USEFUL else None

    def _on_request(self, frame: Frame, now: int) -> Frame | None:
        """Somebody lacks a result: send it, begin its first lap again, or pass the request on towards its owner."""
        header, config = frame.header, self.config
        chunk, mine = self.chunks[header.chunk], header.chunk % config.ranks == config.rank
        held = self._holds(frame)
        asker = config.after if config.upstream else header.last
        if not self._is_from(frame, asker) or not (mine or config.upstream):
            return self._drop("bad_rank")
        # Never launched: it will be, and nothing is lost yet.
        launched = header.chunk < self.ready and (not mine or header.chunk // config.ranks < self.next_slot)
        if not held and (header.generation != self.generation or not launched):
            return self._drop("bad_generation")
        if self._too_soon(header.chunk, now):
            return None
        chunk.sent_us = now
        self._count("resent")
        if held and config.upstream:
            return self._resume(frame)
        if held:
            chunk.attempt += 1
            header.attempt = chunk.attempt & 0xFF
            return self._answer(frame)
        if mine:
            return self._launch(frame, header.chunk, chunk.attempt + 1, now, header.flags & DOUBT)
        if header.hop + 1 >= config.ranks:
            return self._drop("bad_rank")
        header.hop += 1
        return self._send(frame, config.before, header.length)

    def _on_probe(self, frame: Frame) -> Frame | None:
        header, asker = frame.header, frame.header.last
        if not self._is_from(frame, asker):
            return self._drop("bad_rank")
        header.kind, header.last = Kind.ALIVE, self.config.rank
        header.generation, header.chunk = self.generation, self.stored
        return self._send(frame, asker, 0)

    def _on_alive(self, frame: Frame) -> Frame | None:
        header = frame.header
        if not self._is_from(frame, header.last):
            return self._drop("bad_rank")
        self.events.append(Event(EventKind.ALIVE, header.last, header.generation, header.chunk))
        return None

    def _on_order(self, frame: Frame, now: int) -> Frame | None:
        if frame.header.kind != Kind.BELL:
            return self._on_ask(frame, now)
        if not self.orders:
            return None
        order = self.orders.popleft()
        if order.kind in (Order.LAUNCH, Order.REQUEST):
            return self._send_order(frame, order, now)
        if order.kind == Order.REPLAY:
            return self._replay(frame, order.chunk, now)
        if order.kind == Order.PROBE:
            frame.header.kind, frame.header.attempt, frame.header.last = Kind.PROBE, order.attempt & 0xFF, self.config.rank
            return self._send(frame, order.chunk, 0)
        return self._drop("bad_kind")

    def _on_ask(self, frame: Frame, now: int) -> Frame | None:
        """The frame is free to ask for what is missing."""
        if not self.asks:
            return self._drop("bad_kind")
        self.carried = max(self.carried - 1, 0)
        return self._send_order(frame, self.asks.popleft(), now)

    def _send_order(self, frame: Frame, order: OrderEntry, now: int) -> Frame | None:
        """What is wanted of the collective at hand: an own chunk, on its first lap, or somebody else's."""
        if order.generation != self.generation or order.chunk >= self.ready:
            return self._drop("bad_generation")
        if order.kind == Order.REQUEST:
            return self._request(frame, order, now)
        if order.attempt:
            self._count("resent")
        return self._launch(frame, order.chunk, order.attempt, now)

    def _find_chunk(self, frame: Frame) -> bool:
        """Refuse a frame if what it says cannot be true of the chunk that it names."""
        header, config = frame.header, self.config
        if header.chunk >= config.chunks:
            return self._refuse("bad_chunk")
        if not header.generation:
            return self._refuse("bad_generation")  # what chunks that were never stored have
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
        for step in range(PARKING_TRIES):
            slot = (frame.header.chunk + step * (PARKING // PARKING_TRIES)) % PARKING
            waiting = self.parking[slot]
            if waiting is None:
                break
            if (waiting.header.generation, waiting.header.chunk) == (frame.header.generation, frame.header.chunk):
                return self._drop("duplicate")
        else:
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
        """Lap one, input ready: add it; the last rank of the lap has the sum, and keeps what it holds in doubt."""
        header, config = frame.header, self.config
        words = header.length // 8
        mine, keep = self.chunks[header.chunk].input_sum, self.chunks[header.chunk].done != self.generation
        frame.payload[:words] += self.inputs[header.chunk, : min(words, frame.payload.size)]
        last = header.hop + 1 >= config.ranks
        if not (last and keep) and frame.payload.size < words:
            return self._drop("bad_length")
        if not last:
            header.checksum = header.checksum + mine & U64
            header.hop += 1
            return self._send(frame, config.after, header.length)
        expected = header.checksum - seal(header) + mine & U64
        if keep and not self._store(frame, expected, now):
            return None
        header.kind, header.hop, header.last, header.flags = Kind.RESULT, 1, config.before, USEFUL if keep else 0
        header.checksum = expected + seal(header) & U64
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
        if not own:
            chunk.attempt = 0
        elif not frame.header.attempt and not chunk.attempt:
            rtt = now - chunk.sent_us & U32
            self.rtt_samples += 1
            self.rtt_sum_us += rtt
            self.rtt_max_us = max(self.rtt_max_us, rtt)
        chunk.sent_us = 0  # whoever asks for it from now on can have it
        self.stored += 1
        if self.stored == self.wake_at:
            self.events.append(Event(EventKind.STORED, 0, self.generation, 0))
        self._look_back(frame.header.chunk, now)
        return True
