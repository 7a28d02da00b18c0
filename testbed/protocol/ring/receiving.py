"""What a rank does with the frames that arrive.

Reference model of ``bpf/include/ring_receive.h`` and the receiving half of ``ring_store.h``.
"""

from __future__ import annotations

from testbed.protocol.ring.memory import (
    EARLY_SLOTS,
    EARLY_TRIES,
    RETURNED,
    ResultState,
    Stage,
)
from testbed.protocol.ring.sending import Sender
from testbed.protocol.ring.streams import U32, U64, Work
from testbed.protocol.sequence import is_before, is_forward, seq_after, seq_of, word_of
from testbed.protocol.wire import (
    BLOCK,
    ENDED,
    NOTHING,
    RESTART,
    VERIFIED,
    VERIFIED_ACK,
    Frame,
    Kind,
    frame_seal,
)
from testbed.protocol.wire import RESULT as RESULT_FLAG

__all__ = ["Receiver"]


class Receiver(Sender):
    """The part of a rank's programs that takes frames from the link."""

    def _on_frame(self, w: Work) -> Frame | None:
        kind = w.frame.header.kind
        if not self._is_for_me(w):
            return None
        if kind == Kind.PROBE:
            return self._on_probe(w)
        if kind == Kind.ALIVE:
            return self._on_alive(w)
        if kind not in (Kind.REDUCE, Kind.RESULT, Kind.NACK):
            return self._drop("bad_kind")
        if not self._find_chunk(w):
            return None
        if kind == Kind.NACK:
            return self._on_nack(w)
        return self._on_reduce(w) if kind == Kind.REDUCE else self._on_result(w)

    def _is_for_me(self, w: Work) -> bool:
        """Is the frame addressed to this rank, and does its sender exist?"""
        header, config = w.frame.header, self.config
        if header.receiver != config.rank or w.frame.destination.ip != config.peers[config.rank].ip:
            return self._refuse("bad_receiver")
        if (
            header.sender >= config.ranks
            or header.sender == config.rank
            or w.frame.source.ip != config.peers[header.sender].ip
        ):
            return self._refuse("bad_rank")
        w.sender = header.sender
        return True

    def _find_chunk(self, w: Work) -> bool:
        """Look up the frame's chunk. Refuse the frame if its payload cannot be one."""
        header, config = w.frame.header, self.config
        if header.chunk >= config.chunks:
            return self._refuse("bad_chunk")
        if not header.seq:
            return self._refuse("bad_seq")  # chunks that were never stored carry 0
        w.index, w.length = header.chunk, header.length
        if not BLOCK <= header.length <= config.chunk_bytes or header.length % BLOCK:
            return self._refuse("bad_length")
        # An earlier collective is answered with the frame's own length; the next one's tensor is
        # not known yet.
        return header.seq != w.seq or self._fits(w)

    def _fits(self, w: Work) -> bool:
        """Does the frame, which has this rank's sequence number, fit this rank's tensor?

        If not, its sender reduces another tensor, or the frame was damaged. Only the former counts
        as a bad tensor, because the process fails the collective then.
        """
        header, tensor = w.frame.header, self._tensor(w.frame.header.seq)
        if (
            header.chunk < tensor.total
            and header.length == tensor.length
            and header.tag == tensor.tag
        ):
            return True
        if self._is_sealed(w) if header.kind == Kind.NACK else self._verify(w) is not None:
            self._count("bad_tensor")
        return False

    def _expected(self, w: Work) -> int:
        """The sum that the payload must have, given the checksum and the header's seal."""
        return w.frame.header.checksum - frame_seal(w.frame.header) & U64

    def _is_sealed(self, w: Work) -> bool:
        """Verify the seal of a frame whose checksum covers the header alone."""
        w.verified = not self._expected(w)
        return w.verified or self._refuse("bad_checksum")

    def _verify(self, w: Work) -> int | None:
        """The payload's sum; None: the frame does not match its checksum."""
        total = w.frame.sum(w.length)
        if total is None:
            self._drop("bad_length")
            return None
        w.verified = total == self._expected(w)
        if not w.verified:
            self._drop("bad_checksum")
            return None
        return total

    def _note_life(self, w: Work) -> None:
        """A frame that has been verified is a sign of life. Any other may be a dead rank's, damaged
        on its way or sent by a stranger.
        """
        if w.verified:
            heard = self.streams[w.cpu].heard
            heard[w.sender] = heard.get(w.sender, 0) + 1

    def _on_reduce(self, w: Work) -> Frame | None:
        header, config = w.frame.header, self.config
        hop = self._steps(w.index, config.rank)
        if not hop or header.hop != hop or header.sender != config.before:
            return self._drop("bad_rank")
        if (
            not config.upstream
            and self._holds_enough(w)
            and not self._is_scattered(header.seq, w.index)
        ):
            # The owner lacks the result, which was sent on from here.
            if self._verify(w) is None or self._too_soon(w):
                return None
            return self._send_result(
                w,
                self._owner(header.seq, w.index),
                header.round,
                self.chunks[w.index].before[Stage.RESULT],
            )
        if header.seq not in (w.seq, seq_after(w.seq)):
            return self._drop("bad_seq")
        if header.seq == w.seq and w.index < w.ready:
            return self._reduce(w)
        total = self._verify(w)
        if total is None:
            return None
        self._look_back(w)
        return self._save_early(w)

    def _on_result(self, w: Work) -> Frame | None:
        header, config = w.frame.header, self.config
        hop = self._result_steps(header.seq, w.index, config.rank)
        broadcast = self._is_broadcast(header.seq, w.index)
        if broadcast and hop == 1 and header.hop == config.ranks + 1:
            return self._on_return(w)
        if header.hop != hop:
            return self._drop("bad_rank")
        gathered, state = self._is_gathered(header.seq, w.index), w.result & 0xFF
        end = config.ranks + gathered + broadcast
        if (
            seq_of(w.result) == header.seq
            and state != ResultState.NONE
            and w.result >> 8 & 0xFF >= header.round
        ):
            return self._drop("duplicate")
        if (
            header.seq != w.seq
            or (w.index >= w.ready and not gathered)
            or self._is_scattered(header.seq, w.index)
        ):
            # No sum is complete without this rank's input, and none that is scattered travels: a
            # forgery, or a stale frame. What is only gathered needs no input.
            return self._drop("bad_seq")
        total = self._verify(w)
        if total is None:
            return None
        self._look_back(w)
        first = seq_of(w.result) != w.seq
        if not self._take_result(w, header.round, total):
            return self._drop("duplicate")
        self._note_arrival(w, Stage.RESULT)
        if hop + 1 < end:
            header.hop = hop + 1
            self._enlist(w, w.index, Stage.RESULT)
            return self._send(w, config.after, w.length, total)
        return self._launch_next(w) if first and hop + 1 == end else None

    def _on_return(self, w: Work) -> Frame | None:
        """A frame of a broadcast has come back to the root: it becomes the next chunk. The first to
        come back counts, and a duplicate launches nothing.
        """
        header = w.frame.header
        if header.sender != self.config.before:
            return self._drop("bad_rank")
        if header.seq != w.seq or seq_of(w.reduced) != header.seq:
            return self._drop("bad_seq")
        if w.reduced & RETURNED:
            return self._drop("duplicate")
        if self._verify(w) is None:
            return None
        self._look_back(w)
        if not self._advance(self.chunks[w.index], "reduced", w.reduced, w.reduced | RETURNED):
            return self._drop("duplicate")
        self.streams[w.cpu].progress += 1
        return self._launch_next(w)

    def _on_nack(self, w: Work) -> Frame | None:
        """A nack from the next rank: retransmit, or pass it on to the owner."""
        header, config, mine = (
            w.frame.header,
            self.config,
            self._is_mine(w.frame.header.seq, w.index),
        )
        chunk, direct = self.chunks[w.index], not header.hop
        asker = header.sender if direct else (header.sender + 1) % config.ranks
        if not self._is_sealed(w):
            return None
        if header.flags & RESTART:
            return self._on_restart(w)
        if not (asker == config.after if direct else mine and not config.upstream):
            return self._drop("bad_rank")
        if self._holds_enough(w):
            if self._is_scattered(header.seq, w.index):
                return self._drop("not_held")  # the owner lacks nothing
            if not (config.upstream or mine):
                return self._pass_on(w, chunk.before[Stage.RESULT])
            if asker == config.rank:
                return self._drop("duplicate")
            if self._too_soon(w):
                return None
            return self._send_result(
                w, asker, header.round, chunk.before[Stage.RESULT] if direct else header.prev
            )
        # The result cannot arrive there before it arrives here, but the rank may lack the partial
        # sum of a later round.
        if direct and header.flags & RESULT_FLAG and w.reduced & 0xFF <= header.summed:
            return self._drop("not_held")
        return self._resend_partial(w, mine)

    def _pass_on(self, w: Work, prev: int) -> Frame:
        """Pass a nack on to the chunk's owner. It carries the lost frame's ``prev``, so that the
        answer can carry it too.
        """
        header = w.frame.header
        header.prev, header.hop = prev, 1
        self._count("resent")
        return self._send(w, self._owner(header.seq, w.index), w.length, 0)

    def _resend_partial(self, w: Work, mine: bool) -> Frame | None:
        """Retransmit the partial sum that the next rank lacks."""
        if w.frame.header.seq != w.seq or seq_of(w.reduced) != w.seq:
            return self._drop("not_held")
        self._note_loss(w)
        if not (self.config.upstream or mine):
            return self._pass_on(
                w, NOTHING
            )  # the chunk passes by here again and gets its `prev` then
        if self._too_soon(w):
            return None
        if mine:
            return self._launch(w, w.reduced & 0xFF, again=True)
        return self._send_saved(w, w.reduced & 0xFF)

    def _on_restart(self, w: Work) -> Frame | None:
        """A rank refused a result, or no buffer has the partial sum. If this rank has verified its
        own result, send that.
        """
        header = w.frame.header
        if not self._is_mine(w.frame.header.seq, w.index):
            return self._drop("bad_rank")
        if self._holds(w) and self._is_verified(w.result):
            if self._too_soon(w):
                return None
            prev = (
                self.chunks[w.index].before[Stage.RESULT]
                if header.sender == self.config.after
                else NOTHING
            )
            return self._send_result(w, header.sender, header.round + 1 & 0xFF, prev)
        if header.seq != w.seq:
            return self._drop("not_held")
        return self._restart(w, header.round)

    def _note_rank(self, w: Work) -> None:
        """Note what another rank says about itself."""
        header, peer = w.frame.header, self.ranks[w.frame.header.sender]
        ended = header.flags & ENDED != 0
        if ended:
            peer.ended = 1
            self.ended = self.ended or word_of(header.reason, header.blamed)
        if peer.seq and is_before(header.seq, peer.seq):
            return
        peer.seq = header.seq
        if not ended:
            peer.front = header.front
        if header.flags & VERIFIED:
            peer.verified = header.seq

    def _tell(self, w: Work, kind: Kind, to: int, flags: int = 0, acked: int = 0) -> Frame:
        """Send a probe or an answer. An answer to the next rank names the last frame of the stream.

        :param acked: With ``VERIFIED_ACK``, the sequence number that is acknowledged.
        """
        header = w.frame.header
        header.kind, header.seq = kind, self.seq
        if self.ended:
            header.blamed = self.ended & U32
        else:
            header.front = self.front
        header.hop, header.reason, header.prev = 0, self.ended >> 32, NOTHING
        header.acked = acked & 0xFFFF
        header.flags = flags | (VERIFIED if self.verified == self.seq else 0)
        header.flags |= ENDED if self.ended else 0
        if kind == Kind.ALIVE and to == self.config.after:
            self._name_latest(w, self.seq)
        return self._send(w, to, 0, 0)

    def _on_probe(self, w: Work) -> Frame | None:
        header = w.frame.header
        if not self._is_sealed(w):
            return None
        self._note_rank(w)
        if not header.flags & VERIFIED:
            return self._tell(w, Kind.ALIVE, header.sender)
        return self._tell(w, Kind.ALIVE, header.sender, VERIFIED_ACK, header.seq)

    def _on_alive(self, w: Work) -> Frame | None:
        header = w.frame.header
        if not self._is_sealed(w):
            return None
        self._note_rank(w)
        # A late answer may acknowledge an earlier sequence number.
        if header.flags & VERIFIED_ACK and header.acked == self.verified & 0xFFFF:
            self.ranks[header.sender].verified_acked = self.verified
        if header.sender == self.config.before and not is_before(header.seq, w.seq):
            self.answered_us = w.now
            self.streams[w.cpu].answer = word_of(w.now, header.attempt)
            self._look_back(w)
            if header.stream < 64:
                self.flushed |= 1 << header.stream
        return None

    def _save_early(self, w: Work) -> Frame | None:
        """Save the frame, which has been verified, until the process has its input
        ready and kicks.
        """
        header = w.frame.header
        for step in range(EARLY_TRIES):
            slot = (header.chunk + step * (EARLY_SLOTS // EARLY_TRIES)) % EARLY_SLOTS
            waiting = self.early_frames[slot]
            if waiting is None:
                break
            if (waiting.header.seq, waiting.header.chunk) == (header.seq, header.chunk):
                return self._drop("duplicate")
        else:
            self.chunks[w.index].lost[Stage.PARTIAL] = header.seq
            return self._drop("early_full")
        self.early_frames[slot] = w.frame.copy()
        self._note_arrival(w, Stage.PARTIAL)
        return self._drop("early")

    def _reduce(self, w: Work) -> Frame | None:
        """Reduce-scatter phase, with the input ready: add it. The last rank of the phase has the
        sum.
        """
        header, config, chunk = w.frame.header, self.config, self.chunks[w.index]
        mine, last = word_of(w.seq, header.round), header.hop + 1 >= config.ranks
        scattered = self._is_scattered(w.seq, w.index)
        # With `origin`, and with a later round of a scattered chunk, the owner restarts a phase
        # that failed at a later hop, and the ranks before that hop pass its frames on.
        repeats = not config.upstream or (scattered and header.round > 0)
        if not repeats if w.reduced == mine else not is_forward(w.reduced, mine):
            return self._drop("duplicate")
        expected = self._expected(w) + chunk.input_sum & U64
        w.frame.add(self.inputs[w.index], w.length)
        total = w.frame.sum(w.length)
        if total is None:
            return self._drop("bad_length")
        if w.seq != self.seq:
            return self._drop("overtaken")
        w.verified = total == expected
        if not w.verified:
            return self._drop("bad_checksum")
        if w.reduced != mine:
            if not self._advance(chunk, "reduced", w.reduced, mine):
                return self._drop("duplicate")
            if scattered and not last and seq_of(w.reduced) != w.seq:
                self._count_stored(w)
            self._note_arrival(w, Stage.PARTIAL)
            self.streams[w.cpu].progress += 1
        self._look_back(w)
        if not last:
            if header.round:
                self._note_loss(w)
            if config.upstream and self.is_lossy(w.seq):
                self._save_partial(w, total)
            header.hop += 1
            if w.reduced == mine:
                self._repeat(w)
            else:
                self._enlist(w, w.index, Stage.PARTIAL)
            return self._send(w, config.after, w.length, total)
        first = seq_of(w.result) != w.seq
        if not self._take_result(w, header.round, total):
            return self._drop("duplicate")
        if scattered:
            return self._launch_next(w) if first else None
        header.kind, header.hop = Kind.RESULT, 1
        self._enlist(w, w.index, Stage.RESULT)
        return self._send(w, config.after, w.length, total)
