"""The process that works with the programs of `testbed.protocol.pinch.rank`: it opens exchanges,
sends handshakes and frames, and waits.

Reference model of ``testbed/native/pinch.c`` and ``testbed/exchange/pinch/port.py``;
`testbed.protocol.pinch.policy` decides what to do while nothing arrives.
"""

from __future__ import annotations

from collections.abc import Sequence

from testbed.protocol.pinch.memory import Frame
from testbed.protocol.pinch.packet import (
    ACK_BEHIND,
    EXPONENT_BITS,
    LEAST_WORDS,
    SQ_ENTRIES,
    UNKNOWN,
    WR_ASK,
    Packet,
    bits_of,
    exponent_in,
    word_in,
)
from testbed.protocol.pinch.policy import Actions, Seen
from testbed.protocol.pinch.rank import Rank
from testbed.protocol.sequence import must_forget, seq_of, word_of
from testbed.protocol.wire import PinchKind

__all__ = ["Process"]


class Process:
    """One rank's process.

    Methods that kick return the kicks as packets, for `Rank.on_doorbell`.

    :param every: Every so many frames for a rank, one asks for an acknowledgement.
    """

    def __init__(self, rank: Rank, every: int = 8) -> None:
        self.memory, self.every = rank, every
        self.frames_to = [0] * rank.config.ranks

    def address(self, frames: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        """Set the ranks of each frame, and which frames ask for acknowledgements
        (``Sending.address``), from the next `enter` on.

        :param frames: For each frame, its ranks, a bit each, and its payload.
        """
        memory, config = self.memory, self.memory.config
        ask = [0] * len(frames)
        memory.acks = [word_of(memory.seq, 0)] * len(memory.acks)
        memory.wanted = [0] * len(memory.wanted)
        for rank in range(config.ranks):
            mine = [number for number, (to, _) in enumerate(frames) if to >> rank & 1]
            self.frames_to[rank] = len(mine)
            for place, number in enumerate(mine, 1):
                memory.wanted[rank * config.acked_words + number // 32] |= 1 << number % 32
                last = place == len(mine)
                jump = not last and mine[place] // 32 - number // 32 > max(
                    ACK_BEHIND // self.every, 1
                )
                ask[number] |= (place % self.every == 0 or last or jump) << rank
        memory.frames = tuple(
            Frame(to, asked, body) for (to, body), asked in zip(frames, ask, strict=True)
        )
        for flow in config.fan:
            homes = config.homes(flow)
            memory.flows[flow].schedule = tuple(
                number for number, (to, _) in enumerate(frames) if to & homes
            )

    def open(self, seq: int) -> None:
        """Accept frames of a sequence number from now on. There is nothing to send yet."""
        memory, before = self.memory, self.memory.seq
        if must_forget(before, seq):
            self.forget(before, seq)
        memory.copies, memory.unfit = UNKNOWN, 0
        memory.taken = memory.handed
        memory.acked = memory.received = memory.owed = memory.queued = memory.served = 0
        for peer in memory.peers:
            peer.received = peer.acked = 0
        memory.seq, memory.ready = seq, 0
        for flow in memory.flows:
            flow.next = flow.in_flight = 0

    def forget(self, before: int, seq: int) -> None:
        """Reset all state that carries neither of two sequence numbers."""
        memory, kept = self.memory, (before, seq)
        for bitmap in (memory.seen, memory.acks):
            bitmap[:] = [word if seq_of(word) in kept else word_of(before, 0) for word in bitmap]
        memory.hub_queue = {
            place: word for place, word in memory.hub_queue.items() if seq_of(word) in kept
        }
        memory.sent = {key: sent for key, sent in memory.sent.items() if sent.seq == before}
        for peer in memory.peers:
            for pair in (peer.ours, peer.theirs):
                pair[:] = [word if seq_of(word) in kept else 0 for word in pair]

    def enter(self, exponent: int, lowest: int, highest: int) -> Packet:
        """Enter the exchange.

        :param exponent: Exponent of the rank's largest value, as handshakes encode it.
        :param lowest: With `highest`, the bounds within which the largest exponent of all ranks
            must lie for the payloads to be sent.
        :returns: The kick that makes the programs send handshakes.
        """
        memory = self.memory
        memory.lowest, memory.highest = lowest, highest
        parity, word = memory.seq & 1, word_of(memory.seq, exponent)
        for peer, frames in zip(memory.peers, self.frames_to, strict=True):
            peer.ours[parity] = word | frames << EXPONENT_BITS
        memory.peers[memory.config.rank].theirs[parity] = word
        return self.handshake_kick()

    def send(self, count: int | None = None) -> list[Packet]:
        """Allow frames to be sent.

        :param count: Only the first so many; `publish` allows the others.
        :returns: See `publish`.
        """
        memory = self.memory
        memory.copies = sum(frame.copies for frame in memory.frames)
        return self.publish(len(memory.frames) if count is None else count)

    def publish(self, count: int) -> list[Packet]:
        """Allow the first `count` frames to be sent, those before included.

        :returns: A kick for each flow that waits for these frames, because it has sent all others;
            none if a handshake is still missing, because the last one becomes a kick itself.
        """
        memory, before = self.memory, self.memory.ready
        memory.ready = count
        if seq_of(memory.met) != memory.seq:
            return []
        return [
            self._own(PinchKind.DOORBELL, flow=flow)
            for flow in memory.config.fan
            if before <= memory.flows[flow].next_number < count
        ]

    @property
    def is_done(self) -> bool:
        """Whether everything has arrived, is added, and is acknowledged."""
        return self.memory.is_complete(self.memory.seq)

    @property
    def is_unfit(self) -> bool:
        """Whether all ranks have entered, and the scale of the payloads does not fit."""
        memory = self.memory
        return memory.unfit == memory.seq != seq_of(memory.met)

    @property
    def highest(self) -> int:
        """The largest exponent of any rank that has entered, as handshakes encode it."""
        words = [word_in(peer.theirs, self.memory.seq) for peer in self.memory.peers]
        return max(exponent_in(word) for word in words)

    def end(self, nonfinite: int = 0, gone: int = 0, late: int = 0) -> Packet:
        """Announce that exchanges have ended.

        :param nonfinite: Ranks with values that are not finite, a bit each.
        :param gone: Ranks that went silent.
        :param late: Ranks that are up but did not enter in time.
        :returns: The kick that makes the programs send handshakes.
        """
        self.memory.nonfinite |= nonfinite
        self.memory.gone |= gone
        self.memory.late |= late
        return self.handshake_kick()

    def linger(self) -> Packet:
        """Enter the exchange that all ranks enter when they are done. Until they have entered it,
        they may lack something from this rank.

        :returns: The kick that makes the programs send handshakes.
        """
        self.memory.partners = (1 << self.memory.config.ranks) - 1
        return self.enter(0, 1, 0)  # nothing is exchanged in it

    @property
    def may_go(self) -> bool:
        """Whether no rank needs this lingering rank any longer."""
        memory, everybody = self.memory, (1 << self.memory.config.ranks) - 1
        if memory.has_ended:
            return memory.end_acked | 1 << memory.config.rank == everybody
        return self.is_unfit

    def seen(self) -> Seen:
        """The state on which `Policy` bases its decisions."""
        memory, config = self.memory, self.memory.config
        peers = memory.peers
        return Seen(
            config.rank,
            memory.seq,
            [
                rank
                for rank in range(config.ranks)
                if memory.partners >> rank & 1 and rank != config.rank
            ],
            [word_in(peer.theirs, memory.seq) for peer in peers],
            [peer.received for peer in peers],
            [peer.acked for peer in peers],
            [peer.heard for peer in peers],
            [peer.news for peer in peers],
            [peer.answers for peer in peers],
            [peer.at for peer in peers],
            [peer.waits for peer in peers],
            self.lacking,
            seq_of(memory.met) == memory.seq,
            memory.owed,
        )

    def lacking(self, rank: int) -> list[int]:
        """Frames that were sent to a rank and have not been acknowledged."""
        memory, config = self.memory, self.memory.config
        flow, found = memory.flows[config.flow_to(rank)], []
        for number in flow.schedule[: flow.next]:
            index = rank * config.acked_words + number // 32
            if memory.wanted[index] & ~bits_of(memory.acks[index], memory.seq) & 1 << number % 32:
                found.append(number)
        return found

    def act(self, actions: Actions) -> list[Packet]:
        """Carry out the policy's decisions.

        :returns: Kicks.
        """
        kicked = (
            [self.handshake_kick((actions.handshake - 1) % 255 + 1)] if actions.handshake else []
        )
        for ask, numbers in ((WR_ASK, actions.asks), (0, actions.resends)):
            for rank, of_rank in numbers.items():
                self.post(rank, [number | ask for number in of_rank])
        if actions.work:
            kicked.append(self._own(PinchKind.WORK))
        return kicked + self.kicks()

    def post(self, rank: int, numbers: Sequence[int]) -> None:
        """Post work requests to retransmit frames to a rank, or to ask about them; a kick carries
        them out.
        """
        flow = self.memory.flows[self.memory.config.flow_to(rank)]
        entries = [word_of(self.memory.seq, number) for number in numbers]
        flow.sq = (*flow.sq, *entries)[:SQ_ENTRIES]

    def kicks(self) -> list[Packet]:
        """A kick for each flow."""
        return [self._own(PinchKind.DOORBELL, flow=flow) for flow in self.memory.config.fan]

    def handshake_kick(self, attempt: int = 0) -> Packet:
        """The kick that makes the programs send handshakes."""
        return self._own(PinchKind.SEND_HANDSHAKES, attempt=attempt)

    def _own(self, kind: PinchKind, flow: int = 0, attempt: int = 0) -> Packet:
        config = self.memory.config
        head = Packet(config.rank, config.rank, kind, config.group, config.cookie)
        own = head.having(
            sender=config.rank, receiver=config.rank, flow=flow, attempt=attempt
        )._replace(body=(0,) * LEAST_WORDS)
        return own._replace(checksum=own.seal)
