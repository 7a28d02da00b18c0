"""The programs of an exchange, as a state machine without I/O or clocks.

Reference model of ``bpf/aggregate.bpf.c`` and ``bpf/broadcast.bpf.c``, which the tests compare with
it frame by frame: `Rank.on_link` is the program on the link, `Rank.on_doorbell` the one at the
doorbell's far end, and `Rank.on_send` the one behind it that sends. What C does against races with
other CPUs has no counterpart here, because calls come one at a time. But a frame of embeddings is
handled in two halves, `Rank.verify` and `Rank.claim`. Another CPU, or the process, may do anything
between them, so each half must be correct by itself. The rank's process is in
`testbed.protocol.pinch.process`.
"""

from __future__ import annotations

from testbed.protocol.pinch.memory import Peer, Sent
from testbed.protocol.pinch.packet import (
    ACK_WORDS,
    ASK,
    ENDED,
    FIRST,
    KICK_ALL,
    LATE,
    NO_STREAM,
    U32,
    Packet,
    ack_first,
    bits_of,
    exponent_in,
    frames_in,
    word_in,
)
from testbed.protocol.pinch.sending import Sender
from testbed.protocol.pinch.work import DROP, Claim, Next, Out, Status
from testbed.protocol.sequence import is_before, seq_after, seq_of, word_of
from testbed.protocol.wire import PinchKind

__all__ = ["Next", "Rank"]

_HUB_TRIES = 4


class Rank(Sender):
    """The programs of one rank, and the memory that they work on."""

    # The link.

    def on_link(self, packet: Packet, now_us: int = 0) -> Out:
        """A frame has arrived on the link (``pinch_link``).

        :param now_us: Microseconds of any monotonic clock.
        :returns: Where the frame goes, and what it has become.
        """
        if packet.kind in (PinchKind.EMBED, PinchKind.ASK) and self._elsewhere():
            if not self.is_for_me(packet):
                return DROP
            self.handed = self.handed + 1 & U32
            self.count("remote")
            return Next.CPU, packet
        return self._receive(packet, now_us)

    def on_remote(self, packet: Packet, now_us: int = 0) -> Out:
        """A frame that was handed over has arrived on the right CPU (``pinch_remote``)."""
        self.taken = self.taken + 1 & U32
        return self._receive(packet, now_us, by_link=False)

    def _receive(self, packet: Packet, now_us: int, by_link: bool = True) -> Out:
        if not self.is_for_me(packet):
            return DROP
        if packet.kind == PinchKind.EMBED:
            return (
                self.claim(packet, self.is_late(packet.seq), by_link)
                if self.verify(packet)
                else DROP
            )
        if packet.kind == PinchKind.ASK:
            return self._acknowledge(packet, by_link) if self._on_ask(packet) else DROP
        if packet.kind == PinchKind.ACK:
            return (
                (Next.DOORBELL, self._own(packet, PinchKind.DOORBELL))
                if self._on_ack(packet, now_us)
                else DROP
            )
        if packet.kind == PinchKind.HANDSHAKE:
            return self._on_handshake(packet)
        return self._drop("bad_kind")

    # Frames of embeddings.

    def _is_expected(self, packet: Packet) -> bool:
        """Are number, sequence number and tag possible for a frame of this sender?"""
        if packet.number >= self.config.sources[packet.sender].frames:
            return self._refuse("bad_chunk")
        if packet.seq != self.seq and not self.is_late(packet.seq):
            return self._refuse("bad_seq")
        return packet.tag == self.config.tag or self._refuse("bad_tensor")

    def is_late(self, seq: int) -> bool:
        """Does a sequence number directly precede this rank's?"""
        return seq > 0 and seq_after(seq) == self.seq

    def verify(self, packet: Packet) -> bool:
        """Is a frame of embeddings intact, and does it belong to this exchange?"""
        config, length = self.config, packet.length
        if not self._is_expected(packet):
            return False
        if length < 8 or length > config.payload or length % 8 or len(packet.body) < length // 8:
            return self._refuse("bad_length")
        if packet.checksum != packet.good_checksum:
            return self._refuse("bad_checksum")
        rows = length // (8 * config.words + 4)
        return (
            0 < rows <= config.rows and 8 * ((rows + 1) // 2 + rows * config.words) == length
        ) or self._refuse("bad_length")

    def claim(self, packet: Packet, late: bool, by_link: bool = True) -> Out:
        """Add a verified frame, unless it has been added.

        :param late: The frame belonged to the previous exchange when it was verified.
        :param by_link: The frame arrived on the CPU that aggregates.
        """
        peer, seq, number = self.peers[packet.sender], packet.seq, packet.number
        peer.heard += 1
        # This rank has completed the previous exchange, so it has all of its frames. Acknowledge
        # again, because the sender has missed acknowledgements.
        if late:
            return self._acknowledge(packet, by_link)
        claim, _ = self._add_bits(
            self.seen, self.config.sources[packet.sender].seen + number // 32, seq, 1 << number % 32
        )
        if claim is Claim.TAKEN:
            self.count("duplicate")
            return self._acknowledge(packet, by_link)
        if claim is Claim.STALE:
            return self._drop("bad_seq")
        hubs = self._add_rows(packet)
        peer.received += 1
        peer.news += 1
        self.received += 1
        self._check_complete(seq)
        # Always acknowledge the last frame expected from this sender, even if it was reordered.
        if packet.flags & ASK or peer.received == frames_in(word_in(peer.theirs, seq)):
            _, answer = self._acknowledge(packet, by_link)
            return Next.BOTH if hubs else Next.LINK, answer
        return (Next.DOORBELL, self._own(packet, PinchKind.WORK)) if hubs else DROP

    def _add_rows(self, packet: Packet) -> int:
        """Add a frame's rows; return how many were queued as hubs."""
        rows = packet.length // (8 * self.config.words + 4)
        hubs = unused = edges = 0
        for row in self.sink.take(packet.sender, packet.body[: packet.length // 8], rows):
            if self.config.lands:
                continue
            if row.bad:
                self.count("bad_chunk")
            elif row.hub is not None:
                self.hubs[row.slot] = row.hub
                self.owed += self._slices(row.hub.neighbours)
                self.hub_queue[self.queued] = word_of(self.seq, row.slot)
                self.queued += 1
                hubs += 1
            else:
                unused += not row.edges
                edges += row.edges
        self.count("received")
        self.count("vertices", rows - unused)
        self.count("unused", unused)
        self.count("edges", edges)
        return hubs

    def _slices(self, neighbours: int) -> int:
        return -(-neighbours // self.config.slice)

    # Acknowledgements.

    def _acknowledge(self, packet: Packet, by_link: bool) -> Out:
        """Make the frame an acknowledgement to its sender."""
        stream = NO_STREAM if self._may_overtake(by_link) else packet.stream
        source, first = self.config.sources[packet.sender], ack_first(packet.number)
        words = [U32] * ACK_WORDS
        if packet.seq == self.seq:
            end = -(-source.frames // 32)
            have = [
                self.seen[source.seen + first + i] if first + i < end else 0
                for i in range(ACK_WORDS)
            ]
            words = [bits_of(word, packet.seq) for word in have]
        answer = packet._replace(
            kind=PinchKind.ACK, sender=self.config.rank, flags=0, stream=stream, body=tuple(words)
        )
        self.count("acks")
        return Next.LINK, self._address(answer, packet.sender)

    def _may_overtake(self, by_link: bool) -> bool:
        """May a frame have overtaken others of its stream, which arrived on another CPU and are
        being handed over?
        """
        return by_link and 0 < (self.handed - self.taken & U32) < 1 << 31

    def _on_ask(self, packet: Packet) -> bool:
        """A rank asks whether a frame has arrived."""
        if not self._is_expected(packet):
            return False
        if packet.length:
            return self._refuse("bad_length")
        if packet.checksum != packet.seal:
            return self._refuse("bad_checksum")
        self.peers[packet.sender].heard += 1
        return True

    def _is_ack(self, packet: Packet) -> bool:
        if packet.seq != self.seq:
            return self._refuse("bad_seq")
        if packet.number >= self.ready:
            return self._refuse("bad_chunk")
        if len(packet.body) < ACK_WORDS or packet.length != 8 * ACK_WORDS:
            return self._refuse("bad_length")
        return packet.checksum == packet.good_checksum or self._refuse("bad_checksum")

    def _on_ack(self, packet: Packet, now: int) -> bool:
        """Record what a peer has received. Is there anything to send now?"""
        if not self._is_ack(packet):
            return False
        rank, number, seq = packet.sender, packet.number, packet.seq
        peer, to = self.peers[rank], self.config.flow_to(rank)
        flow, first, news, holes = self.flows[to], ack_first(number), 0, 0
        for word in range(first, min(first + ACK_WORDS, self.config.acked_words)):
            index, bits = rank * self.config.acked_words + word, packet.body[word - first] & U32
            _, fresh = self._add_bits(self.acks, index, seq, self.wanted[index] & bits)
            news += fresh.bit_count()
            holes |= self.wanted[index] & ~bits & self._up_to(number, word)
        peer.heard += 1
        peer.answers += 1
        if news:
            peer.news += 1
            peer.acked += news
            flow.in_flight -= news
            self.acked += news
            self._check_complete(seq)
            self._measure(packet, self.sent.get((to, number)), now)
        return bool(holes) or flow.next_number < self.ready

    @staticmethod
    def _up_to(number: int, word: int) -> int:
        """The bits of a bitmap's word for frames up to `number`."""
        return U32 if word < number // 32 else 0 if word > number // 32 else U32 >> 31 - number % 32

    def _measure(self, packet: Packet, sent: Sent | None, now: int) -> None:
        """Sample the round trip, if the acknowledgement answers the frame's latest transmission."""
        if sent is None or (sent.seq, sent.stream, sent.serial) != (
            packet.seq,
            packet.stream,
            packet.serial,
        ):
            return
        rtt = now - sent.sent_us & U32
        if rtt >> 30:
            return
        self.rtt_samples += 1
        self.rtt_sum_us += rtt
        self.rtt_max_us = max(self.rtt_max_us, rtt)

    # Handshakes.

    def _is_handshake(self, packet: Packet) -> bool:
        if packet.tag != self.config.tag:
            return self._refuse("bad_tensor")
        if not packet.body or packet.length != 8:
            return self._refuse("bad_length")
        good = packet.seq == seq_of(packet.body[0]) and packet.checksum == packet.good_checksum
        return good or self._refuse("bad_checksum")

    def _on_handshake(self, packet: Packet) -> Out:
        if not self._is_handshake(packet):
            return DROP
        peer, seq, ask = self.peers[packet.sender], packet.seq, bool(packet.flags & ASK)
        peer.heard += 1
        if exponent_in(packet.body[0]) == ENDED:
            late = packet.flags & LATE
            self._note_end(
                packet.sender,
                packet.nonfinite,
                0 if late else packet.gone,
                packet.late if late else 0,
            )
        else:
            peer.at, peer.waits = packet.entered, packet.waits
            if self._take_word(peer, packet.body[0]):
                kick = packet._replace(sender=self.config.rank, flags=KICK_ALL)
                return Next.FAN, self._own(kick, PinchKind.DOORBELL)
            mine = self.seq
            near = mine in (seq, seq_after(seq)) or seq == seq_after(mine)
            if not near and (seq != FIRST or not ask) and not self.has_ended:
                return self._drop("bad_seq")
        if not ask:
            return DROP
        answer = word_of(seq, 0) if self.has_ended else self._answer(peer, seq)
        if not answer:
            return DROP
        entered = seq_of(word_in(peer.ours, self.seq) or peer.ours[~self.seq & 1])
        say = Status(entered, self.waits(), packet.attempt)
        return Next.LINK, self._handshake(packet, packet.sender, answer, say)

    def _note_end(self, sender: int, nonfinite: int, gone: int, late: int) -> None:
        """The sender's exchanges have ended, and so have this rank's: record why, and wake the
        process.
        """
        self.end_acked |= 1 << sender
        if nonfinite & ~self.nonfinite or gone & ~self.gone or late & ~self.late:
            self.nonfinite |= nonfinite
            self.gone |= gone
            self.late |= late
            self.events.append(0)

    def _take_word(self, peer: Peer, word: int) -> bool:
        """Record a rank's word. May this rank send now?"""
        seq = seq_of(word)
        if seq not in (self.seq, seq_after(self.seq)):
            return False
        before = peer.theirs[seq & 1]
        if before and (seq == seq_of(before) or is_before(seq, seq_of(before))):
            self.count("duplicate")
            return False
        peer.theirs[seq & 1] = word
        peer.news += 1
        return seq == self.seq and self.meet()

    def _answer(self, peer: Peer, seq: int) -> int:
        """The word for a rank that lacks this rank's handshake: the word of the sequence number
        asked for, or, if this rank has not entered that yet, its latest word.
        """
        word = word_in(peer.ours, seq)
        # A rank may be any number of exchanges ahead of another that is not its partner.
        if seq == FIRST < self.seq and not word:
            return word_of(FIRST, 0)
        return word or peer.ours[~seq & 1]

    # The doorbell.

    def on_doorbell(self, packet: Packet) -> Out:
        """A frame of this host has arrived at the doorbell's far end (``pinch_doorbell``)."""
        if self._is_foreign(packet):
            return DROP
        if packet.kind == PinchKind.SEND_HANDSHAKES:
            return Next.SEND, packet
        if packet.kind != PinchKind.DOORBELL:
            if self._elsewhere():
                self.count("remote")
                return Next.CPU, packet
            return (Next.DOORBELL, packet) if self.add_slice() else DROP
        mine = packet.sender == self.config.rank
        if mine and packet.flags & KICK_ALL:
            place = self.fanned.get(self.cpu, 0)
            self.fanned[self.cpu] = place + 1
            self.count("fanned")
            flow = self.config.fan[place % len(self.config.fan)]
            packet = self._own(packet.having(flow=flow), PinchKind.DOORBELL)
        # Grow the buffer to a full frame here, so that the program that sends does not have to.
        packet = packet._replace(
            body=packet.body + (0,) * (self.config.payload // 8 - len(packet.body))
        )
        # A kick that was not an acknowledgement names the CPU that has to send.
        if mine and not self.config.anywhere and packet.flow != self.cpu:
            return Next.CPU, packet
        return Next.SEND, packet

    def add_slice(self) -> bool:
        """Add one slice of the first hub in the queue. Is there more to do?"""
        for _ in range(_HUB_TRIES):
            if self.served == self.queued:
                return False
            entry = self.hub_queue.get(self.served, 0)
            if seq_of(entry) != self.seq:
                return False
            slot = entry & U32
            hub = self.hubs[slot]
            self.hubs[slot] = hub._replace(next=hub.next + 1)
            if hub.next < self._slices(hub.neighbours):
                self.count("slices")
                self.count("edges", self.sink.add_slice(hub, hub.next))
                self.owed -= 1
                if not self.owed:
                    self._check_complete(self.seq)
                return True
            self.served += 1
        return True
