"""What a rank sends: partial sums, results, and nacks.

Reference model of ``bpf/include/ring_work.h``, ``ring_stream.h`` and the sending half of
``ring_store.h``. What C does against races with other CPUs comes down to `Work`: what a program has
read before it acts. A test may let other things happen in between.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.protocol.ring.memory import (
    EARLY_SLOTS,
    EARLY_TRIES,
    NACK_ENTRIES,
    Chunk,
    Memory,
    Nack,
    NackQueue,
    Nacks,
    ResultState,
    Stage,
    Tensor,
    is_done,
    item_of,
    parts_of,
)
from testbed.protocol.sequence import is_before, is_forward, seq_after, seq_of, word_of
from testbed.protocol.wire import (
    EARLIER,
    JUMBO_OFFSET,
    LINEAR_PAYLOAD,
    NOTHING,
    RESTART,
    Frame,
    Kind,
    frame_seal,
    offset_of,
)
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
    :param sender: Of the frame that has arrived.
    :param verified: That frame is what it says, and from whom it says.
    """

    frame: Frame
    now: int
    cpu: int
    seq: int
    ready: int
    index: int = 0
    length: int = 0
    reduced: int = 0
    result: int = 0
    sender: int = 0
    verified: bool = False


class Sender(Memory):
    """The part of a rank's programs that makes frames."""

    nack_due = False
    """A nack is due, and the last call has returned a frame: a copy of it comes back to become the
    nack.
    """

    # The state of a chunk.

    def _owner(self, index: int) -> int:
        return index % self.config.ranks

    def _is_mine(self, index: int) -> bool:
        return index % self.config.ranks == self.config.rank

    def _steps(self, index: int, rank: int) -> int:
        """Hops from a chunk's owner to a rank in the reduce-scatter phase."""
        return (rank - index) % self.config.ranks

    def _result_steps(self, index: int, rank: int) -> int:
        """Hops of a result to a rank, from the rank before the owner, which computes it; to that
        rank itself a full round.

        Only who has refused its own sum gets one from another.
        """
        return self._steps(index, rank) + 1

    def _seq_verified(self, seq: int) -> bool:
        return self.verified == seq or is_before(seq, self.seq)

    def _is_verified(self, word: int) -> bool:
        """Has the process verified the result that a word describes?"""
        state = word & 0xFF
        return state == ResultState.VERIFIED or (
            state == ResultState.DONE and self._seq_verified(seq_of(word))
        )

    def _holds(self, w: Work) -> bool:
        """Does this rank hold the result of the frame's chunk and sequence number?"""
        return seq_of(w.result) == w.frame.header.seq and is_done(w.result)

    def _holds_enough(self, w: Work) -> bool:
        """Is that result good enough for the frame's round? A verified one is good enough for any
        round.
        """
        return self._holds(w) and (
            w.result >> 8 & 0xFF >= w.frame.header.round or self._is_verified(w.result)
        )

    def _too_soon(self, w: Work) -> bool:
        """Was the chunk retransmitted within the holdoff? With ``origin`` all ranks that lack it
        nack it at once.
        """
        since = self.chunks[w.index].resent_us
        return (
            not self.config.upstream and since != 0 and (w.now - since & U32) < self.nack_holdoff_us
        )

    def _advance(self, chunk: Chunk, name: str, before: int, after: int) -> bool:
        """Compare and exchange, forward only."""
        if not is_forward(before, after) or getattr(chunk, name) != before:
            return False
        setattr(chunk, name, after)
        return True

    def _tensor(self, seq: int) -> Tensor:
        return self.tensors[seq & 1]

    # Streams, and loss detection on them.

    def _enlist(self, w: Work, index: int, stage: Stage) -> None:
        """Append a frame that is sent for the first time to this CPU's stream."""
        stream, chunk, header = self.streams[w.cpu], self.chunks[index], w.frame.header
        header.flags = 0
        self._name_latest(w, w.seq)
        stream.seq, stream.prev = w.seq, item_of(index, header.round, stage)
        chunk.before[stage], chunk.attempt = (
            (NOTHING if header.flags else header.prev),
            header.attempt,
        )

    def _repeat(self, w: Work) -> None:
        """The chunk's partial sum was sent before: repeat its ``prev``."""
        header, chunk = w.frame.header, self.chunks[w.index]
        header.flags, header.prev, chunk.attempt = 0, chunk.before[Stage.PARTIAL], header.attempt

    def _name_latest(self, w: Work, seq: int) -> None:
        """Set ``prev`` to the stream's last frame, if that belongs to this collective or to the one
        before.
        """
        stream, header = self.streams[w.cpu], w.frame.header
        header.prev = NOTHING
        if not stream.seq:
            return
        if stream.seq == seq:
            header.prev = stream.prev
        elif seq_after(stream.seq) == seq:
            header.prev = stream.prev
            header.flags |= EARLIER

    def _lacks(self, chunk: Chunk, seq: int, round_: int, stage: Stage) -> bool:
        """Does this rank lack this frame of a chunk?"""
        state = chunk.result & 0xFF
        at_all = seq_of(chunk.result) == seq and state != ResultState.NONE
        if stage is Stage.PARTIAL:
            return not at_all and is_forward(chunk.reduced, word_of(seq, round_))
        return not (
            at_all and (chunk.result >> 8 & 0xFF >= round_ or self._is_verified(chunk.result))
        )

    def _has_early(self, seq: int, index: int) -> bool:
        for step in range(EARLY_TRIES):
            early = self.early_frames[(index + step * (EARLY_SLOTS // EARLY_TRIES)) % EARLY_SLOTS]
            if early is not None and (early.header.seq, early.header.chunk) == (seq, index):
                return True
        return False

    def _note_loss(self, w: Work) -> None:
        """A frame was lost on its way to this rank or from it."""
        self.lossy = w.seq

    def _look_back(self, w: Work) -> None:
        """A frame has arrived: has its predecessor? If not, note the loss and queue a nack."""
        seq, prev = w.frame.header.seq, w.frame.header.prev
        index, round_, stage = parts_of(prev)
        if w.frame.header.flags & EARLIER:
            if seq != seq_after(w.seq):
                return
            seq = w.seq
        if prev == NOTHING or index >= self.config.chunks or is_before(seq, w.seq):
            return
        chunk, nacks = self.chunks[index], self.nacks[w.cpu]
        if not self._lacks(chunk, seq, round_, stage):
            return
        if stage is Stage.PARTIAL and self._has_early(seq, index):
            return
        self._note_loss(w)
        chunk.lost[stage], chunk.nacked_us = seq, w.now
        self._count("lost")
        if not self.config.reorder_threshold or seq != w.seq or index >= w.ready:
            return
        self._put(nacks.fresh, Nack(seq, prev, nacks.frames + self.config.reorder_threshold, w.now))

    def _put(self, queue: NackQueue, nack: Nack) -> None:
        if len(queue.carried) + len(queue.waiting) >= NACK_ENTRIES:
            # Their frames were dropped on the way: wait again.
            queue.waiting = queue.carried + queue.waiting
            queue.carried.clear()
            return
        queue.waiting.append(nack)

    def _is_missing(self, nack: Nack) -> bool:
        if nack.seq != self.seq:
            return False
        index, round_, stage = parts_of(nack.item)
        return self._lacks(self.chunks[index], nack.seq, round_, stage)

    def _look_around(self, w: Work, goes_on: bool) -> None:
        """Count an arrival, and see whether a nack is due.

        :param goes_on: The frame at hand does, so that a copy of it would have to become the nack.
            A frame with fragments cannot be copied.
        """
        nacks = self.nacks[w.cpu]
        nacks.frames = nacks.frames + 1 & U32
        if goes_on and self._has_fragments(w.frame):
            return
        self.nack_due = self._carry(w, nacks, nacks.fresh) or self._carry(w, nacks, nacks.again)

    def _has_fragments(self, frame: Frame) -> bool:
        return (
            self.config.chunk_bytes > LINEAR_PAYLOAD and frame.size > JUMBO_OFFSET + LINEAR_PAYLOAD
        )

    def _carry(self, w: Work, nacks: Nacks, queue: NackQueue) -> bool:
        """Is a nack due? Then reserve it for the frame at hand."""
        for _ in range(_SKIP):
            if not queue.waiting:
                return False
            nack = queue.waiting[0]
            if self._is_missing(nack):
                if (nacks.frames - nack.due_frame | w.now - nack.due_us) & 0x80000000:
                    return False
                queue.carried.append(queue.waiting.popleft())
                return True
            queue.waiting.popleft()
            if queue.carried:
                queue.carried.append(nack)
        return False

    def _take_nack(self, w: Work, nacks: Nacks, queue: NackQueue) -> Nack | None:
        """Take a reserved entry; None: none is still missing."""
        for _ in range(_SKIP):
            if not queue.carried:
                return None
            nack = queue.carried.popleft()
            if self._is_missing(nack):
                due = w.now + (self.nack_holdoff_us << nack.tries) & U32
                self._put(
                    nacks.again,
                    Nack(
                        nack.seq, nack.item, nacks.frames, due, min(nack.tries + 1, _MOST_DOUBLINGS)
                    ),
                )
                return nack
        return None

    # Frames.

    def _resize(self, frame: Frame, length: int) -> bool:
        """Make a frame long enough for a payload. One with fragments can be cut, but cannot grow,
        nor can another one become one.
        """
        if offset_of(length) + length > max(frame.size, JUMBO_OFFSET + LINEAR_PAYLOAD):
            return False
        frame.resize(length)
        return True

    def _launch(self, w: Work, round_: int, again: bool) -> Frame | None:
        """Turn the frame into the first hop of one of this rank's chunks.

        :param again: It was sent before.
        """
        header, chunk, tensor = w.frame.header, self.chunks[w.index], self._tensor(w.seq)
        if not self._resize(w.frame, tensor.length):
            return None
        w.frame.fill(self.inputs[w.index], tensor.length)
        if w.seq != self.seq:
            return self._drop("overtaken")
        header.kind, header.seq, header.chunk = Kind.REDUCE, w.seq, w.index
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
        """Launch an own chunk, unless it has been launched."""
        chunk = self.chunks[w.index]
        if seq_of(chunk.reduced) == w.seq or not self._advance(
            chunk, "reduced", chunk.reduced, word_of(w.seq, 0)
        ):
            return None
        return self._launch(w, 0, again=False)

    def _launch_next(self, w: Work) -> Frame | None:
        """The frame is free: turn it into this rank's next chunk, if there is one whose input is
        ready.
        """
        w.index = self.config.rank + self.config.ranks * self.next_slot
        self.next_slot += 1
        if self.next_seq != self.seq or w.index >= self.ready:
            return None
        w.seq, w.ready = self.seq, self.ready
        return self._launch_first(w)

    def _restart(self, w: Work, round_: int) -> Frame | None:
        """Start an own chunk's reduce-scatter phase over.

        Nobody has saved the partial sum that was lost, or a rank has refused the result of a round.
        """
        chunk = self.chunks[w.index]
        if seq_of(chunk.reduced) == w.seq and chunk.reduced & 0xFF > round_:
            # A nack that names an earlier round comes from a rank that has not seen this one, which
            # may be lost. With `upstream` the ranks in between recover it hop by hop.
            if self.config.upstream or self._too_soon(w):
                return None
            return self._launch(w, chunk.reduced & 0xFF, again=True)
        if seq_of(chunk.reduced) != w.seq or chunk.reduced & 0xFF != round_ or round_ == 0xFF:
            return None
        if not self._advance(chunk, "reduced", chunk.reduced, chunk.reduced + 1):
            return None
        self._count("restarted")
        self._count("resent")
        chunk.resent_us = w.now
        return self._launch(w, round_ + 1, again=False)

    def _send_result(self, w: Work, to: int, round_: int, prev: int) -> Frame | None:
        """Turn the frame into the result that this rank holds, for a rank that lacks it or refused
        an earlier round.

        :param prev: What the rank before the receiver had sent it before the result.
        """
        header, chunk = w.frame.header, self.chunks[w.index]
        hop = self._result_steps(w.index, to)
        if not self._resize(w.frame, w.length):
            return None
        w.frame.fill(self.results[w.index], w.length)
        if seq_of(chunk.result) != header.seq or not is_done(chunk.result):
            return self._drop("overtaken")
        chunk.resent_us = w.now
        header.kind, header.hop, header.flags = Kind.RESULT, hop, 0
        header.round = max(chunk.result >> 8 & 0xFF, round_)
        header.attempt = self._next_attempt(chunk)
        header.prev = prev
        self._count("answered")
        self._count("resent")
        return self._send(w, to, w.length, chunk.result_sum)

    def _save_partial(self, w: Work, total: int) -> None:
        """Save the partial sum in the retransmit buffer, unless its slot holds one that may still
        be needed.
        """
        slot, mine = (
            self.retransmit[w.index & self.config.retransmit_slots - 1],
            word_of(w.seq, w.index),
        )
        if slot.owner != mine and seq_of(slot.owner) == w.seq:
            other = slot.owner & U32
            # If that chunk's result is here, the rank after has received its partial sum.
            if seq_of(self.chunks[other].result) != w.seq:
                self._count("unsaved")
                return
        if slot.owner != mine and slot.owner and is_before(w.seq, seq_of(slot.owner)):
            return
        slot.owner = slot.valid = mine
        slot.data, slot.sum, slot.round = (
            w.frame.take(w.length),
            total,
            self.chunks[w.index].reduced & 0xFF,
        )

    def _send_saved(self, w: Work, round_: int) -> Frame | None:
        """Turn the frame into the partial sum that this rank has sent, or into a restart nack if it
        was not saved.
        """
        slot, mine = (
            self.retransmit[w.index & self.config.retransmit_slots - 1],
            word_of(w.seq, w.index),
        )
        header, chunk = w.frame.header, self.chunks[w.index]
        if slot.valid != mine or slot.round != round_:
            chunk.resent_us = w.now
            return self._send_restart(w, round_)
        if not self._resize(w.frame, w.length):
            return None
        w.frame.fill(slot.data, w.length)
        chunk.resent_us = w.now
        header.kind, header.hop, header.flags = (
            Kind.REDUCE,
            self._steps(w.index, self.config.rank) + 1,
            0,
        )
        header.round, header.attempt, header.prev = (
            round_,
            self._next_attempt(chunk),
            chunk.before[Stage.PARTIAL],
        )
        self._count("resent")
        return self._send(w, self.config.after, w.length, slot.sum)

    def _send_restart(self, w: Work, round_: int) -> Frame:
        """Ask the owner to start the chunk's reduce-scatter phase over, after a round."""
        header = w.frame.header
        header.kind, header.flags, header.hop, header.round = Kind.NACK, RESTART, 0, round_
        header.attempt, header.prev = self._next_attempt(self.chunks[w.index]), NOTHING
        self._count("resent")
        return self._send(w, self._owner(w.index), w.length, 0)

    def _send_nack(self, w: Work, round_: int, stage: Stage) -> Frame | None:
        """Turn the frame into a nack. It is as long as its answer, and each nack has an attempt of
        its own.
        """
        header, config, tensor = w.frame.header, self.config, self._tensor(w.seq)
        chunk = self.chunks[w.index]
        if not self._resize(w.frame, tensor.length):
            return None
        header.kind, header.seq, header.chunk = Kind.NACK, w.seq, w.index
        header.attempt, header.hop = self._next_attempt(chunk), 0
        header.flags = RESULT_FLAG if stage is Stage.RESULT else 0
        header.round, header.tag, header.prev = round_, tensor.tag, chunk.reduced & 0xFF
        chunk.nacked_us = w.now
        self._count("resent")
        return self._send(w, config.before, tensor.length, 0)

    def _next_attempt(self, chunk: Chunk) -> int:
        chunk.attempt = chunk.attempt + 1 & U32
        return chunk.attempt & 0xFFFF

    def _send(self, w: Work, to: int, length: int, total: int) -> Frame:
        """Address the frame. Its fields and payload are in place but for the seal; ``total`` is the
        payload's checksum.
        """
        frame, header = w.frame, w.frame.header
        frame.source, frame.destination = self.config.peers[self.config.rank], self.config.peers[to]
        header.sender, header.receiver, header.length = self.config.rank, to, length
        header.stream = self.stream_number(w.cpu)
        header.checksum = total + frame_seal(header) & U64
        self._count("sent")
        self._count("sent_bytes", offset_of(length) + length)
        return frame

    def stream_number(self, cpu: int) -> int:
        """The number of a CPU's stream in frames."""
        return cpu

    def _count(self, counter: str, by: int = 1) -> None:
        self.counters[counter] += by

    def _drop(self, reason: str) -> Frame | None:
        self._count(reason)
        return None

    def _refuse(self, reason: str) -> bool:
        self._count(reason)
        return False
