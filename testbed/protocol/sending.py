"""What a rank sends, and how it comes to: first laps, second laps, and requests for what has not come.

Twin of ``bpf/include/ring_work.h``, ``ring_gap.h`` and the sending half of ``ring_store.h``.
"""

from __future__ import annotations

from testbed.protocol.memory import ASKS, Memory, Order, OrderEntry, Tensor
from testbed.protocol.wire import DOUBT, FRAME_BYTES, Frame, Kind, seal

__all__ = ["Sender"]

U32 = 0xFFFFFFFF
U64 = 0xFFFFFFFFFFFFFFFF
_FRONT_STEPS = 4


class Sender(Memory):
    """The part of a rank's programs that makes frames."""

    asking = False
    """There are chunks to ask for, and the last call has returned a frame: a copy of it comes back to ask."""

    def _look_back(self, index: int, now: int) -> None:
        """A result has been stored: see to the ones of the same owner that should have come before (``ring_gap.h``)."""
        gap, ranks = self.config.gap, self.config.ranks
        if not gap:
            return
        slot, owner = divmod(index, ranks)
        front = self.fronts[owner]
        if front.generation != self.generation:
            front.generation, front.slot = self.generation, 0
        for _ in range(_FRONT_STEPS):
            following = owner + ranks * front.slot
            if following >= self.config.chunks or self.chunks[following].done != self.generation:
                break
            front.slot += 1
        if front.slot + gap <= slot:
            self._ask(index - ranks * gap, now)
            self._ask(owner + ranks * front.slot, now)
        self.asking = len(self.asks) > self.carried
        self.carried += self.asking

    def _ask(self, index: int, now: int) -> None:
        """Note that a chunk is to be asked for, unless it is there, or has been asked for or sent a moment ago."""
        chunk, own = self.chunks[index], index % self.config.ranks == self.config.rank
        if chunk.done == self.generation or self._too_soon(index, now):
            return
        if len(self.asks) >= ASKS:
            self.carried = 0  # frames that were to take some have got lost
            return
        chunk.sent_us = now
        kind = Order.LAUNCH if own else Order.REQUEST
        self.asks.append(OrderEntry(kind, self.generation, index, chunk.attempt + 1))
        self._count("gaps")

    def _request(self, frame: Frame, order: OrderEntry, now: int) -> Frame | None:
        """Ask for a chunk, unless it has come meanwhile, in a frame as long as the answer. Every asking is another attempt."""
        header, config, tensor = frame.header, self.config, self._tensor(order.generation)
        chunk = self.chunks[order.chunk]
        if chunk.done == order.generation:
            return None
        frame.resize(tensor.length)
        chunk.sent_us = now
        chunk.attempt += 1
        header.kind, header.generation, header.chunk = Kind.REQUEST, order.generation, order.chunk
        header.attempt, header.hop, header.last = chunk.attempt & 0xFF, 0, config.rank
        header.flags = DOUBT if self._refused(order.chunk) else 0
        header.tag = tensor.tag
        self._count("resent")
        return self._send(frame, config.before if config.upstream else order.chunk % config.ranks, tensor.length)

    def _launch(self, frame: Frame, index: int, attempt: int, now: int, doubt: int = 0) -> Frame | None:
        """The frame becomes this rank's own chunk ``index`` on its first lap.

        :param doubt: `DOUBT` if a rank that asks is in doubt, or 0.
        """
        header, chunk, tensor = frame.header, self.chunks[index], self._tensor(self.generation)
        frame.resize(tensor.length)
        frame.payload[:] = self.inputs[index, : tensor.length // 8]
        chunk.sent_us, chunk.attempt = now, attempt & 0xFF
        header.kind, header.generation, header.chunk = Kind.REDUCE, self.generation, index
        header.attempt, header.hop, header.last = attempt & 0xFF, 1, 0
        header.flags = DOUBT if self._refused(index) else doubt
        header.tag, header.length = tensor.tag, tensor.length
        header.checksum = chunk.input_sum + seal(header) & U64
        return self._send(frame, self.config.after, tensor.length)

    def _launch_next(self, frame: Frame, now: int) -> Frame | None:
        """The frame is at liberty: it carries on as this rank's next chunk, if there is one that is ready."""
        index = self.config.rank + self.config.ranks * self.next_slot
        self.next_slot += 1
        if self.next_generation != self.generation or index >= self.ready:
            return None
        return self._launch(frame, index, 0, now)

    def _answer(self, frame: Frame) -> Frame | None:
        """Lap two of a result that this rank holds, from here to every other rank."""
        return self._send_result(frame, 1, self.config.before)

    def _resume(self, frame: Frame) -> Frame | None:
        """Go on with a lap two that was lost behind this rank: the frame becomes the one that went on from here."""
        config, owner = self.config, frame.header.chunk % self.config.ranks
        hops = (config.rank + 1 - owner) % config.ranks
        if hops == config.ranks - 1:  # it ended here
            return self._answer(frame)
        return self._send_result(frame, hops + 1, (owner - 2) % config.ranks)

    def _send_result(self, frame: Frame, hop: int, last: int) -> Frame | None:
        """Turn the frame into lap two of a result that this rank holds, as its ``hop``th hop."""
        header, config, chunk = frame.header, self.config, self.chunks[frame.header.chunk]
        frame.resize(header.length)
        frame.payload[:] = self.results[header.chunk, : header.length // 8]
        if chunk.claimed != header.generation:
            return self._drop("overtaken")
        header.kind, header.hop, header.last, header.flags = Kind.RESULT, hop, last, 0
        header.checksum = chunk.result_sum + seal(header) & U64
        self._count("answered")
        return self._send(frame, config.after, header.length)

    def _send(self, frame: Frame, to: int, length: int) -> Frame:
        """Address the frame; its kind and payload are in place."""
        frame.source, frame.destination = self.config.peers[self.config.rank], self.config.peers[to]
        frame.header.length = length
        self._count("sent")
        self._count("sent_bytes", FRAME_BYTES + length)
        return frame

    def _is_from(self, frame: Frame, rank: int) -> bool:
        """Does the frame come from a rank, and not from this one?"""
        return rank < self.config.ranks and rank != self.config.rank and frame.source.ip == self.config.peers[rank].ip

    def _too_soon(self, index: int, now: int) -> bool:
        """Has the chunk been sent or asked for a moment ago? All ranks that lack it ask at once."""
        sent = self.chunks[index].sent_us
        return sent != 0 and (now - sent & U32) < self.quench_us

    def _refused(self, index: int) -> bool:
        """Has this rank's process refused a result of the chunk in this generation?"""
        return self.chunks[index].done == ~self.generation & U32

    def _holds(self, frame: Frame) -> bool:
        """Does this rank hold the result that the frame is about, and one that will do (``holds`` of ``ring_work.h``)?"""
        header = frame.header
        held = self.chunks[header.chunk].done == header.generation
        return held and (not header.flags & DOUBT or self.settled == header.generation)

    def _tensor(self, generation: int) -> Tensor:
        return self.tensors[generation & 1]

    def _count(self, counter: str, by: int = 1) -> None:
        self.counters[counter] += by

    def _drop(self, reason: str) -> Frame | None:
        self._count(reason)
        return None

    def _refuse(self, reason: str) -> bool:
        self._count(reason)
        return False
