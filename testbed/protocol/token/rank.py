"""The program of an exchange by tokens, as a state machine without I/O or clocks.

Reference model of ``bpf/tokens.bpf.c``, which the tests compare with it frame by frame. What C does
against races with other CPUs has no counterpart here, because calls come one at a time; but data
lands in two halves, `Rank.claim` and `Rank.land`, between which another CPU or the process may do
anything. The process is in `testbed.protocol.token.process`.
"""

from __future__ import annotations

from testbed.kernel.abi import constant
from testbed.protocol.pinch.packet import U64, Packet
from testbed.protocol.sequence import is_before, seq_after, seq_of, word_of
from testbed.protocol.token.memory import FLAGS, Memory
from testbed.protocol.wire import VERSION, PinchKind

__all__ = ["CLAIMED", "FREE", "LANDED", "Rank", "sealed"]

FREE, CLAIMED, LANDED = (constant(f"TOKEN_{name}") for name in ("FREE", "CLAIMED", "LANDED"))
_CHECK = 8  # bytes of the check in front of the data


def sealed(packet: Packet) -> Packet:
    """Return a frame with the right checksum: the sum of its header's seal and its data's check."""
    return packet._replace(checksum=packet.seal + packet.body[0] & U64)


class Rank(Memory):
    """The program of one rank, and the memory that it works on."""

    def on_link(self, packet: Packet) -> Packet | None:
        """A frame has arrived on the link (``token_link``); return what is sent back, or None."""
        if not self.is_for_me(packet):
            return None
        if packet.length < _CHECK:
            self.drop("bad_length")
            return None
        if packet.checksum != sealed(packet).checksum:
            self.drop("bad_checksum")
            return None
        peer = self.peers[packet.sender]
        self.peers[packet.sender] = peer._replace(heard=peer.heard + 1)
        match packet.kind:
            case PinchKind.EMBED:
                before = self.claim(packet)
                return None if before is None else self.land(packet, before)
            case PinchKind.ACK:
                return self._on_token(packet)
            case PinchKind.ASK:
                return self._on_ask(packet)
            case PinchKind.HANDSHAKE:
                self._on_status(packet)
                return None
        self.drop("bad_kind")
        return None

    def is_for_me(self, packet: Packet) -> bool:
        """Does the frame belong to this exchange, is it for this rank, and from another rank's
        address?
        """
        config = self.config
        if (packet.cookie, packet.version, packet.group) != (config.cookie, VERSION, config.group):
            return self._refuse("bad_cookie")
        if packet.receiver != config.rank or packet.destination != config.rank:
            return self._refuse("bad_receiver")
        return (
            packet.sender < config.ranks
            and packet.sender != config.rank
            and packet.source == packet.sender
        ) or self._refuse("bad_rank")

    def drop(self, counter: str, by: int = 1) -> None:
        """Count a frame that ends here."""
        self.counters[counter] += by

    def _refuse(self, counter: str) -> bool:
        self.drop(counter)
        return False

    # Data.

    def claim(self, packet: Packet) -> int | None:
        """Claim the slot of a frame of rows; return its word of before, or None. Claims only move
        forward.
        """
        pair = self.config.pairs[packet.sender]
        if packet.tag != self.config.tag & 0xFFFF:
            self.foreign |= 1 << packet.sender
            self.drop("bad_tensor")
            return None
        if packet.number >= packet.frames or packet.frames > pair.frames_in:
            self.drop("bad_chunk")
            return None
        if not self.is_open(packet.seq):
            self.drop("bad_seq")
            return None
        index = self.slot_of(packet)
        word = self.slots[index].claim
        if seq_of(word) == packet.seq and word != word_of(packet.seq, FREE):
            self.drop("duplicate")
            return None
        if word and is_before(packet.seq, seq_of(word)):
            self.drop("bad_seq")
            return None
        self.slots[index] = self.slots[index]._replace(claim=word_of(packet.seq, CLAIMED))
        return word

    def is_open(self, seq: int) -> bool:
        """Are frames of a sequence number accepted?"""
        return seq in (self.open, seq_after(self.open))

    def slot_of(self, packet: Packet) -> int:
        """Return the number of a frame's slot."""
        first = (packet.seq & 1) * self.config.slots
        return first + self.config.pairs[packet.sender].slot + packet.number

    def land(self, packet: Packet, before: int) -> Packet | None:
        """Copy the data of a frame that has been claimed; one that is to return goes back as a
        token.
        """
        index, parity, words = self.slot_of(packet), packet.seq & 1, (packet.length - _CHECK) // 8
        if words > self.config.room or len(packet.body) - 1 < words:
            self.slots[index] = self.slots[index]._replace(claim=before)
            self.drop("bad_length")
            return None
        self.slots[index] = self.slots[index]._replace(
            claim=word_of(packet.seq, LANDED),
            check=packet.body[0],
            flags=packet.flags,
            data=packet.body[1 : 1 + words],
        )
        peer = self.peers[packet.sender]
        landed, frames = list(peer.landed), list(peer.frames)
        landed[parity] += 1
        frames[parity] = packet.frames
        self.peers[packet.sender] = peer._replace(
            landed=(landed[0], landed[1]), frames=(frames[0], frames[1]), news=peer.news + 1
        )
        self.counters["received"] += 1
        if landed[parity] == packet.frames:
            self.complete[parity] += 1
            if self.complete[parity] == len(self.config.partners):
                self.wakes += 1
        if not packet.flags & FLAGS.RETURN:
            return None
        self.counters["returned"] += 1
        body = (0, *packet.body[1:])
        token = packet._replace(kind=PinchKind.ACK, flags=0, body=body)
        return self.send_to(token, packet.sender, _CHECK)

    # Tokens.

    def _on_token(self, packet: Packet) -> Packet | None:
        index = self._out_of(packet)
        if index is None:
            self.drop("bad_chunk")
            return None
        out = self.outs[index]
        if out.seq != packet.seq:
            self.drop("bad_seq")
            return None
        if out.acked == packet.seq:
            self.drop("duplicate")
            return None
        self.outs[index] = out._replace(acked=packet.seq)
        self._give_back(packet, out.token)
        if self.stalled:
            self.stalled = 0
            self.wakes += 1
        return self.refill(packet)

    def _give_back(self, packet: Packet, number: int) -> None:
        """Tokens have come back, up to a partner's `number`-th: earlier ones that have not are
        lost, because frames between two ranks keep their order.
        """
        peer = self.peers[packet.sender]
        known = peer.tokens & 0xFFFFFFFF if seq_of(peer.tokens) == packet.seq else 0
        if known >= number:
            return
        self.peers[packet.sender] = peer._replace(tokens=word_of(packet.seq, number))
        if seq_of(self.returned) == packet.seq:
            self.returned += number - known

    def _out_of(self, packet: Packet) -> int | None:
        """Return the index of this rank's frame to which another's frame refers."""
        pair = self.config.pairs[packet.sender]
        if packet.number >= pair.frames_out:
            return None
        return (packet.seq & 1) * self.config.outs + pair.out + packet.number

    def refill(self, packet: Packet) -> Packet | None:
        """Fill a token, in which any frame must fit, with the next one that is ready."""
        if len(packet.body) - 1 < self.config.room:
            self.drop("bad_length")
            return None
        if seq_of(self.next) != seq_of(self.ready) or self.next >= self.ready:
            self.drop("ends")
            return None
        place, parity = self.next & 0xFFFFFFFF, seq_of(self.next) & 1
        self.next += 1
        return self._fill(packet, parity * self.config.outs + self.orders[parity][place], 0)

    def on_doorbell(self, packet: Packet) -> Packet | None:
        """The process has rung (``token_doorbell``): fill an empty frame with the next one, and
        return it, if the window is not full.
        """
        config = self.config
        if packet.cookie != config.cookie:
            self.drop("bad_cookie")
            return None
        if len(packet.body) - 1 < config.room:
            self.drop("bad_length")
            return None
        if seq_of(self.returned) == seq_of(self.next) and not self.credit:
            self.drop("held")
            return None
        filled = self.refill(packet)
        if filled is None or filled.flags & FLAGS.RETURN:
            return filled
        return filled._replace(body=filled.body[: filled.length // 8])  # only as long as its data

    @property
    def credit(self) -> int:
        """Frames that the window lets pass."""
        in_flight = (self.next & 0xFFFFFFFF) - (self.returned & 0xFFFFFFFF) * self.config.stride
        return max(0, self.config.window - in_flight)

    def _fill(self, packet: Packet, index: int, attempt: int) -> Packet | None:
        out = self.outs[index]
        if len(out.data) > self.config.room or len(packet.body) - 1 < len(out.data):
            self.drop("bad_length")
            return None
        rest = packet.body[1 + len(out.data) :]  # of the buffer, which is longer
        filled = packet._replace(
            version=VERSION,
            kind=PinchKind.EMBED,
            tag=self.config.tag & 0xFFFF,
            seq=out.seq,
            stream=self.cpu,
            flags=out.flags,
            attempt=attempt,
            body=(out.check, *out.data, *rest),
        ).having(number=out.number, frames=out.frames)
        self.counters["sent"] += 1
        return self.send_to(filled, out.receiver, _CHECK + 8 * len(out.data))

    def send_to(self, packet: Packet, to: int, length: int) -> Packet:
        """Address a frame to another rank, and seal it."""
        me = self.config.rank
        addressed = packet._replace(
            source=me, destination=to, sender=me, receiver=to, length=length
        )
        return sealed(addressed)

    # Questions.

    def _on_ask(self, packet: Packet) -> Packet | None:
        index = self._out_of(packet)
        if index is None:
            self.drop("bad_chunk")
            return None
        if self.ended or self.outs[index].seq != packet.seq:
            return self._answer(packet)
        self.counters["resent"] += 1
        return self._fill(packet, index, packet.attempt)

    def _answer(self, packet: Packet) -> Packet:
        """Say which exchange this rank is in, and which ranks it waits for."""
        self.counters["statuses"] += 1
        answer = packet._replace(kind=PinchKind.HANDSHAKE, flags=0, body=(0, *packet.body[1:]))
        answer = answer.having(waits=self.waits, entered=self.entered)
        if self.ended:
            flags = FLAGS.ENDED | (0 if self.gone else FLAGS.LATE)
            answer = answer._replace(flags=flags).having(gone=self.gone or self.late)
        return self.send_to(answer, packet.sender, _CHECK)

    def _on_status(self, packet: Packet) -> None:
        peer = self.peers[packet.sender]
        peer = peer._replace(answers=peer.answers + 1)
        if not packet.flags & FLAGS.ENDED:
            peer = peer._replace(at=packet.entered, waits=packet.waits)
        self.peers[packet.sender] = peer
        if packet.flags & FLAGS.ENDED:
            gone, late = (0, packet.late) if packet.flags & FLAGS.LATE else (packet.gone, 0)
            if gone & ~self.gone or late & ~self.late:
                self.gone |= gone
                self.late |= late
                self.wakes += 1
