"""What a rank sends: partial sums, results, and nacks.

Reference model of the sending half of ``bpf/include/ring_store.h``.
"""

from __future__ import annotations

from testbed.protocol.ring.memory import (
    Chunk,
    ResultState,
    Stage,
    is_done,
)
from testbed.protocol.ring.streams import U32, U64, Streams, Work
from testbed.protocol.sequence import is_before, seq_of, word_of
from testbed.protocol.wire import (
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

__all__ = ["Sender"]


class Sender(Streams):
    """The part of a rank's programs that makes frames."""

    def _resize(self, frame: Frame, length: int) -> bool:
        """Make a frame long enough for a payload. One with fragments can be cut, but cannot grow,
        nor can another one become one.
        """
        if offset_of(length) + length > max(frame.size, JUMBO_OFFSET + LINEAR_PAYLOAD):
            return False
        frame.resize(length)
        return True

    def _launch(self, w: Work, round_: int, again: bool) -> Frame | None:
        """Turn the frame into the first hop of one of this rank's chunks, and store a chunk that is
        only gathered as this rank's own result.

        :param again: The chunk has been launched before.
        """
        header, chunk, tensor = w.frame.header, self.chunks[w.index], self._tensor(w.seq)
        gathered = self._is_gathered(w.seq, w.index)
        stage = Stage.RESULT if gathered else Stage.PARTIAL
        if not self._resize(w.frame, tensor.length):
            return None
        w.frame.fill(self.inputs[w.index], tensor.length)
        if w.seq != self.seq:
            return self._drop("overtaken")
        w.length = tensor.length
        if gathered and not again:
            w.result = chunk.result
            if not self._take_result(w, round_, chunk.input_sum):
                return self._drop("duplicate")
        header.kind, header.seq, header.chunk = Kind.REDUCE, w.seq, w.index
        header.hop, header.flags, header.round, header.tag = 1, 0, round_, tensor.tag
        if gathered:  # as if the previous rank had computed the result
            header.kind, header.hop = Kind.RESULT, 2
        if again:
            header.attempt, header.prev, header.flags = (
                self._next_attempt(chunk, w.seq),
                chunk.before[stage],
                self._again(),
            )
            chunk.resent_us = w.now
            self._count("resent")
        else:
            header.attempt = chunk.attempt[w.seq & 1] + 1 & 0xFFFF if round_ else 0
            self._enlist(w, w.index, stage)
        return self._send(w, self.config.after, tensor.length, chunk.input_sum)

    def _launch_first(self, w: Work) -> Frame | None:
        """Launch an own chunk, unless it has been launched."""
        chunk = self.chunks[w.index]
        if seq_of(chunk.reduced) == w.seq or not self._advance(
            chunk, "reduced", chunk.reduced, word_of(w.seq, 0)
        ):
            return None
        if self._is_scattered(w.seq, w.index):
            self._count_stored(w)
        return self._launch(w, 0, again=False)

    def _launch_next(self, w: Work) -> Frame | None:
        """The frame is free: turn it into this rank's next chunk, if there is one whose input is
        ready.
        """
        w.index = self.config.rank + self.config.ranks * self.next_slot
        if self._tensor(self.next_seq).root:
            w.index = self.next_slot  # slots are all chunks, of which this rank may own none
        self.next_slot += 1
        if self.next_seq != self.seq or w.index >= self.ready:
            return None
        w.seq, w.ready = self.seq, self.ready
        return self._launch_first(w) if self._is_mine(w.seq, w.index) else None

    def _restart(self, w: Work, round_: int) -> Frame | None:
        """Start an own chunk's reduce-scatter phase over.

        No buffer has the partial sum that was lost, or a rank has refused the result of `round_`.
        """
        chunk = self.chunks[w.index]
        if seq_of(chunk.reduced) == w.seq and chunk.reduced & 0xFF > round_:
            # A nack that names an earlier round comes from a rank that has not seen this one, which
            # may be lost. With `upstream` the ranks in between recover it hop by hop, unless the
            # chunk is scattered: then they wait for no result, so they do not miss a later round.
            if self._is_scattered(w.seq, w.index):
                if self._resent_lately(w):
                    return None
            elif self.config.upstream or self._too_soon(w):
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

    def _take_result(self, w: Work, round_: int, total: int) -> bool:
        """Store the payload, which has been verified, as the result. A result that the process has
        verified stays as it is.
        """
        chunk, first = self.chunks[w.index], seq_of(w.result) != w.seq
        state = w.result & 0xFF
        if not first and w.result >> 8 & 0xFF >= round_ and state != ResultState.NONE:
            return False
        if (
            not first and state == ResultState.CLAIMED
        ):  # another CPU is writing the result of an earlier round
            return False
        done = word_of(w.seq, round_ << 8 | ResultState.DONE)
        held = not first and is_done(w.result)
        if held and self._is_verified(w.result):
            return self._advance(chunk, "result", w.result, word_of(w.seq, round_ << 8 | state))
        if not self._advance(chunk, "result", w.result, done):
            return False
        self.results[w.index] = w.frame.take(w.length)
        chunk.result_sum, chunk.before[Stage.RESULT] = total, NOTHING
        self._count("stored")
        self.streams[w.cpu].progress += 1
        chunk.resent_us = 0  # nacks are answered from now on
        if not held:
            self._count_stored(w)
        return True

    def _count_stored(self, w: Work) -> None:
        """A chunk is done at this rank."""
        self.stored += 1
        if self.stored == self.wake_at:
            self.events.append(w.seq)

    def _send_result(self, w: Work, to: int, round_: int, prev: int) -> Frame | None:
        """Turn the frame into the result that this rank holds, for a rank that lacks it or refused
        an earlier round.

        :param prev: The predecessor of the lost frame.
        """
        header, chunk = w.frame.header, self.chunks[w.index]
        hop = self._result_steps(header.seq, w.index, to)
        if not self._resize(w.frame, w.length):
            return None
        w.frame.fill(self.results[w.index], w.length)
        if seq_of(chunk.result) != header.seq or not is_done(chunk.result):
            return self._drop("overtaken")
        chunk.resent_us = w.now
        header.kind, header.hop, header.flags = Kind.RESULT, hop, self._again()
        header.round = max(chunk.result >> 8 & 0xFF, round_)
        header.attempt = self._next_attempt(chunk, header.seq)
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
            # If that chunk's result is here, the next rank has received its partial sum. No result
            # of a scattered chunk comes, but the older of two has probably arrived.
            if seq_of(self.chunks[other].result) != w.seq and not self._is_scattered(w.seq, other):
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
        """Turn the frame into the partial sum from the retransmit buffer, or into a restart nack if
        it was not saved.
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
            self._again(),
        )
        header.round, header.attempt, header.prev = (
            round_,
            self._next_attempt(chunk, w.seq),
            chunk.before[Stage.PARTIAL],
        )
        self._count("resent")
        return self._send(w, self.config.after, w.length, slot.sum)

    def _send_restart(self, w: Work, round_: int) -> Frame:
        """Make the owner start the chunk's reduce-scatter phase over, after a round."""
        header = w.frame.header
        header.kind, header.flags, header.hop, header.round = Kind.NACK, RESTART, 0, round_
        header.attempt, header.prev = self._next_nack(self.chunks[w.index]), NOTHING
        self._count("resent")
        return self._send(w, self._owner(header.seq, w.index), w.length, 0)

    def _send_nack(self, w: Work, round_: int, stage: Stage) -> Frame | None:
        """Turn the frame into a nack. It is as long as its answer, and each nack has an attempt of
        its own.
        """
        header, config, tensor = w.frame.header, self.config, self._tensor(w.seq)
        chunk = self.chunks[w.index]
        if not self._resize(w.frame, tensor.length):
            return None
        header.kind, header.seq, header.chunk = Kind.NACK, w.seq, w.index
        header.attempt, header.hop = self._next_nack(chunk), 0
        header.flags = RESULT_FLAG if stage is Stage.RESULT else 0
        header.round, header.tag, header.summed = round_, tensor.tag, chunk.reduced & 0xFF
        chunk.nacked_us, chunk.tries = w.now, min(chunk.tries + 1, 0xFFFF)
        self._count("resent")
        return self._send(w, config.before, tensor.length, 0)

    def _next_attempt(self, chunk: Chunk, seq: int) -> int:
        chunk.attempt[seq & 1] = chunk.attempt[seq & 1] + 1 & 0xFFFF
        return chunk.attempt[seq & 1]

    def _next_nack(self, chunk: Chunk) -> int:
        """Nacks are not counted with frames that carry data: how many there are depends on time,
        and an attempt decides a frame's fate.
        """
        chunk.nacks = chunk.nacks + 1 & 0xFFFF
        return chunk.nacks

    def _send(self, w: Work, to: int, length: int, total: int) -> Frame:
        """Address the frame. All its fields but the seal, and its payload, are in place; ``total``
        is the payload's checksum.
        """
        frame, header = w.frame, w.frame.header
        frame.source, frame.destination = self.config.peers[self.config.rank], self.config.peers[to]
        header.sender, header.receiver, header.length = self.config.rank, to, length
        header.stream = self.stream_number(w.cpu)
        header.checksum = total + frame_seal(header) & U64
        self._count("sent")
        self._count("sent_bytes", offset_of(length) + length)
        return frame
