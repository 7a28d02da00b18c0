"""What the process of a rank decides: what to launch, to replay and to ask for. Twin of ``testbed/native/ring.c``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.protocol.generation import is_before
from testbed.protocol.memory import ORDERS, PARKING, Memory, Order, OrderEntry, Tensor
from testbed.protocol.recovery import missing, plead, slots_of
from testbed.protocol.wire import Frame, Header, Kind, Words, checksum, weigh

__all__ = ["Process"]

_CHASED = 8


class Process:
    """One rank's process, beside the memory that it shares with its programs.

    :param memory: The `testbed.protocol.ring.Rank` of the same rank.
    :param window: Tokens that it starts a collective with.
    """

    def __init__(self, memory: Memory, window: int) -> None:
        self.memory = memory
        self.window = window
        self._block = self._last = 1
        self._overdue: NDArray[np.bool_] = np.zeros(0, bool)
        self._before = -1
        self._chased = self._allowed = 0

    def begin(self, generation: int, total: int, length: int, tag: int, block: int = 1, last: int | None = None) -> None:
        """Enter a collective of ``total`` chunks of ``length`` bytes; no input is ready yet.

        :param block: Chunks that all ranks publish at a time.
        :param last: First chunk of the last block, to which the rest belongs; without it, all blocks are equal.
        """
        memory, config = self.memory, self.memory.config
        memory.tensors[generation & 1] = Tensor(total, length, tag)
        memory.wake_at = memory.stored = memory.ready = 0
        memory.generation = memory.next_generation = generation
        memory.next_slot = min(self.window, slots_of(config.rank, config.ranks, total))
        self._block, self._last = block, total if last is None else last
        self._overdue, self._before = np.zeros(total, bool), -1
        self._chased, self._allowed = 0, self.window * config.ranks

    def fill(self, chunk: int, words: Words) -> None:
        """Lay a chunk's input where the programs read it; to be done before it is published."""
        self.memory.inputs[chunk, : words.size] = words
        self.memory.chunks[chunk].input_sum = checksum(words)

    def publish(self, ready: int) -> None:
        """Input is ready up to chunk ``ready``: launch own chunks that were waiting for it, replay what others have sent."""
        memory, config = self.memory, self.memory.config
        was, memory.ready = memory.ready, ready
        ready_slots = slots_of(config.rank, config.ranks, ready)
        for slot in range(slots_of(config.rank, config.ranks, was), min(memory.next_slot, ready_slots)):
            self.order(Order.LAUNCH, memory.generation, config.rank + config.ranks * slot)
        self.replay()

    def replay(self) -> None:
        """Replay parked frames whose input is ready; let go of those of past generations."""
        memory = self.memory
        for slot in range(PARKING):
            parked = memory.parking[slot]
            if parked is None:
                continue
            if parked.header.generation == memory.generation and parked.header.chunk < memory.ready:
                self.order(Order.REPLAY, memory.generation, slot)
            elif is_before(parked.header.generation, memory.generation):
                memory.parking[slot] = None

    def order(self, kind: Order, generation: int, chunk: int, attempt: int = 0) -> None:
        """Give an order; one that does not fit waits for the timer."""
        if len(self.memory.orders) < ORDERS:
            self.memory.orders.append(OrderEntry(kind, generation, chunk, attempt))

    def take(self, most: int) -> int:
        """Claim ``most`` of the slots that nobody has launched; the first of them."""
        self.memory.next_slot += most
        return self.memory.next_slot - most

    def bell(self) -> Frame:
        """A frame that carries out an order."""
        config = self.memory.config
        header = Header(Kind.BELL, group=config.group, cookie=config.cookie)
        return Frame(header, np.zeros(config.chunk_bytes // 8, np.uint64))

    def verify(self) -> bool:
        """All results are stored: are they what their checks say? Those that are not are refused."""
        memory = self.memory
        words = memory.tensors[memory.generation & 1].length // 8
        results = memory.results[: self._overdue.size, :words]
        wrong = [chunk for chunk, result in enumerate(results) if weigh(result[:-1]) != int(result[-1])]
        for chunk in wrong:
            self.refuse(chunk)
        if not wrong:
            memory.settled = memory.generation
        return not wrong

    def refuse(self, chunk: int) -> None:
        """A result is not what its check says: do without, and have it sent again (``ring_refuse``)."""
        memory, record = self.memory, self.memory.chunks[chunk]
        memory.stored -= 1
        record.claimed, record.done = 0, ~memory.generation & 0xFFFFFFFF
        if chunk % memory.config.ranks == memory.config.rank:
            self.order(Order.LAUNCH, memory.generation, chunk, record.attempt + 1 & 0xFF)
        else:
            self.order(Order.REQUEST, memory.generation, chunk)

    def chase(self) -> None:
        """Nothing has come for a moment: ask for what every rank has published, which is all of the latest result's block.

        ``ring_chase`` of ``testbed/native/ring_wait.h``. Of those chunks, what is missing is lost, not late. If nothing of this
        rank's own is under way, it begins with new tokens. What it may ask for halves as long as nothing comes (``allowance``).
        """
        memory, rank, ranks = self.memory, self.memory.config.rank, self.memory.config.ranks
        generation, next_slot, total = memory.generation, memory.next_slot, self._overdue.size
        absent = [chunk for chunk in range(total) if memory.chunks[chunk].done != generation]
        most = self.window * ranks
        come, self._chased = memory.stored - self._chased, memory.stored
        allowed = self._allowed = min(self._allowed + come, most) if come > 0 else max(self._allowed // 2, 1)
        if not absent:
            return
        seen = range(absent[0], min(total, absent[0] + _CHASED * most))
        absent = [chunk for chunk in absent if chunk in seen]
        here = max((chunk + 1 for chunk in seen if chunk not in absent), default=absent[0])
        published = total if here > self._last else -(-here // self._block) * self._block
        flying = False
        for chunk in absent:
            mine = chunk % ranks == rank
            launched = mine and chunk < memory.ready and chunk // ranks < next_slot
            flying |= launched
            if not allowed or chunk >= published:
                continue
            if launched:
                self.order(Order.LAUNCH, generation, chunk, memory.chunks[chunk].attempt + 1 & 0xFF)
            elif not mine:
                self.order(Order.REQUEST, generation, chunk)
            allowed -= launched or not mine
        if not flying:
            slots = slots_of(rank, ranks, memory.ready)
            for _ in range(min(self.window, max(0, slots - next_slot))):
                self.order(Order.LAUNCH, generation, rank + ranks * self.take(1))

    def on_timer(self) -> None:
        """Results are late: give orders that bring them (``Recovery`` of ``testbed/collectives/ring_recovery.py``)."""
        memory, config, generation = self.memory, self.memory.config, self.memory.generation
        total = self._overdue.size
        done = np.array([chunk.done for chunk in memory.chunks[:total]], np.uint32)
        stalled, self._before = memory.stored == self._before, memory.stored
        launched = memory.next_slot
        plea = plead(config.rank, config.ranks, self.window, missing(done, generation), self._overdue, launched, stalled)
        for chunk in plea.request:
            self.order(Order.REQUEST, generation, chunk)
        for chunk in plea.resend:
            self.order(Order.LAUNCH, generation, chunk, memory.chunks[chunk].attempt + 1)
        if plea.claim:
            first = self.take(plea.claim)
            for slot in range(first, first + plea.claim):
                self.order(Order.LAUNCH, generation, config.rank + config.ranks * slot)
        self.replay()
        self._overdue = plea.overtaken

    @property
    def finished(self) -> bool:
        """All results of the collective are stored."""
        return self.memory.stored >= self._overdue.size
