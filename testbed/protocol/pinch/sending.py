"""How a kick becomes frames: work requests, lost frames, new frames. Reference model of
``bpf/broadcast.bpf.c``.
"""

from __future__ import annotations

from testbed.protocol.pinch.memory import Sent
from testbed.protocol.pinch.packet import (
    ASK,
    BATCH,
    KICK_ALL,
    LEAST_WORDS,
    WR_ASK,
    Packet,
    ack_first,
    word_in,
)
from testbed.protocol.pinch.work import Next, Status, Work
from testbed.protocol.sequence import seq_of, word_of
from testbed.protocol.wire import FRAME_BYTES, PinchKind

__all__ = ["Sender"]

_LEAST_BYTES = FRAME_BYTES + 8 * LEAST_WORDS


class Sender(Work):
    """The program that sends."""

    def on_send(self, kick: Packet, now_us: int = 0) -> list[tuple[Next, Packet]]:
        """A kick becomes frames (``pinch_send``). Each frame is a clone of the kick, which is
        dropped in the end.
        """
        if not self._is_kick(kick):
            return []
        if kick.kind == PinchKind.SEND_HANDSHAKES:
            return self._send_handshakes(kick)
        if self.flow_here >= len(self.flows):
            return []
        return [(Next.LINK, packet) for packet in self._send_all(kick, now_us)]

    def _is_kick(self, kick: Packet) -> bool:
        if self._is_foreign(kick):
            return False
        if kick.receiver != self.config.rank:
            return self._refuse("bad_receiver")
        if kick.kind not in (PinchKind.DOORBELL, PinchKind.SEND_HANDSHAKES):
            return self._refuse("bad_kind")
        return kick.checksum == kick.seal or self._refuse("bad_checksum")

    def _send_handshakes(self, kick: Packet) -> list[tuple[Next, Packet]]:
        """Send handshakes to all partners, or repeat those to partners from which something is
        missing. The end of exchanges is repeated until all ranks have acknowledged it.
        """
        waits = self.waits() if kick.attempt else 0
        say = Status(self.seq, waits, kick.attempt, bool(kick.attempt) or self.has_ended)
        out = []
        for rank, peer in enumerate(self.peers):
            word = word_in(peer.ours, self.seq)
            if rank == self.config.rank:
                continue
            if self.has_ended:
                if self.end_acked >> rank & 1:
                    continue
                word = word_of(self.seq, 0)
            elif (
                not self.partners >> rank & 1
                or not word
                or (kick.attempt and not self.is_behind(rank))
            ):
                continue
            blank = kick._replace(
                body=kick.body[:LEAST_WORDS] + (0,) * (LEAST_WORDS - len(kick.body))
            )
            out.append((Next.LINK, self._handshake(blank, rank, word, say)))
        # The process may have checked before the last handshake arrived, and have left its frames
        # to this program.
        if self.meet() and self.ready:
            out += [
                (Next.DOORBELL, self._own(kick._replace(flags=KICK_ALL), PinchKind.DOORBELL))
                for _ in self.config.fan
            ]
        return out

    def _send_all(self, kick: Packet, now: int) -> list[Packet]:
        """Send everything that is due: work requests first, then lost frames, then new ones."""
        out = self._send_requested(kick, now)
        if (
            kick.sender != self.config.rank
            and kick.sender < self.config.ranks
            and kick.seq == self.seq
        ):
            out += self._send_holes(kick, now)
        return out + self._send_new(kick, now)

    def _send_requested(self, kick: Packet, now: int) -> list[Packet]:
        out, flow = [], self.flows[self.flow_here]
        homes = self.config.homes(self.flow_here)
        requests, flow.sq = flow.sq[:BATCH], flow.sq[BATCH:]
        for wr in requests:
            flow.sq_head += 1
            number, last = wr & WR_ASK - 1, self.sent.get((self.flow_here, wr & WR_ASK - 1))
            # Do nothing if the frame has not been sent yet.
            if (
                seq_of(wr) != self.seq
                or number >= self.ready
                or last is None
                or last.seq != self.seq
            ):
                continue
            to = self.frames[number].to & homes
            lacking = sum(
                1 << rank
                for rank in range(self.config.ranks)
                if to >> rank & 1 and not self._is_acked(number, rank)
            )
            if lacking and wr & WR_ASK:
                out += self._ask_for(kick, number, last, lacking)
            elif lacking:
                out += self._send_frame(kick, number, lacking, now)
        return out

    def _send_holes(self, kick: Packet, now: int) -> list[Packet]:
        """Retransmit the frames that are lost: they are not acknowledged, and were sent to a peer
        before a frame that has arrived there, on the same stream.
        """
        out, rank = [], kick.sender
        for number in range(32 * ack_first(kick.number), min(kick.number + 1, len(self.frames))):
            last = self.sent.get((self.flow_here, number))
            if not self.frames[number].to >> rank & 1 or self._is_acked(number, rank):
                continue
            if last is None or (last.seq, last.stream) != (self.seq, kick.stream):
                continue
            if (last.serial - kick.serial) & 0x80000000:
                out += self._send_frame(kick, number, 1 << rank, now)
                self.count("gaps")
        return out

    def _send_new(self, kick: Packet, now: int) -> list[Packet]:
        """Send new frames, as far as the window allows."""
        out, flow = [], self.flows[self.flow_here]
        homes = self.config.homes(self.flow_here)
        for _ in range(BATCH):
            number = flow.next_number
            if number >= self.ready or seq_of(self.met) != self.seq:
                break
            to = self.frames[number].to & homes
            if flow.in_flight and flow.in_flight + to.bit_count() > self.window:
                break
            flow.next += 1
            flow.in_flight += to.bit_count()
            out += self._send_frame(kick, number, to, now)
        return out

    def _send_frame(self, kick: Packet, number: int, to: int, now: int) -> list[Packet]:
        """Send frame `number` to the ranks in `to`, a copy each."""
        frame, key = self.frames[number], (self.flow_here, number)
        last, length, attempt = self.sent.get(key), 8 * len(frame.body), 0
        again = last is not None and last.seq == self.seq
        if last is not None and again:
            attempt = last.attempt + 1 & 0xFF
        ask = to if again else frame.ask
        body = frame.body + (0,) * (LEAST_WORDS - len(frame.body))
        head = self._head(kick, PinchKind.EMBED, self.seq, attempt).having(
            number=number, serial=self._next_serial()
        )
        self.sent[key] = Sent(self.seq, head.serial, now, self.cpu & 0xFF, attempt)
        self.count("sent", to.bit_count())
        self.count("sent_bytes", to.bit_count() * max(FRAME_BYTES + length, _LEAST_BYTES))
        if again:
            self.count("resent", to.bit_count())
        return self._copies(head._replace(body=body), to, ask, length)

    def _ask_for(self, kick: Packet, number: int, last: Sent, to: int) -> list[Packet]:
        """Ask the ranks in `to` whether frame `number` has arrived."""
        attempt = last.attempt + 1 & 0xFF
        self.sent[self.flow_here, number] = last._replace(attempt=attempt)
        head = self._head(kick, PinchKind.ASK, self.seq, attempt).having(
            number=number, serial=self._next_serial()
        )
        self.count("asks", to.bit_count())
        return self._copies(head._replace(body=head.body[:LEAST_WORDS]), to, 0, 0)

    def _copies(self, head: Packet, to: int, ask: int, length: int) -> list[Packet]:
        flags = {
            rank: ASK if ask >> rank & 1 else 0
            for rank in range(self.config.ranks)
            if to >> rank & 1
        }
        return [
            self._address(head._replace(flags=flag), rank, length) for rank, flag in flags.items()
        ]
