"""The process of a rank of an exchange by tokens: reference model of
``testbed/native/tokens.c``.
"""

from __future__ import annotations

from collections.abc import Sequence

from testbed.kernel.abi import constant
from testbed.protocol.pinch.packet import Packet, check_of
from testbed.protocol.sequence import word_of
from testbed.protocol.token.memory import FLAGS, Out, Slot
from testbed.protocol.token.rank import FREE, LANDED, Rank, sealed
from testbed.protocol.wire import PinchKind

__all__ = ["Process"]

EPOCH = constant("TOKEN_EPOCH")


class Process:
    """The process of one rank."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.seq = 0

    def open(self, seq: int) -> None:
        """Leave the exchange that has been taken, and accept frames of the next
        (``tokens_open``).
        """
        rank, parity = self.rank, self.seq & 1
        for partner in rank.config.partners if self.seq else ():
            peer = rank.peers[partner]
            landed, frames = list(peer.landed), list(peer.frames)
            landed[parity] = frames[parity] = 0
            rank.peers[partner] = peer._replace(
                landed=(landed[0], landed[1]), frames=(frames[0], frames[1])
            )
        rank.complete[parity] = 0
        if self.seq and self.seq % EPOCH < 4:  # of both parities
            self._move_on()
        self.seq = rank.open = seq

    def _move_on(self) -> None:
        """Slots and frames that have not been used for long would belong to the future once numbers
        wrap (``move_on``).
        """
        rank, config, landed = self.rank, self.rank.config, word_of(self.seq, LANDED)
        first = (self.seq & 1) * config.slots
        for index in range(first, first + config.slots):
            rank.slots[index] = rank.slots[index]._replace(claim=landed)
        first = (self.seq & 1) * config.outs
        for index in range(first, first + config.outs):
            rank.outs[index] = rank.outs[index]._replace(acked=self.seq)

    def send(self, messages: dict[int, Sequence[tuple[int, ...]]], flags: int = 0) -> list[Packet]:
        """Enter the exchange that is open, and return what the window lets pass
        (``tokens_send``).

        :param messages: By partner, the data of each of its frames.
        """
        rank, config = self.rank, self.rank.config
        first = (self.seq & 1) * config.outs
        rank.entered = self.seq
        frames = sorted(
            (number, config.pairs[partner].out + number)
            for partner, data in messages.items()
            for number in range(len(data))
        )
        rank.orders[self.seq & 1] = order = tuple(frame for _, frame in frames)
        places = {frame: place for place, frame in enumerate(order)}
        tokens = dict.fromkeys(messages, 0)
        for partner, message in messages.items():
            for number, data in enumerate(message):
                frame = config.pairs[partner].out + number
                index, last = first + frame, config.stride - 1
                returns = FLAGS.RETURN if places[frame] % config.stride == last else 0
                tokens[partner] += returns != 0
                rank.outs[index] = Out(
                    check_of(data),
                    self.seq,
                    partner,
                    number,
                    len(message),
                    flags | returns,
                    rank.outs[index].acked,
                    tokens[partner] if returns else 0,
                    tuple(data),
                )
        rank.ready = rank.next = rank.returned = word_of(self.seq, 0)
        rank.ready += len(order)
        return self.push()

    def push(self) -> list[Packet]:
        """Send what the window lets pass (``push``)."""
        rank, config = self.rank, self.rank.config
        blank = Packet(
            config.rank,
            config.rank,
            PinchKind.ACK,
            config.group,
            config.cookie,
            tag=config.tag,
            body=(0,) * (1 + config.room),
            prev=0,
        )
        sent = []
        while rank.credit and self.unsent:
            packet = self.emit(blank)
            assert packet is not None
            sent.append(packet)
        return sent

    def emit(self, blank: Packet) -> Packet | None:
        """Fill an empty frame; without a doorbell, the process does so itself."""
        filled = self.rank.on_doorbell(blank)
        if self.rank.config.stride == 1:
            self.rank.counters["sent"] -= 1
        return filled

    @property
    def unsent(self) -> int:
        """Frames that have not been taken yet."""
        return self.rank.ready - self.rank.next

    def go_on(self) -> list[Packet]:
        """Return what a token that has come back lets pass, or sleep until one does
        (``tokens_wait``); without a doorbell, tokens carry all.
        """
        if self.rank.config.stride == 1 or not self.unsent:
            return []
        self.rank.stalled = not self.rank.credit
        return self.push()

    def forgive(self) -> list[Packet]:
        """Tokens that have not come back by now are lost: go on without them (``forgive``)."""
        rank, stride = self.rank, self.rank.config.stride
        if not self.unsent:
            return []
        rank.returned = word_of(self.seq, -(-(rank.next & 0xFFFFFFFF) // stride))
        return self.push()

    @property
    def is_complete(self) -> bool:
        """Whether everything has landed, and been sent; without a doorbell, tokens go on
        sending.
        """
        landed = self.rank.complete[self.seq & 1] == len(self.rank.config.partners)
        return landed and (self.rank.config.stride == 1 or not self.unsent)

    def take(self) -> dict[int, list[tuple[int, ...]]] | None:
        """Verify all that has landed; return the data of each partner's frames, or None if some is
        damaged: that is as if it had not come.
        """
        rank, parity = self.rank, self.seq & 1
        found: dict[int, list[tuple[int, ...]]] = {}
        intact = True
        for partner in rank.config.partners:
            first = parity * rank.config.slots + rank.config.pairs[partner].slot
            places = range(first, first + rank.peers[partner].frames[parity])
            bad = [each for each in places if not _is_intact(rank.slots[each])]
            if bad:
                intact = False
                rank.complete[parity] -= 1
                peer = rank.peers[partner]
                landed = list(peer.landed)
                landed[parity] -= len(bad)
                rank.peers[partner] = peer._replace(landed=(landed[0], landed[1]))
                for each in bad:
                    free = word_of(self.seq, FREE)
                    rank.slots[each] = rank.slots[each]._replace(claim=free)
            found[partner] = [rank.slots[each].data for each in places]
        return found if intact else None

    def missing(self, partner: int) -> list[int]:
        """Numbers of the frames that have not landed from a partner; where none has, its first."""
        rank, parity = self.rank, self.seq & 1
        pair = rank.config.pairs[partner]
        first, count = parity * rank.config.slots + pair.slot, rank.peers[partner].frames[parity]
        landed = word_of(self.seq, LANDED)
        return [
            number for number in range(count or 1) if rank.slots[first + number].claim != landed
        ]

    def ask(self, partner: int, number: int, attempt: int) -> Packet:
        """Ask a partner for a frame (``tokens_ask``)."""
        body = (0,) * (1 + self.rank.config.room)
        asks = self._frame(PinchKind.ASK, partner, body)._replace(attempt=attempt)
        return sealed(asks.having(number=number))

    def end(self, gone: int, late: int) -> list[Packet]:
        """Give up, and tell all partners (``tokens_end``)."""
        rank = self.rank
        rank.gone |= gone
        rank.late |= late
        rank.ended = 1
        flags = FLAGS.ENDED | (0 if gone else FLAGS.LATE)
        return [
            sealed(
                self._frame(PinchKind.HANDSHAKE, partner, (0,))
                ._replace(flags=flags)
                .having(gone=gone or late)
            )
            for partner in rank.config.partners
        ]

    def _frame(self, kind: PinchKind, partner: int, body: tuple[int, ...]) -> Packet:
        """A frame without data for a partner (``head_of``)."""
        config = self.rank.config
        return Packet(
            config.rank,
            partner,
            kind,
            config.group,
            config.cookie,
            self.seq,
            sender=config.rank,
            receiver=partner,
            length=8,
            tag=config.tag,
            prev=0,
            body=body,
        )


def _is_intact(slot: Slot) -> bool:
    return check_of(slot.data) == slot.check
