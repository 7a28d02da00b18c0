"""The streams of a rank's frames, and how it detects on them which frames are lost.

Reference model of ``bpf/include/ring_work.h`` and ``ring_stream.h``. `Work` models the races with
other CPUs that the C code guards against: it holds what a program has read before it acts, and a
test may let other things happen in between.
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
    AGAIN,
    EARLIER,
    JUMBO_OFFSET,
    LINEAR_PAYLOAD,
    NOTHING,
    Frame,
)

__all__ = ["U32", "U64", "Streams", "Work"]

U32 = 0xFFFFFFFF
U64 = 0xFFFFFFFFFFFFFFFF
_SKIP = 4
_LEAST_LATE_US = 500
_LATE_DECAY = 4


@dataclass(slots=True)
class Work:
    """``struct ring_work``: the frame that a program works on, and what the program has read before
    it acts.

    :param index: The frame's chunk.
    :param length: Bytes of its payload.
    :param reduced: The chunk's word `reduced`, as read.
    :param result: The chunk's word `result`, as read.
    :param sender: The sender of the frame that has arrived.
    :param verified: Content and sender of that frame have been verified.
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


class Streams(Memory):
    """The part of a rank's programs that knows the state of chunks and streams."""

    nack_due = False
    """A nack is due, and the last call has returned a frame: a copy of it returns from the doorbell
    and becomes the nack.
    """

    # The state of a chunk.

    def _owner(self, seq: int, index: int) -> int:
        if self._is_broadcast(seq, index):
            return self._tensor(seq).root - 1
        return index % self.config.ranks

    def _is_mine(self, seq: int, index: int) -> bool:
        return self._owner(seq, index) == self.config.rank

    def _is_broadcast(self, seq: int, index: int) -> bool:
        """Is the chunk part of a broadcast?"""
        return self._tensor(seq).root != 0 and self._is_gathered(seq, index)

    def _is_scattered(self, seq: int, index: int) -> bool:
        """Does the chunk end with the reduce-scatter phase?"""
        return index < self._tensor(seq).scattered

    def _is_gathered(self, seq: int, index: int) -> bool:
        """Does the chunk begin with the all-gather phase?"""
        first = self._tensor(seq).gathered
        return first != 0 and index >= first

    def _steps(self, index: int, rank: int) -> int:
        """Hops from a chunk's owner to a rank in the reduce-scatter phase."""
        return (rank - index) % self.config.ranks

    def _result_steps(self, seq: int, index: int, rank: int) -> int:
        """Hops of a result to a rank, from the owner's previous rank, which computes it. To
        that rank itself it takes a full turn of the ring.

        That rank receives a result only after it has refused its own.
        """
        return self._steps(self._owner(seq, index), rank) + 1

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
        """With ``origin``, all ranks that lack a chunk nack it at once: ignore those that come
        within the holdoff.
        """
        return not self.config.upstream and self._resent_lately(w)

    def _resent_lately(self, w: Work) -> bool:
        """Was the chunk retransmitted within the holdoff?"""
        since = self.chunks[w.index].resent_us
        return since != 0 and (w.now - since & U32) < self.nack_holdoff_us

    def _advance(self, chunk: Chunk, name: str, before: int, after: int) -> bool:
        """Compare-and-exchange, only forward."""
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
        chunk.before[stage] = NOTHING if header.flags else header.prev
        chunk.attempt[w.seq & 1], chunk.nacks = header.attempt, 0

    def _repeat(self, w: Work) -> None:
        """The chunk's partial sum was sent before: repeat its ``prev``."""
        header, chunk = w.frame.header, self.chunks[w.index]
        header.flags, header.prev = self._again(), chunk.before[Stage.PARTIAL]
        chunk.attempt[w.seq & 1] = header.attempt

    def _again(self) -> int:
        """The flag of a retransmission."""
        return AGAIN

    def _name_latest(self, w: Work, seq: int) -> None:
        """Set ``prev`` to the stream's last frame, if that belongs to this collective or the
        previous one.
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
        due = w.now
        if chunk.lost[stage] != seq or not chunk.nacked_us:
            chunk.lost[stage], chunk.nacked_us, chunk.tries = seq, w.now, 0
            due = due + self.reorder_window_us & U32
            self._count("lost")
        elif self.waits(chunk, w.now):
            return  # a second frame names it as its predecessor
        if not self.config.reorder_threshold or seq != w.seq or index >= w.ready:
            return
        self._put(nacks.fresh, Nack(seq, prev, nacks.frames + self.config.reorder_threshold, due))

    def _note_arrival(self, w: Work, stage: Stage) -> None:
        """A frame with data has arrived that is new: was it missing?

        Then its nack has been answered, or it was late: the reordering window becomes as long as it
        should have been. Losses shorten it again, because their nacks waited for nothing.
        """
        header, chunk = w.frame.header, self.chunks[w.index]
        since, found = chunk.nacked_us, chunk.lost[stage] == header.seq
        if not since or (not found and header.seq != w.seq):
            return
        tries, chunk.nacked_us, chunk.tries = chunk.tries, 0, 0
        if header.flags & AGAIN:
            self.answered_us = w.now
            self.late_us -= self.late_us >> _LATE_DECAY
        elif found and not header.round:
            late = w.now - since & U32
            if late < _LEAST_LATE_US:
                return
            if tries and self.widened_us - since & 0x80000000:
                late += self.reorder_window_us  # it was nacked when the window was over
            if late > self.late_us:
                self.widened_us = w.now
            self.late_us = min(max(self.late_us, late), self.rto_us)

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
                chunk = self.chunks[parts_of(nack.item)[0]]
                # Then the process has nacked it lately.
                is_nacked = chunk.tries > 0 and self.waits(chunk, w.now)
                since, tries = (chunk.nacked_us, 0) if is_nacked else (w.now, 1)
                due = since + self.patience_us(chunk.tries + tries, w.now) & U32
                self._put(nacks.again, Nack(nack.seq, nack.item, nacks.frames, due))
                if not is_nacked:
                    return nack
        return None

    def stream_number(self, cpu: int) -> int:
        """The number by which frames name a CPU's stream."""
        return cpu

    def _count(self, counter: str, by: int = 1) -> None:
        self.counters[counter] += by

    def _drop(self, reason: str) -> Frame | None:
        self._count(reason)
        return None

    def _refuse(self, reason: str) -> bool:
        self._count(reason)
        return False
