"""What the process of a rank decides: what to launch, to replay and to ask for. Twin of ``testbed/native/ring.c``."""

from __future__ import annotations

from testbed.protocol.ring.memory import (
    ANYWHERE,
    ORDERS,
    PARKING,
    Memory,
    Order,
    OrderEntry,
    ResultState,
    Stage,
    Tensor,
    is_done,
    slots_of,
)
from testbed.protocol.sequence import is_before, word_of
from testbed.protocol.wire import Frame, Header, Kind, Words, checksum, weigh

__all__ = ["Process"]

_REACH = 8
"""Times the window and the ranks: chunks looked at, from the first that is missing."""
_BLIND = 4
"""Chunks that are asked for without a sign of loss, when nothing else explains that nothing comes."""


class Process:
    """One rank's process, beside the memory that it shares with its programs.

    :param memory: The `testbed.protocol.ring.rank.Rank` of the same rank.
    :param window: Tokens that it starts a collective with.
    """

    def __init__(self, memory: Memory, window: int) -> None:
        self.memory = memory
        self.window = window
        self.total = self.stalls = 0
        self._front = self._asked = self._allowed = self._probes = self._next = self._verified = 0

    def begin(self, generation: int, total: int, length: int, tag: int) -> None:
        """Enter a collective of ``total`` chunks of ``length`` bytes; no input is ready yet."""
        memory, config = self.memory, self.memory.config
        memory.tensors[generation & 1] = Tensor(total, length, tag)
        memory.wake_at = memory.stored = memory.ready = memory.front = 0
        memory.generation = memory.next_generation = generation
        memory.next_slot = min(self.window, slots_of(config.rank, config.ranks, total))
        self.total = total
        self.stalls = self._front = self._next = self._verified = 0
        self._asked = sum(lane.progress for lane in memory.lanes)
        self._allowed = self.window * config.ranks

    def fill(self, chunk: int, words: Words) -> None:
        """Lay a chunk's input where the programs read it; to be done before it is published."""
        self.memory.inputs[chunk][: words.size] = words
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

    def order(self, kind: Order, generation: int, chunk: int, attempt: int = 0, extra: int = 0) -> None:
        """Give an order; one that does not fit waits for the timer."""
        if len(self.memory.orders) < ORDERS:
            self.memory.orders.append(OrderEntry(kind, generation, chunk, attempt, extra))

    def bell(self) -> Frame:
        """A frame that carries out an order."""
        config = self.memory.config
        header = Header(Kind.BELL, group=config.group, cookie=config.cookie)
        frame = Frame(header)
        frame.resize(config.chunk_bytes)
        return frame

    def verify(self) -> bool:
        """All results are stored: are they what their checks say? Those that are not are refused."""
        if not all(self._is_done(chunk) for chunk in range(self.total)):
            return False
        wrong = [chunk for chunk in range(self.total) if not self._is_good(chunk)]
        for chunk in wrong:
            self.refuse(chunk)
        if not wrong:
            self.settle()
        return not wrong

    def _is_good(self, chunk: int) -> bool:
        """Is a result, which is here, what its check says?"""
        memory = self.memory
        result = memory.results[chunk][: memory.tensors[memory.generation & 1].length // 8]
        return weigh(result[:-1]) == int(result[-1])

    def _verify_early(self, end: int) -> None:
        """Look at results before all are here, each once, from where the last call has stopped.

        Those that are good are so for ranks that have refused theirs: with none, nobody has any reason to make the sum anew but
        those that lack it, and what gets lost on its way there may never be asked for.
        """
        for _ in range(min(_REACH * self.window * self.memory.config.ranks, end)):
            chunk = self._verified if self._verified < end else 0
            self._verified = chunk + 1
            record = self.memory.chunks[chunk]
            if not self._is_done(chunk) or record.result & 0xFF == ResultState.VERIFIED:
                continue
            if self._is_good(chunk):
                record.result += ResultState.VERIFIED - ResultState.DONE
            else:
                self.refuse(chunk)

    def settle(self) -> None:
        """All results are good, and stay as they are."""
        self.memory.settled = self.memory.generation

    def refuse(self, chunk: int) -> None:
        """A result is not what its check says: do without, and have the chunk's first lap begun anew (``ring_refuse``)."""
        memory, record = self.memory, self.memory.chunks[chunk]
        self._front = min(self._front, chunk)
        done = word_of(memory.generation, record.result & 0xFF00 | ResultState.DONE)
        if record.result != done:
            return
        memory.stored -= 1
        record.result = done - ResultState.DONE + ResultState.REFUSED
        self.order(Order.RESTART, memory.generation, chunk, extra=record.result >> 8 & 0xFF)

    def stall(self, now_us: int, still: bool = True) -> None:
        """Nothing new has come on a CPU for a while (``ring_stall``).

        Launch what should have been launched, and have sent again what is known to be lost and has not been asked for lately.
        When the rank before has answered on all CPUs, and none brings anything, verify what is here, and ask for some of
        what is missing without knowing why: what has been said about it may have been lost as well. Each call goes on behind
        what the last one has asked for, so that what nobody can send yet does not keep the rest from being asked for.

        :param still: Nothing has come on any CPU since the last look.
        """
        memory, config, generation = self.memory, self.memory.config, self.memory.generation
        allowed = self._allowance()
        flushed = still and self.stalls >= 1 and memory.flushed == (1 << config.cpus) - 1
        complete, blind = flushed and self._is_complete(), 0
        if flushed:
            self._verify_early(min(self.total, memory.ready))
        while self._front < self.total and self._is_done(self._front):
            self._front += 1
        memory.front = self._front
        end = min(self.total, self._front + _REACH * self.window * config.ranks, memory.ready)
        start = self._next if self._front <= self._next < end else self._front
        for chunk in (*range(start, end), *range(self._front, min(start, end))):
            record = memory.chunks[chunk]
            if not allowed:
                break
            if self._is_done(chunk):
                continue
            if chunk % config.ranks == config.rank and record.reduced >> 32 != generation:
                if chunk // config.ranks < memory.next_slot:
                    self.order(Order.LAUNCH, generation, chunk)
                continue
            if (now_us - record.asked_us & 0xFFFFFFFF) < memory.holdoff_us:
                continue
            refused = record.result >> 32 == generation and record.result & 0xFF == ResultState.REFUSED
            if not (complete or refused or self._is_lost(chunk)):
                if not flushed or blind >= _BLIND:
                    continue
                blind += 1
            if refused and record.reduced <= word_of(generation, record.result >> 8 & 0xFF):  # no later round has begun
                self.order(Order.RESTART, generation, chunk, extra=record.result >> 8 & 0xFF)
            self.order(Order.REQUEST, generation, chunk)
            self._next = chunk + 1
            allowed -= 1
        self.stalls += 1

    def probe(self, cpu: int) -> None:
        """Ask the rank before what it has sent last on a CPU: what does not come before its answer is lost."""
        memory, config = self.memory, self.memory.config
        memory.flushed &= ~(1 << cpu % 64)
        self.order(Order.PROBE, memory.generation, config.before, self._probes & 0xFFFF, cpu if config.cpus > 1 else ANYWHERE)
        self._probes += 1

    def on_timer(self, now_us: int) -> None:
        """Nothing has come for so long that all CPUs are asked."""
        self.stall(now_us)
        for cpu in range(self.memory.config.cpus):
            self.probe(cpu)

    def moved(self) -> None:
        """Something has come since the last look."""
        self.stalls = 0

    def _is_done(self, chunk: int) -> bool:
        result = self.memory.chunks[chunk].result
        return result >> 32 == self.memory.generation and is_done(result)

    def _is_complete(self) -> bool:
        """Has the rank before all results, so that it has sent whatever this rank lacks?"""
        before, generation = self.memory.ranks[self.memory.config.before], self.memory.generation
        return before.settled == generation or (before.generation != 0 and is_before(generation, before.generation))

    def _is_lost(self, chunk: int) -> bool:
        """Is the next frame about a chunk known to be lost?"""
        memory, record = self.memory, self.memory.chunks[chunk]
        begun = chunk % memory.config.ranks == memory.config.rank or record.reduced >> 32 == memory.generation
        return record.lost[Stage.RESULT if begun else Stage.PARTIAL] == memory.generation

    def _allowance(self) -> int:
        """How many chunks may be asked for at once: half as many as the last time, until something comes."""
        most, progress = self.window * self.memory.config.ranks, sum(lane.progress for lane in self.memory.lanes)
        come, self._asked = progress - self._asked, progress
        self._allowed = min(self._allowed + come, most) if come > 0 else max(self._allowed // 2, 1)
        return self._allowed

    @property
    def finished(self) -> bool:
        """All results of the collective are stored."""
        return self.memory.stored >= self.total
