"""What both programs of an exchange need: headers, bitmaps, handshakes.

Reference model of ``pinch_work.h`` and ``pinch_handshake.h``.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from testbed.protocol.pinch.memory import Memory
from testbed.protocol.pinch.packet import (
    ACK_WORDS,
    ASK,
    ENDED,
    LATE,
    U32,
    Packet,
    bits_of,
    exponent_in,
    frames_in,
    word_in,
)
from testbed.protocol.sequence import is_before, seq_of, word_of
from testbed.protocol.wire import VERSION, PinchKind

__all__ = ["DROP", "Claim", "Next", "Out", "Status", "Work"]


class Next(Enum):
    """Where a frame goes."""

    DROP = auto()
    LINK = auto()
    """To the rank to which it is addressed."""
    DOORBELL = auto()
    """To the doorbell's near end, from where it reaches the far end."""
    BOTH = auto()
    """To the link and the doorbell, a copy each."""
    FAN = auto()
    """To the doorbell, a copy for each flow."""
    CPU = auto()
    """To another CPU."""
    SEND = auto()
    """To the program that sends."""


class Claim(Enum):
    """What became of an attempt to set bits in a bitmap."""

    CLAIMED = auto()
    TAKEN = auto()
    STALE = auto()


class Status(NamedTuple):
    """``struct pinch_status``: the part of a handshake that is the same for all ranks."""

    seq: int
    waits: int = 0
    attempt: int = 0
    ask: bool = False


Out = tuple[Next, Packet | None]
DROP: Out = Next.DROP, None


class Work(Memory):
    """The part of a rank's programs that both directions need."""

    def is_for_me(self, packet: Packet) -> bool:
        """Does the frame belong to this exchange, is it for this rank, and is it from another
        rank's address (``pinch_is_for_me``)?
        """
        me, sender = self.config.rank, packet.sender
        if self._is_foreign(packet):
            return False
        if packet.receiver != me or packet.destination != me:
            return self._refuse("bad_receiver")
        return (
            sender < self.config.ranks and sender != me and packet.source == sender
        ) or self._refuse("bad_rank")

    def _is_foreign(self, packet: Packet) -> bool:
        config = self.config
        if (packet.cookie, packet.version, packet.group) == (config.cookie, VERSION, config.group):
            return False
        self.count("bad_cookie")
        return True

    def _elsewhere(self) -> bool:
        """Does another CPU add for this rank?"""
        return not self.config.anywhere and self.config.home[self.config.rank] != self.cpu

    def _add_bits(self, bitmap: list[int], index: int, seq: int, bits: int) -> tuple[Claim, int]:
        """Add bits to a bitmap's word, unless it carries a later sequence number (``bitmap_add``);
        return those that were new.
        """
        word = bitmap[index]
        if is_before(seq, seq_of(word)):
            return Claim.STALE, 0
        fresh = bits & ~bits_of(word, seq)
        if not fresh:
            return Claim.TAKEN, 0
        bitmap[index] = word_of(seq, bits_of(word, seq) | bits)
        return Claim.CLAIMED, fresh

    def _is_acked(self, number: int, rank: int) -> bool:
        word = self.acks[rank * self.config.acked_words + number // 32]
        return bool(bits_of(word, self.seq) >> number % 32 & 1)

    # Handshakes.

    def meet(self) -> bool:
        """Have all partners entered, and does the scale of the payloads fit? Then frames may be
        sent. If the scale does not fit, wake the process.
        """
        if seq_of(self.met) == self.seq:
            return True
        words = [
            word_in(peer.theirs, self.seq)
            for rank, peer in enumerate(self.peers)
            if self.partners >> rank & 1
        ]
        if not all(words):
            return False
        if not self.lowest <= max(map(exponent_in, words)) <= self.highest:
            self.unfit = self.seq
            self.events.append(self.seq)
            return False
        self.met = word_of(self.seq, sum(map(frames_in, words)))
        self._check_complete(self.seq)
        return True

    def is_behind(self, rank: int) -> bool:
        """Does this rank still lack a handshake or frames of another, in this sequence number?"""
        word = word_in(self.peers[rank].theirs, self.seq)
        return not word or self.peers[rank].received < frames_in(word)

    def waits(self) -> int:
        """The ranks from which this one lacks something, a bit each."""
        found = 0
        for rank, peer in enumerate(self.peers):
            ours = word_in(peer.ours, self.seq)
            if rank == self.config.rank or not ours or not self.partners >> rank & 1:
                continue
            if self.is_behind(rank) or peer.acked < frames_in(ours):
                found |= 1 << rank
        return found

    @property
    def has_ended(self) -> bool:
        """Whether exchanges have ended."""
        return bool(self.nonfinite or self.gone or self.late)

    def is_complete(self, seq: int) -> bool:
        """Whether everything has arrived, is added, and is acknowledged."""
        come = seq_of(self.met) == seq and self.received == self.met & U32 and not self.owed
        return come and self.acked == self.copies

    def _check_complete(self, seq: int) -> None:
        """Wake the process once everything is complete. The last of these events calls this."""
        if self.is_complete(seq):
            self.events.append(seq)

    # Headers.

    def _handshake(self, packet: Packet, to: int, word: int, say: Status) -> Packet:
        """Turn the frame into a handshake to a rank."""
        seq, ended = seq_of(word), self.has_ended
        word = word_of(seq, ENDED) if ended else word
        head = self._head(packet, PinchKind.HANDSHAKE, seq, say.attempt)
        late = self.late if ended and not self.gone else 0
        if not ended:
            head = head.having(waits=say.waits, entered=say.seq)
        elif late:
            head = head.having(nonfinite=self.nonfinite, late=late)
        else:
            head = head.having(nonfinite=self.nonfinite, gone=self.gone)
        flags = ASK * say.ask | LATE * bool(late)
        head = head._replace(flags=flags, body=(word, *packet.body[1:]))
        self.count("handshakes")
        return self._address(head, to, 8)

    def _next_serial(self) -> int:
        """The number of the next frame of this CPU's stream."""
        self.count("serial")
        self.serials[self.cpu] = self.serials.get(self.cpu, 0) + 1 & U32
        return self.serials[self.cpu]

    def _head(self, packet: Packet, kind: int, seq: int, attempt: int) -> Packet:
        """Write the header of a frame of this rank, except for its number or what else is there,
        receiver, flags, checksum and length (``pinch_write_head``).
        """
        config = self.config
        return packet._replace(
            kind=kind,
            version=VERSION,
            group=config.group,
            cookie=config.cookie,
            seq=seq,
            attempt=attempt,
            hop=0,
            sender=config.rank,
            round=0,
            tag=config.tag,
            stream=self.cpu & 0xFF,
        )

    def _address(self, packet: Packet, to: int, length: int = 8 * ACK_WORDS) -> Packet:
        """Address a frame of this rank to another, and seal it."""
        return packet._replace(
            source=self.config.rank, destination=to, receiver=to, length=length
        ).sealed()

    def _own(self, packet: Packet, kind: int) -> Packet:
        """Turn the frame into one for this host's doorbell."""
        own = packet._replace(kind=kind, receiver=self.config.rank)
        return own._replace(checksum=own.seal)

    def _drop(self, reason: str) -> Out:
        self.count(reason)
        return DROP

    def _refuse(self, reason: str) -> bool:
        self.count(reason)
        return False
