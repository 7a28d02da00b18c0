"""What a rank sends, and how it comes to: partial sums, results, and requests for what has not come.

Twin of ``bpf/include/ring_work.h``, ``ring_lane.h`` and the sending half of ``ring_store.h``. What C does against races with
other CPUs comes down to `Work`: what a program has read before it acts. A test may let other things happen in between.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.protocol.ring.memory import (
    ASKS,
    LOSSY_FOR,
    PARKING,
    PARKING_TRIES,
    Ask,
    Asks,
    Chunk,
    Memory,
    Queue,
    ResultState,
    Stage,
    Tensor,
    is_done,
    item_of,
    parts_of,
)
from testbed.protocol.sequence import generation_after, is_before, is_forward, word_of
from testbed.protocol.wire import EARLIER, FRAME_BYTES, NOTHING, RESTART, Frame, Kind, frame_seal
from testbed.protocol.wire import RESULT as RESULT_FLAG

__all__ = ["Sender", "Work"]

U32 = 0xFFFFFFFF
U64 = 0xFFFFFFFFFFFFFFFF
_SKIP = 4
_MOST_DOUBLINGS = 4


@dataclass(slots=True)
class Work:
    """``struct work``: a frame in the hands of a program, and what it has read before it acts.

    :param index: The chunk at hand.
    :param length: Bytes of its payload.
    :param reduced: Of the chunk, as it was.
    :param result: Of the chunk, as it was.
    """

    frame: Frame
    now: int
    cpu: int
    generation: int
    ready: int
    index: int = 0
    length: int = 0
    reduced: int = 0
    result: int = 0


class Sender(Memory):
    """The part of a rank's programs that makes frames."""

    asking = False
    """There is something to ask for, and the last call has returned a frame: a copy of it comes back to ask."""

    # What is said of a chunk.

    def _owner(self, index: int) -> int:
        return index % self.config.ranks

    def _is_mine(self, index: int) -> bool:
        return index % self.config.ranks == self.config.rank

    def _steps(self, index: int, rank: int) -> int:
        """From the owner of a chunk to a rank: of its first lap so many are done when it comes there."""
        return (rank - index) % self.config.ranks

    def _result_steps(self, index: int, rank: int) -> int:
        """That a result takes to a rank: from the rank before the owner, where it comes to be; once round to that one itself.

        Only who has refused its own sum gets one from another.
        """
        return self._steps(index, rank) + 1

    def _is_settled(self, generation: int) -> bool:
        return self.settled == generation or is_before(generation, self.generation)

    def _is_verified(self, word: int) -> bool:
        """Is the result that a word speaks of what its check says, as far as the process knows?"""
        state = word & 0xFF
        return state == ResultState.VERIFIED or (state == ResultState.DONE and self._is_settled(word >> 32))

    def _holds(self, w: Work) -> bool:
        """Does this rank hold the result of the frame's chunk and generation?"""
        return w.result >> 32 == w.frame.header.generation and is_done(w.result)

    def _holds_enough(self, w: Work) -> bool:
        """Is it good enough for a rank that is in the frame's round? One that this rank's process has verified is for any."""
        return self._holds(w) and (w.result >> 8 & 0xFF >= w.frame.header.round or self._is_verified(w.result))

    def _too_soon(self, w: Work) -> bool:
        """Has a frame about the chunk been sent again a moment ago? All that lack it ask at once, if they ask its owner."""
        since = self.chunks[w.index].resent_us
        return not self.config.upstream and since != 0 and (w.now - since & U32) < self.holdoff_us

    def _advance(self, chunk: Chunk, name: str, before: int, after: int) -> bool:
        """Compare and exchange, forward only."""
        if not is_forward(before, after) or getattr(chunk, name) != before:
            return False
        setattr(chunk, name, after)
        return True

    def _tensor(self, generation: int) -> Tensor:
        return self.tensors[generation & 1]

    # Lanes, and what is missing on them.

    def _enlist(self, w: Work, index: int, stage: Stage) -> None:
        """Give the frame, which is sent for the first time, its place in the order of this CPU's frames."""
        lane, chunk, header = self.lanes[w.cpu], self.chunks[index], w.frame.header
        header.flags = 0
        self._name_latest(w, w.generation)
        lane.generation, lane.prev = w.generation, item_of(index, header.round, stage)
        chunk.before[stage], chunk.attempt = NOTHING if header.flags else header.prev, header.attempt

    def _repeat(self, w: Work) -> None:
        """A partial sum is passed on that this rank has passed on before: it names what it named then."""
        header, chunk = w.frame.header, self.chunks[w.index]
        header.flags, header.prev, chunk.attempt = 0, chunk.before[Stage.PARTIAL], header.attempt

    def _name_latest(self, w: Work, generation: int) -> None:
        """Have the frame name the latest one that was sent on this CPU, if that is of its generation or of the one before."""
        lane, header = self.lanes[w.cpu], w.frame.header
        header.prev = NOTHING
        if not lane.generation:
            return
        if lane.generation == generation:
            header.prev = lane.prev
        elif generation_after(lane.generation) == generation:
            header.prev = lane.prev
            header.flags |= EARLIER

    def _lacks(self, chunk: Chunk, generation: int, round_: int, stage: Stage) -> bool:
        """Is a frame about a chunk missing here?"""
        state = chunk.result & 0xFF
        at_all = chunk.result >> 32 == generation and state != ResultState.NONE
        if stage is Stage.PARTIAL:
            return not at_all and is_forward(chunk.reduced, word_of(generation, round_))
        return not (at_all and (chunk.result >> 8 & 0xFF >= round_ or self._is_verified(chunk.result)))

    def _has_parked(self, generation: int, index: int) -> bool:
        for step in range(PARKING_TRIES):
            parked = self.parking[(index + step * (PARKING // PARKING_TRIES)) % PARKING]
            if parked is not None and (parked.header.generation, parked.header.chunk) == (generation, index):
                return True
        return False

    def _note_loss(self, w: Work) -> None:
        """A frame was lost on its way to this rank or from it."""
        self.lossy = w.generation

    def _is_lossy(self, generation: int) -> bool:
        """Have there been losses lately? Without any, nobody will ask for partial sums that were sent."""
        return self.lossy != 0 and (generation - self.lossy & U32) < LOSSY_FOR

    def _look_back(self, w: Work) -> None:
        """A frame has come whose sender sent another before it: is that here?"""
        generation, prev = w.frame.header.generation, w.frame.header.prev
        index, round_, stage = parts_of(prev)
        if w.frame.header.flags & EARLIER:
            if generation != generation_after(w.generation):
                return
            generation = w.generation
        if prev == NOTHING or index >= self.config.chunks or is_before(generation, w.generation):
            return
        chunk, asks = self.chunks[index], self.asks[w.cpu]
        if not self._lacks(chunk, generation, round_, stage):
            return
        if stage is Stage.PARTIAL and self._has_parked(generation, index):
            return
        self._note_loss(w)
        chunk.lost[stage], chunk.asked_us = generation, w.now
        self._count("lost")
        if not self.config.gap or generation != w.generation or index >= w.ready:
            return
        self._put(asks.fresh, Ask(generation, prev, asks.frames + self.config.gap, w.now))

    def _put(self, queue: Queue, ask: Ask) -> None:
        if len(queue.carried) + len(queue.waiting) >= ASKS:
            # Frames that were to take some have got lost.
            queue.waiting = queue.carried + queue.waiting
            queue.carried.clear()
            return
        queue.waiting.append(ask)

    def _is_missing(self, ask: Ask) -> bool:
        if ask.generation != self.generation:
            return False
        index, round_, stage = parts_of(ask.item)
        return self._lacks(self.chunks[index], ask.generation, round_, stage)

    def _look_around(self, w: Work) -> None:
        """A frame has come: is it time to ask for others?"""
        asks = self.asks[w.cpu]
        asks.frames = asks.frames + 1 & U32
        self.asking = self._carry(w, asks, asks.fresh) or self._carry(w, asks, asks.again)

    def _carry(self, w: Work, asks: Asks, queue: Queue) -> bool:
        """Has something become due? Then the frame at hand is to ask for it."""
        for _ in range(_SKIP):
            if not queue.waiting:
                return False
            ask = queue.waiting[0]
            if self._is_missing(ask):
                if (asks.frames - ask.due_frame | w.now - ask.due_us) & 0x80000000:
                    return False
                queue.carried.append(queue.waiting.popleft())
                return True
            queue.waiting.popleft()
            if queue.carried:
                queue.carried.append(ask)
        return False

    def _take_ask(self, w: Work, asks: Asks, queue: Queue) -> Ask | None:
        """What the frame is to ask for; None: nothing any more."""
        for _ in range(_SKIP):
            if not queue.carried:
                return None
            ask = queue.carried.popleft()
            if self._is_missing(ask):
                due = w.now + (self.holdoff_us << ask.tries) & U32
                self._put(asks.again, Ask(ask.generation, ask.item, asks.frames, due, min(ask.tries + 1, _MOST_DOUBLINGS)))
                return ask
        return None

    # Frames.

    def _launch(self, w: Work, round_: int, again: bool) -> Frame | None:
        """The frame becomes this rank's own chunk on its first lap.

        :param again: It was sent before.
        """
        header, chunk, tensor = w.frame.header, self.chunks[w.index], self._tensor(w.generation)
        w.frame.resize(tensor.length)
        w.frame.fill(self.inputs[w.index], tensor.length)
        if w.generation != self.generation:
            return self._drop("overtaken")
        header.kind, header.generation, header.chunk = Kind.REDUCE, w.generation, w.index
        header.hop, header.flags, header.round, header.tag = 1, 0, round_, tensor.tag
        if again:
            header.attempt, header.prev = self._next_attempt(chunk), chunk.before[Stage.PARTIAL]
            chunk.resent_us = w.now
            self._count("resent")
        else:
            header.attempt = chunk.attempt + 1 & 0xFFFF if round_ else 0
            self._enlist(w, w.index, Stage.PARTIAL)
        return self._send(w, self.config.after, tensor.length, chunk.input_sum)

    def _launch_first(self, w: Work) -> Frame | None:
        """Launch an own chunk that nobody has launched yet."""
        chunk = self.chunks[w.index]
        if chunk.reduced >> 32 == w.generation or not self._advance(chunk, "reduced", chunk.reduced, word_of(w.generation, 0)):
            return None
        return self._launch(w, 0, again=False)

    def _launch_next(self, w: Work) -> Frame | None:
        """The frame is at liberty: it carries on as this rank's next chunk, if there is one that is ready."""
        w.index = self.config.rank + self.config.ranks * self.next_slot
        self.next_slot += 1
        if self.next_generation != self.generation or w.index >= self.ready:
            return None
        w.generation, w.ready = self.generation, self.ready
        return self._launch_first(w)

    def _restart(self, w: Work, round_: int) -> Frame | None:
        """Begin the first lap of an own chunk anew: nobody keeps what was lost, or a rank has refused the result of a round."""
        chunk = self.chunks[w.index]
        if chunk.reduced >> 32 == w.generation and chunk.reduced & 0xFF > round_:
            # Whoever asks after an earlier round has not seen this one, which may be lost.
            # With `upstream` the ranks on the way recover it.
            if self.config.upstream or self._too_soon(w):
                return None
            return self._launch(w, chunk.reduced & 0xFF, again=True)
        if chunk.reduced >> 32 != w.generation or chunk.reduced & 0xFF != round_ or round_ == 0xFF:
            return None
        if not self._advance(chunk, "reduced", chunk.reduced, chunk.reduced + 1):
            return None
        self._count("restarted")
        self._count("resent")
        chunk.resent_us = w.now
        return self._launch(w, round_ + 1, again=False)

    def _send_result(self, w: Work, to: int, round_: int, prev: int) -> Frame | None:
        """The frame becomes the result that this rank holds, for a rank that lacks it or one of a later round.

        :param prev: What the rank before the receiver had sent it before the result.
        """
        header, chunk = w.frame.header, self.chunks[w.index]
        hop = self._result_steps(w.index, to)
        w.frame.resize(w.length)
        w.frame.fill(self.results[w.index], w.length)
        if chunk.result >> 32 != header.generation or not is_done(chunk.result):
            return self._drop("overtaken")
        chunk.resent_us = w.now
        header.kind, header.hop, header.flags = Kind.RESULT, hop, 0
        header.round = max(chunk.result >> 8 & 0xFF, round_)
        header.attempt = self._next_attempt(chunk)
        header.prev = prev
        self._count("answered")
        self._count("resent")
        return self._send(w, to, w.length, chunk.result_sum)

    def _keep(self, w: Work, total: int) -> None:
        """Keep the partial sum that is about to be sent, unless the slot has one that may still be needed."""
        slot, mine = self.kept[w.index & self.config.kept - 1], word_of(w.generation, w.index)
        if slot.owner != mine and slot.owner >> 32 == w.generation:
            other = slot.owner & U32
            # Whose result is here was taken from this rank by the rank behind.
            if self.chunks[other].result >> 32 != w.generation:
                self._count("unkept")
                return
        if slot.owner != mine and slot.owner and is_before(w.generation, slot.owner >> 32):
            return
        slot.owner = slot.valid = mine
        slot.data, slot.sum, slot.round = w.frame.take(w.length), total, self.chunks[w.index].reduced & 0xFF

    def _send_kept(self, w: Work, round_: int) -> Frame | None:
        """The frame becomes the partial sum that this rank has sent, or a request for another where it is not kept."""
        slot, mine = self.kept[w.index & self.config.kept - 1], word_of(w.generation, w.index)
        header, chunk = w.frame.header, self.chunks[w.index]
        if slot.valid != mine or slot.round != round_:
            chunk.resent_us = w.now
            return self._ask_restart(w, round_)
        w.frame.resize(w.length)
        w.frame.fill(slot.data, w.length)
        chunk.resent_us = w.now
        header.kind, header.hop, header.flags = Kind.REDUCE, self._steps(w.index, self.config.rank) + 1, 0
        header.round, header.attempt, header.prev = round_, self._next_attempt(chunk), chunk.before[Stage.PARTIAL]
        self._count("resent")
        return self._send(w, self.config.after, w.length, slot.sum)

    def _ask_restart(self, w: Work, round_: int) -> Frame:
        """Ask the owner to begin lap one of the chunk anew, after a round."""
        header = w.frame.header
        header.kind, header.flags, header.hop, header.round = Kind.REQUEST, RESTART, 0, round_
        header.attempt, header.prev = self._next_attempt(self.chunks[w.index]), NOTHING
        self._count("resent")
        return self._send(w, self._owner(w.index), w.length, 0)

    def _request(self, w: Work, round_: int, stage: Stage) -> Frame | None:
        """Ask for a frame. The request is as long as the answer; every asking is another attempt."""
        header, config, tensor = w.frame.header, self.config, self._tensor(w.generation)
        chunk = self.chunks[w.index]
        w.frame.resize(tensor.length)
        header.kind, header.generation, header.chunk = Kind.REQUEST, w.generation, w.index
        header.attempt, header.hop = self._next_attempt(chunk), 0
        header.flags = RESULT_FLAG if stage is Stage.RESULT else 0
        header.round, header.tag, header.prev = round_, tensor.tag, chunk.reduced & 0xFF
        chunk.asked_us = w.now
        self._count("resent")
        return self._send(w, config.before, tensor.length, 0)

    def _next_attempt(self, chunk: Chunk) -> int:
        chunk.attempt = chunk.attempt + 1 & U32
        return chunk.attempt & 0xFFFF

    def _send(self, w: Work, to: int, length: int, total: int) -> Frame:
        """Address the frame. Its fields and payload are in place but for the seal; ``total`` is the payload's checksum."""
        frame, header = w.frame, w.frame.header
        frame.source, frame.destination = self.config.peers[self.config.rank], self.config.peers[to]
        header.sender, header.receiver, header.length = self.config.rank, to, length
        header.lane = self.lane_number(w.cpu)
        header.checksum = total + frame_seal(header) & U64
        self._count("sent")
        self._count("sent_bytes", FRAME_BYTES + length)
        return frame

    def lane_number(self, cpu: int) -> int:
        """What frames call the lane of a CPU."""
        return cpu

    def _count(self, counter: str, by: int = 1) -> None:
        self.counters[counter] += by

    def _drop(self, reason: str) -> Frame | None:
        self._count(reason)
        return None

    def _refuse(self, reason: str) -> bool:
        self._count(reason)
        return False
