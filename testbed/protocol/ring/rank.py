"""The ring all-reduce of one rank as a state machine without I/O or clocks.

Twin of ``bpf/ring.bpf.c``, which the tests compare with it frame by frame. A frame goes in, at most one comes out:
`Rank.on_frame` is the program on the link, `Rank.on_order` the one on the doorbell. The process beside it is
`testbed.protocol.ring.process`. One rank alone needs no ring: ranks are 2..32.
"""

from __future__ import annotations

from testbed.protocol.ring.memory import PARKING, PARKING_TRIES, Order, OrderEntry, ResultState, Stage, is_done, parts_of
from testbed.protocol.ring.sending import U32, U64, Sender, Work
from testbed.protocol.sequence import generation_after, is_before, is_forward, word_of
from testbed.protocol.wire import BLOCK, NOTHING, RESTART, SETTLED, TOLD, VERSION, Frame, Kind, frame_seal
from testbed.protocol.wire import RESULT as RESULT_FLAG

__all__ = ["Rank"]


class Rank(Sender):
    """The programs of one rank, and the memory that they work on."""

    def on_frame(self, frame: Frame, now_us: int = 0, cpu: int = 0) -> Frame | None:
        """A frame has come in by the link (``ring_link``).

        :param now_us: Microseconds of any clock that does not go back.
        :param cpu: The CPU, hence the lane, that it has come on and that what it becomes goes out on.
        :returns: The frame that goes out by the same link, if any; the one passed in is not changed. If `asking` is set as
            well, a copy of it comes back by the doorbell, and is given to `on_order`.
        """
        work = self.look(frame, now_us, cpu)
        return None if work is None else self.act(work)

    def look(self, frame: Frame, now_us: int = 0, cpu: int = 0) -> Work | None:
        """The first half of `on_frame`: all that it reads before it acts. None: the frame is none of this group's."""
        self.asking = False
        header = frame.header
        if header.cookie != self.config.cookie or header.version != VERSION or header.group != self.config.group:
            self._drop("bad_cookie")
            return None
        w = Work(frame.copy(), now_us & U32, cpu, self.generation, self.ready, header.chunk)
        if header.chunk < self.config.chunks:
            chunk = self.chunks[header.chunk]
            w.reduced, w.result = chunk.reduced, chunk.result
        return w

    def act(self, w: Work) -> Frame | None:
        """The second half."""
        out = self._on_frame(w)
        if self.config.gap:
            self._look_around(w)
        if out is not None or not self.asking:
            return out
        self.asking = False  # a frame that goes nowhere asks by itself
        return self._on_ask(w)

    def on_order(self, bell: Frame, now_us: int = 0, cpu: int = 0) -> Frame | None:
        """One of the frames that a bell was made into has come back: carry out the next order (``ring_order``).

        Or it is the copy of a frame that has gone on: ask for what is missing.

        :returns: The frame that goes out by the link, if any.
        """
        w = self.look(bell, now_us, cpu)
        if w is None:
            return None
        if w.frame.header.kind != Kind.BELL:
            return self._on_ask(w)
        return self._on_order(w, self.orders.popleft()) if self.orders else None

    def _on_frame(self, w: Work) -> Frame | None:
        kind = w.frame.header.kind
        if not self._is_for_me(w):
            return None
        if kind == Kind.PROBE:
            return self._on_probe(w)
        if kind == Kind.ALIVE:
            return self._on_alive(w)
        if kind not in (Kind.REDUCE, Kind.RESULT, Kind.REQUEST):
            return self._drop("bad_kind")
        if not self._find_chunk(w):
            return None
        if kind == Kind.REQUEST:
            return self._on_request(w)
        return self._on_reduce(w) if kind == Kind.REDUCE else self._on_result(w)

    def _is_for_me(self, w: Work) -> bool:
        """Is a frame for this rank, and from another one?"""
        header, config = w.frame.header, self.config
        if header.receiver != config.rank or w.frame.destination.ip != config.peers[config.rank].ip:
            return self._refuse("bad_receiver")
        if header.sender >= config.ranks or header.sender == config.rank or w.frame.source.ip != config.peers[header.sender].ip:
            return self._refuse("bad_rank")
        heard = self.lanes[w.cpu].heard
        heard[header.sender] = heard.get(header.sender, 0) + 1
        return True

    def _find_chunk(self, w: Work) -> bool:
        """Refuse a frame if what it says cannot be true of the chunk that it names."""
        header, config = w.frame.header, self.config
        if header.chunk >= config.chunks:
            return self._refuse("bad_chunk")
        if not header.generation:
            return self._refuse("bad_generation")  # what chunks that were never stored have
        w.index, w.length = header.chunk, header.length
        if not BLOCK <= header.length <= config.chunk_bytes or header.length % BLOCK:
            return self._refuse("bad_length")
        # An earlier one is answered as it asks, what the next one will be is not known yet.
        return header.generation != w.generation or self._fits(w)

    def _fits(self, w: Work) -> bool:
        """Is the frame, which is of this rank's generation, one of this rank's tensor?

        If not, its sender reduces another one, or it is damaged: only the former is counted, as the process goes by it.
        """
        header, tensor = w.frame.header, self._tensor(w.frame.header.generation)
        if header.chunk < tensor.total and header.length == tensor.length and header.tag == tensor.tag:
            return True
        if self._is_sealed(w) if header.kind == Kind.REQUEST else self._verify(w) is not None:
            self._count("bad_tensor")
        return False

    def _expected(self, w: Work) -> int:
        """The checksum that the payload must have, if the header is what its sender has sealed."""
        return w.frame.header.checksum - frame_seal(w.frame.header) & U64

    def _is_sealed(self, w: Work) -> bool:
        """Is a frame without payload that counts what its sender has sent?"""
        return not self._expected(w) or self._refuse("bad_checksum")

    def _verify(self, w: Work) -> int | None:
        """The payload's checksum; None: the frame is not what its sender has sealed."""
        total = w.frame.sum(w.length)
        if total is None:
            self._drop("bad_length")
        elif total != self._expected(w):
            self._drop("bad_checksum")
            return None
        return total

    def _on_reduce(self, w: Work) -> Frame | None:
        header, config = w.frame.header, self.config
        hop = self._steps(w.index, config.rank)
        if not hop or header.hop != hop or header.sender != config.before:
            return self._drop("bad_rank")
        if not config.upstream and self._holds_enough(w):
            # The owner has not got the result, which went on from here.
            if self._verify(w) is None or self._too_soon(w):
                return None
            return self._send_result(w, self._owner(w.index), header.round, self.chunks[w.index].before[Stage.RESULT])
        if header.generation not in (w.generation, generation_after(w.generation)):
            return self._drop("bad_generation")
        if header.generation == w.generation and w.index < w.ready:
            return self._reduce(w)
        total = self._verify(w)
        if total is None:
            return None
        self._look_back(w)
        return self._park(w)

    def _on_result(self, w: Work) -> Frame | None:
        header, config = w.frame.header, self.config
        hop = self._result_steps(w.index, config.rank)
        if header.hop != hop:
            return self._drop("bad_rank")
        state = w.result & 0xFF
        if w.result >> 32 == header.generation and state != ResultState.NONE and w.result >> 8 & 0xFF >= header.round:
            return self._drop("duplicate")
        if header.generation != w.generation or w.index >= w.ready:
            # No sum can be whole without this rank's part: a forgery, or a frame of another age.
            return self._drop("bad_generation")
        total = self._verify(w)
        if total is None:
            return None
        self._look_back(w)
        first = w.result >> 32 != w.generation
        if not self._take_result(w, header.round, total):
            return self._drop("duplicate")
        if hop + 1 < config.ranks:
            header.hop = hop + 1
            self._enlist(w, w.index, Stage.RESULT)
            return self._send(w, config.after, w.length, total)
        return self._launch_next(w) if first and hop + 1 == config.ranks else None

    def _on_request(self, w: Work) -> Frame | None:
        """The rank behind lacks a frame that this one has sent it: send it again, or have the owner do so."""
        header, config, mine = w.frame.header, self.config, self._is_mine(w.index)
        chunk, direct = self.chunks[w.index], not header.hop
        asker = header.sender if direct else (header.sender + 1) % config.ranks
        if not self._is_sealed(w):
            return None
        if header.flags & RESTART:
            return self._on_restart(w)
        if not (asker == config.after if direct else mine and not config.upstream):
            return self._drop("bad_rank")
        if self._holds_enough(w):
            if not (config.upstream or mine):
                return self._pass_on(w, chunk.before[Stage.RESULT])
            if asker == config.rank:
                return self._drop("duplicate")
            if self._too_soon(w):
                return None
            return self._send_result(w, asker, header.round, chunk.before[Stage.RESULT] if direct else header.prev)
        # It cannot have the result before this rank, but may lack the partial sum of a later round.
        if direct and header.flags & RESULT_FLAG and w.reduced & 0xFF <= header.prev:
            return self._drop("not_held")
        return self._resend_partial(w, mine)

    def _pass_on(self, w: Work, prev: int) -> Frame:
        """What the rank behind lacks, the owner is to send again. The request says what came before, so that the answer can."""
        header = w.frame.header
        header.prev, header.hop = prev, 1
        self._count("resent")
        return self._send(w, self._owner(w.index), w.length, 0)

    def _resend_partial(self, w: Work, mine: bool) -> Frame | None:
        """The rank behind lacks the partial sum that this rank has sent."""
        if w.frame.header.generation != w.generation or w.reduced >> 32 != w.generation:
            return self._drop("not_held")
        self._note_loss(w)
        if not (self.config.upstream or mine):
            return self._pass_on(w, NOTHING)  # it passes by here again, and is told then what was before
        if self._too_soon(w):
            return None
        if mine:
            return self._launch(w, w.reduced & 0xFF, again=True)
        return self._send_kept(w, w.reduced & 0xFF)

    def _on_restart(self, w: Work) -> Frame | None:
        """A result was refused somewhere, or a partial sum is nowhere to be had. Who has verified its own result sends that."""
        header = w.frame.header
        if not self._is_mine(w.index):
            return self._drop("bad_rank")
        if self._holds(w) and self._is_verified(w.result):
            if self._too_soon(w):
                return None
            prev = self.chunks[w.index].before[Stage.RESULT] if header.sender == self.config.after else NOTHING
            return self._send_result(w, header.sender, header.round + 1 & 0xFF, prev)
        if header.generation != w.generation:
            return self._drop("not_held")
        return self._restart(w, header.round)

    def _note_rank(self, w: Work) -> None:
        """What another rank says of itself."""
        header, peer = w.frame.header, self.ranks[w.frame.header.sender]
        if peer.generation and is_before(header.generation, peer.generation):
            return
        peer.front, peer.generation = header.chunk, header.generation
        if header.flags & SETTLED:
            peer.settled = header.generation

    def _tell(self, w: Work, kind: Kind, to: int, flags: int = 0, told: int = 0) -> Frame:
        """What this rank says of itself. To the rank behind it names what it has sent it last.

        :param told: With ``TOLD``, the generation.
        """
        header = w.frame.header
        header.kind, header.generation, header.chunk = kind, self.generation, self.front
        header.hop, header.round, header.tag, header.prev = 0, 0, told & 0xFFFF, NOTHING
        header.flags = flags | (SETTLED if self.settled == self.generation else 0)
        if kind == Kind.ALIVE and to == self.config.after:
            self._name_latest(w, self.generation)
        return self._send(w, to, 0, 0)

    def _on_probe(self, w: Work) -> Frame | None:
        header = w.frame.header
        if not self._is_sealed(w):
            return None
        self._note_rank(w)
        if not header.flags & SETTLED:
            return self._tell(w, Kind.ALIVE, header.sender)
        return self._tell(w, Kind.ALIVE, header.sender, TOLD, header.generation)

    def _on_alive(self, w: Work) -> Frame | None:
        header = w.frame.header
        if not self._is_sealed(w):
            return None
        self._note_rank(w)
        if header.flags & TOLD and header.tag == self.settled & 0xFFFF:  # a late one may be about an earlier generation
            self.ranks[header.sender].told = self.settled
        if header.sender == self.config.before and not is_before(header.generation, w.generation):
            self._look_back(w)
            if header.lane < 64:
                self.flushed |= 1 << header.lane
        return None

    def _on_order(self, w: Work, order: OrderEntry) -> Frame | None:
        if order.kind == Order.REPLAY:
            return self._replay(w, order.chunk)
        if order.kind == Order.PROBE:
            w.frame.header.attempt = order.attempt
            return self._tell(w, Kind.PROBE, order.chunk)
        if order.kind not in (Order.LAUNCH, Order.REQUEST, Order.RESTART):
            return self._drop("bad_kind")
        if order.generation != w.generation or order.chunk >= w.ready:
            return self._drop("bad_generation")
        w.index, w.length = order.chunk, self._tensor(w.generation).length
        if order.kind == Order.LAUNCH:
            return self._launch_first(w)
        return self._request_next(w) if order.kind == Order.REQUEST else self._order_restart(w, order.extra)

    def _on_ask(self, w: Work) -> Frame | None:
        """The frame is free to ask for what is missing."""
        asks = self.asks[w.cpu]
        ask = self._take_ask(w, asks, asks.fresh) or self._take_ask(w, asks, asks.again)
        if ask is None:
            return None
        w.index, round_, stage = parts_of(ask.item)
        return self._request(w, round_, stage)

    def _request_next(self, w: Work) -> Frame | None:
        """Ask for whatever frame is next to come about a chunk, unless it is all there."""
        chunk = self.chunks[w.index]
        if chunk.result >> 32 == w.generation:
            state = chunk.result & 0xFF
            if is_done(chunk.result) or state == ResultState.CLAIMED:
                return None
            if state == ResultState.REFUSED:
                return self._request(w, (chunk.result >> 8) + 1 & 0xFF, Stage.RESULT)
        if chunk.reduced >> 32 == w.generation:
            return self._request(w, 0, Stage.RESULT)  # one of any round will do
        return None if self._is_mine(w.index) else self._request(w, 0, Stage.PARTIAL)

    def _order_restart(self, w: Work, round_: int) -> Frame | None:
        """A result was refused in a round."""
        header, tensor = w.frame.header, self._tensor(w.generation)
        if self._is_mine(w.index):
            return self._restart(w, round_ & 0xFF)
        w.frame.resize(w.length)
        header.generation, header.chunk, header.tag = w.generation, w.index, tensor.tag
        return self._ask_restart(w, round_ & 0xFF)

    def _park(self, w: Work) -> Frame | None:
        """Keep the frame, which has been verified, until the process has its gradient ready and rings."""
        header = w.frame.header
        for step in range(PARKING_TRIES):
            slot = (header.chunk + step * (PARKING // PARKING_TRIES)) % PARKING
            waiting = self.parking[slot]
            if waiting is None:
                break
            if (waiting.header.generation, waiting.header.chunk) == (header.generation, header.chunk):
                return self._drop("duplicate")
        else:
            self.chunks[w.index].lost[Stage.PARTIAL] = header.generation
            return self._drop("parking_full")
        self.parking[slot] = w.frame.copy()
        return self._drop("parked")

    def _replay(self, w: Work, slot: int) -> Frame | None:
        """A parked frame's turn has come: the bell's frame takes its place."""
        if slot >= PARKING:
            return self._drop("bad_chunk")
        parked, self.parking[slot] = self.parking[slot], None
        if parked is None:
            return None
        frame, header, kept = w.frame, w.frame.header, parked.header
        frame.resize(kept.length)
        frame.fill(parked.payload, kept.length)
        total = frame.sum(kept.length)
        assert total is not None
        header.kind, header.flags, header.lane, header.prev = Kind.REDUCE, 0, 0, NOTHING
        header.generation, header.chunk, header.attempt = kept.generation, kept.chunk, kept.attempt
        header.hop, header.round, header.length, header.tag = kept.hop, kept.round, kept.length, kept.tag
        header.sender, header.receiver = self.config.before, self.config.rank
        header.checksum = total + frame_seal(header) & U64
        chunk = self.chunks[header.chunk]
        w.reduced, w.result = chunk.reduced, chunk.result
        return self._on_reduce(w) if self._find_chunk(w) else None

    def _reduce(self, w: Work) -> Frame | None:
        """Lap one, input ready: add it; the last rank of the lap has the sum."""
        header, config, chunk = w.frame.header, self.config, self.chunks[w.index]
        mine, last = word_of(w.generation, header.round), header.hop + 1 >= config.ranks
        # With `origin` the owner begins lap ones anew that got lost further on: ranks on the way pass them on.
        if config.upstream if w.reduced == mine else not is_forward(w.reduced, mine):
            return self._drop("duplicate")
        expected = self._expected(w) + chunk.input_sum & U64
        w.frame.add(self.inputs[w.index], w.length)
        total = w.frame.sum(w.length)
        if total is None:
            return self._drop("bad_length")
        if w.generation != self.generation:
            return self._drop("overtaken")
        if total != expected:
            return self._drop("bad_checksum")
        if w.reduced != mine:
            if not self._advance(chunk, "reduced", w.reduced, mine):
                return self._drop("duplicate")
            self.lanes[w.cpu].progress += 1
        self._look_back(w)
        if not last:
            if header.round:
                self._note_loss(w)
            if config.upstream and self._is_lossy(w.generation):
                self._keep(w, total)
            header.hop += 1
            if w.reduced == mine:
                self._repeat(w)
            else:
                self._enlist(w, w.index, Stage.PARTIAL)
            return self._send(w, config.after, w.length, total)
        if not self._take_result(w, header.round, total):
            return self._drop("duplicate")
        header.kind, header.hop = Kind.RESULT, 1
        self._enlist(w, w.index, Stage.RESULT)
        return self._send(w, config.after, w.length, total)

    def _take_result(self, w: Work, round_: int, total: int) -> bool:
        """Take the payload, which has been verified, for the result; one that the process has verified is kept."""
        chunk, first = self.chunks[w.index], w.result >> 32 != w.generation
        state = w.result & 0xFF
        if not first and w.result >> 8 & 0xFF >= round_ and state != ResultState.NONE:
            return False
        if not first and state == ResultState.CLAIMED:  # a CPU is writing one of an earlier round
            return False
        done = word_of(w.generation, round_ << 8 | ResultState.DONE)
        held = not first and is_done(w.result)
        if held and self._is_verified(w.result):
            return self._advance(chunk, "result", w.result, word_of(w.generation, round_ << 8 | state))
        if not self._advance(chunk, "result", w.result, done):
            return False
        self.results[w.index] = w.frame.take(w.length)
        chunk.result_sum, chunk.before[Stage.RESULT] = total, NOTHING
        self._count("stored")
        self.lanes[w.cpu].progress += 1
        chunk.resent_us = 0  # whoever asks for it from now on can have it
        if held:
            return True
        self.stored += 1
        if self.stored == self.wake_at:
            self.events.append(w.generation)
        return True
