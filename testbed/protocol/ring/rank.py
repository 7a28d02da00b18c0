"""The ring all-reduce of one rank, as a state machine without I/O or clocks.

Reference model of ``bpf/ring.bpf.c``, which the tests compare with it frame by frame. For each
frame that goes in, at most one comes out: `Rank.on_frame` is the program on the link, `Rank.on_wr`
the one on the doorbell. The rank's process is in `testbed.protocol.ring.process`. A group has 2 to
32 ranks, because one rank alone needs no ring.
"""

from __future__ import annotations

from testbed.protocol.ring.memory import (
    EARLY_SLOTS,
    ResultState,
    Stage,
    WorkRequest,
    WrKind,
    is_done,
    parts_of,
)
from testbed.protocol.ring.receiving import Receiver
from testbed.protocol.ring.streams import U32, U64, Work
from testbed.protocol.sequence import seq_of
from testbed.protocol.wire import (
    NOTHING,
    VERSION,
    Frame,
    Kind,
    frame_seal,
)

__all__ = ["Rank"]


class Rank(Receiver):
    """The programs of one rank, and the memory that they work on."""

    def on_frame(self, frame: Frame, now_us: int = 0, cpu: int = 0) -> Frame | None:
        """A frame has arrived on the link (``ring_link``).

        :param now_us: Microseconds of any clock that does not go back.
        :param cpu: The CPU, hence the stream, on which the frame has arrived, and on which it
            leaves.
        :returns: The frame that leaves by the same link, if any; the frame passed in is not
            changed. If `nack_due` is set as well, a copy of the frame returns from the doorbell,
            and must be passed to `on_wr`.
        """
        work = self.look(frame, now_us, cpu)
        return None if work is None else self.act(work)

    def look(self, frame: Frame, now_us: int = 0, cpu: int = 0) -> Work | None:
        """The first half of `on_frame`: read all that the second half needs. None: the frame does
        not belong to this group.
        """
        self.nack_due = False
        header = frame.header
        if (
            header.cookie != self.config.cookie
            or header.version != VERSION
            or header.group != self.config.group
        ):
            self._drop("bad_cookie")
            return None
        w = Work(frame.copy(), now_us & U32, cpu, self.seq, self.ready, header.chunk)
        if header.chunk < self.config.chunks:
            chunk = self.chunks[header.chunk]
            w.reduced, w.result = chunk.reduced, chunk.result
        return w

    def act(self, w: Work) -> Frame | None:
        """The second half of `on_frame`."""
        out = self._on_frame(w)
        self._note_life(w)
        if self.config.reorder_threshold:
            self._look_around(w, out is not None)
        if out is not None or not self.nack_due:
            return out
        self.nack_due = False  # a frame that goes nowhere becomes the nack itself
        return self._send_due_nack(w)

    def on_wr(self, kick: Frame, now_us: int = 0, cpu: int = 0) -> Frame | None:
        """A copy of a kick has arrived at the doorbell's near end: execute the next work request
        (``ring_execute``).

        A copy of a frame that left by the link becomes a nack instead.

        :returns: The frame that leaves by the link, if any.
        """
        w = self.look(kick, now_us, cpu)
        if w is None:
            return None
        if w.frame.header.kind != Kind.DOORBELL:
            return self._send_due_nack(w)
        return self._on_wr(w, self.sq.popleft()) if self.sq else None

    def _on_wr(self, w: Work, wr: WorkRequest) -> Frame | None:
        if wr.kind == WrKind.REPLAY:
            return self._replay(w, wr.chunk)
        if wr.kind == WrKind.PROBE:
            w.frame.header.attempt = wr.attempt
            return self._tell(w, Kind.PROBE, wr.chunk)
        if wr.kind not in (WrKind.LAUNCH, WrKind.NACK, WrKind.RESTART):
            return self._drop("bad_kind")
        if wr.seq != w.seq or wr.chunk >= w.ready:
            return self._drop("bad_seq")
        w.index, w.length = wr.chunk, self._tensor(w.seq).length
        if wr.kind == WrKind.LAUNCH:
            return self._launch_first(w)
        return self._nack_next(w) if wr.kind == WrKind.NACK else self._restart_wr(w, wr.extra)

    def _send_due_nack(self, w: Work) -> Frame | None:
        """Turn a spare frame into the nack that it was reserved for."""
        nacks = self.nacks[w.cpu]
        nack = self._take_nack(w, nacks, nacks.fresh) or self._take_nack(w, nacks, nacks.again)
        if nack is None:
            return None
        w.index, round_, stage = parts_of(nack.item)
        return self._send_nack(w, round_, stage)

    def _nack_next(self, w: Work) -> Frame | None:
        """Nack the chunk's next missing frame, if one is missing, and has not been nacked since the
        process looked.
        """
        chunk = self.chunks[w.index]
        if self.waits(chunk, w.now):
            return None
        if seq_of(chunk.result) == w.seq:
            state = chunk.result & 0xFF
            if is_done(chunk.result) or state == ResultState.CLAIMED:
                return None
            if state == ResultState.REFUSED:
                return self._send_nack(w, (chunk.result >> 8) + 1 & 0xFF, Stage.RESULT)
        if seq_of(chunk.reduced) == w.seq or self._is_gathered(w.seq, w.index):
            return self._send_nack(w, 0, Stage.RESULT)  # a result of any round will do
        return None if self._is_mine(w.seq, w.index) else self._send_nack(w, 0, Stage.PARTIAL)

    def _restart_wr(self, w: Work, round_: int) -> Frame | None:
        """The process has refused the chunk's result of a round."""
        header, tensor = w.frame.header, self._tensor(w.seq)
        if self._is_mine(w.seq, w.index):
            return self._restart(w, round_ & 0xFF)
        if not self._resize(w.frame, w.length):
            return None
        header.seq, header.chunk, header.tag = w.seq, w.index, tensor.tag
        return self._send_restart(w, round_ & 0xFF)

    def _replay(self, w: Work, slot: int) -> Frame | None:
        """Replay an early frame: the kick becomes it."""
        if slot >= EARLY_SLOTS:
            return self._drop("bad_chunk")
        early, self.early_frames[slot] = self.early_frames[slot], None
        if early is None:
            return None
        frame, header, kept = w.frame, w.frame.header, early.header
        if not self._resize(frame, kept.length):
            return self._drop("bad_length")
        frame.fill(early.take(kept.length), kept.length)
        total = frame.sum(kept.length)
        assert total is not None
        header.kind, header.flags, header.stream, header.prev = Kind.REDUCE, 0, 0, NOTHING
        header.seq, header.chunk, header.attempt = kept.seq, kept.chunk, kept.attempt
        header.hop, header.round, header.length, header.tag = (
            kept.hop,
            kept.round,
            kept.length,
            kept.tag,
        )
        header.sender, header.receiver = self.config.before, self.config.rank
        header.checksum = total + frame_seal(header) & U64
        chunk = self.chunks[header.chunk]
        w.reduced, w.result = chunk.reduced, chunk.result
        return self._on_reduce(w) if self._find_chunk(w) else None
