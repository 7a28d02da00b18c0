"""The decisions of a rank's process: what to launch, replay and nack.

Reference model of ``testbed/native/ring.c``.
"""

from __future__ import annotations

from testbed.kernel.abi import constant
from testbed.protocol.ring.memory import (
    ANYWHERE,
    EARLY_SLOTS,
    SQ_ENTRIES,
    UNTIMED,
    Chunk,
    Memory,
    ResultState,
    Stage,
    Tensor,
    WorkRequest,
    WrKind,
    is_done,
    slots_of,
)
from testbed.protocol.sequence import is_before, seq_of, word_of
from testbed.protocol.wire import Frame, Header, Kind, Words, checksum, weigh

__all__ = ["PATIENCE", "Process"]

_REACH = 8
"""Times window and ranks: the number of chunks to look at, from the first that is missing."""
PATIENCE = 10
"""Stalls in a row after which a chunk is nacked without evidence, if there have been no losses
lately.
"""
_HOLDOFFS, _ROUND_TRIPS = 8, 2
"""Least holdoffs, and round trips, without progress after which a chunk is nacked without evidence.
"""
_TRIPS = constant("RING_TRIPS")
"""Latest round trips, of which the least counts."""
_TIMED = constant("RING_TIMED")
"""Probes whose times a process remembers."""
_SHORT_TRIP_US = 500
"""Shorter round trips of probes are mostly their way through the doorbell, which nacks do not take.
"""
_MOST_TRIP_US = 60_000_000
"""A longer round trip was none: the process was stopped."""
_BLIND = 4
"""Number of chunks that are nacked without a sign of loss, if nothing else explains the silence."""


def _is_long(stalls: int) -> bool:
    """Is so long a silence worth asking, although there have been no losses lately?

    A rank whose process waits for a CPU is late, and more questions do not help: each comes after
    twice the time.
    """
    times, rest = divmod(stalls, PATIENCE)
    return times > 0 and rest == 0 and times & times - 1 == 0


class Process:
    """The process of one rank, which shares memory with the rank's programs.

    :param memory: The `testbed.protocol.ring.rank.Rank` of the same rank.
    :param window: Number of chunks that it launches at the start of a collective.
    """

    def __init__(self, memory: Memory, window: int) -> None:
        self.memory = memory
        self.window = window
        self.total = self.stalls = 0
        self._still_us = 0  # when the first of these stalls was
        #: The last `stall` has found a chunk missing that is known to be lost.
        self.in_recovery = False
        self._front = self._nacked_at = self._allowed = self._probes = self._next = (
            self._to_verify
        ) = 0
        self._probed_us: dict[int, int] = {}
        self._answers: dict[int, int] = {}  # to probes, by CPU, as of the last look
        #: Round trips of probes: 8 times their mean, and 4 times their mean deviation.
        self._mean8_us = self._deviation4_us = 0
        self._trips_us: list[int] = []  # the latest ones
        self._least_holdoff_us: int | None = None

    def begin(
        self,
        seq: int,
        total: int,
        length: int,
        tag: int,
        scattered: int = 0,
        gathered: int = 0,
        root: int = 0,
    ) -> None:
        """Enter a collective of ``total`` chunks of ``length`` bytes; no input is ready yet.

        :param scattered: Chunks before this one end with the reduce-scatter phase.
        :param gathered: Chunks from this one on begin with the all-gather phase; 0: none.
        :param root: The rank that owns all of these, and 1: a broadcast; 0: each has an owner of
            its own.
        """
        memory, config = self.memory, self.memory.config
        memory.tensors[seq & 1] = Tensor(total, length, tag, scattered, gathered, root)
        memory.wake_at = memory.stored = memory.ready = memory.front = 0
        memory.seq = memory.next_seq = seq
        memory.next_slot = min(self.window, slots_of(config.rank, config.ranks, total))
        if root:
            memory.next_slot = min(gathered + self.window, total)
        self.total = total
        self.in_recovery = False
        self.stalls = self._front = self._next = self._to_verify = 0
        self._nacked_at = sum(stream.progress for stream in memory.streams)
        self._allowed = self.window * config.ranks

    def fill(self, chunk: int, words: Words) -> None:
        """Write a chunk's input to where the programs read it. This must be done before it is
        published.
        """
        self.memory.inputs[chunk][: words.size] = words
        self.memory.chunks[chunk].input_sum = checksum(words)

    def publish(self, ready: int) -> None:
        """Input is ready up to chunk ``ready``: launch own chunks that were waiting for it, and
        replay early frames.
        """
        memory, config = self.memory, self.memory.config
        was, memory.ready = memory.ready, ready
        if memory.tensors[memory.seq & 1].root:
            for chunk in range(was, min(memory.next_slot, ready)):
                if self._is_mine(chunk):
                    self.post(WrKind.LAUNCH, memory.seq, chunk)
            self.replay()
            return
        ready_slots = slots_of(config.rank, config.ranks, ready)
        for slot in range(
            slots_of(config.rank, config.ranks, was), min(memory.next_slot, ready_slots)
        ):
            self.post(WrKind.LAUNCH, memory.seq, config.rank + config.ranks * slot)
        self.replay()

    def replay(self) -> None:
        """Replay early frames whose input is ready; drop those of earlier sequence numbers."""
        memory = self.memory
        for slot in range(EARLY_SLOTS):
            early = memory.early_frames[slot]
            if early is None:
                continue
            if early.header.seq == memory.seq and early.header.chunk < memory.ready:
                self.post(WrKind.REPLAY, memory.seq, slot)
            elif is_before(early.header.seq, memory.seq):
                memory.early_frames[slot] = None

    def post(self, kind: WrKind, seq: int, chunk: int, attempt: int = 0, extra: int = 0) -> None:
        """Post a work request. If the queue is full, the request is dropped, and the timer posts it
        again.
        """
        if len(self.memory.sq) < SQ_ENTRIES:
            self.memory.sq.append(WorkRequest(kind, seq, chunk, attempt, extra))

    def kick(self) -> Frame:
        """A kick: a frame that takes a work request."""
        config = self.memory.config
        header = Header(Kind.DOORBELL, group=config.group, cookie=config.cookie)
        frame = Frame(header)
        frame.resize(config.chunk_bytes)
        return frame

    def verify(self) -> bool:
        """All results are stored: do they match their check words? Refuse those that do not."""
        if not all(self._is_done(chunk) for chunk in range(self.total)):
            return False
        wrong = [
            chunk
            for chunk in range(self.total)
            if self._has_result(chunk) and not self._is_good(chunk)
        ]
        for chunk in wrong:
            self.refuse(chunk)
        if not wrong:
            self.mark_verified()
        return not wrong

    def verify_scattered(self) -> bool:
        """All scattered chunks are done at this rank: do its sums match their check words? Those
        that do stay as they are; refuse the others. If none is refused, the rank may say in the
        rest of its input that it is done.
        """
        memory = self.memory
        end = memory.tensors[memory.seq & 1].scattered
        if not all(self._is_done(chunk) for chunk in range(end)):
            return False
        refused = False
        for chunk in filter(self._has_result, range(end)):
            record = memory.chunks[chunk]
            if record.result & 0xFF == ResultState.VERIFIED:
                continue
            if self._is_good(chunk):
                record.result += ResultState.VERIFIED - ResultState.DONE
            else:
                self.refuse(chunk)
                refused = True
        return not refused

    def met(self) -> bool:
        """Are the chunks that are all-reduced before an all-gather done? Then all ranks have
        entered, and the rest may be published.
        """
        memory = self.memory
        return all(self._is_done(chunk) for chunk in range(memory.tensors[memory.seq & 1].gathered))

    def _is_good(self, chunk: int) -> bool:
        """Does a stored result match its check word?"""
        memory = self.memory
        result = memory.results[chunk][: memory.tensors[memory.seq & 1].length // 8]
        return weigh(result[:-1]) == int(result[-1])

    def _verify_early(self, end: int) -> None:
        """Verify results before all are stored, each once, from where the last call stopped.

        A verified result serves ranks that have refused theirs. If no rank had a verified result,
        only the ranks that lack it would have a reason to start its sum over, and a loss on the way
        there might never be nacked.
        """
        for _ in range(min(_REACH * self.window * self.memory.config.ranks, end)):
            chunk = self._to_verify if self._to_verify < end else 0
            self._to_verify = chunk + 1
            record = self.memory.chunks[chunk]
            if not self._has_result(chunk) or record.result & 0xFF == ResultState.VERIFIED:
                continue
            if self._is_good(chunk):
                record.result += ResultState.VERIFIED - ResultState.DONE
            else:
                self.refuse(chunk)

    def mark_verified(self) -> None:
        """All results are good, and stay as they are."""
        self.memory.verified = self.memory.seq

    def refuse(self, chunk: int) -> None:
        """Refuse a result that fails its check, and start the chunk's reduce-scatter phase over
        (``ring_refuse``).
        """
        memory, record = self.memory, self.memory.chunks[chunk]
        self._front = min(self._front, chunk)
        done = word_of(memory.seq, record.result & 0xFF00 | ResultState.DONE)
        if record.result != done:
            return
        memory.stored -= 1
        record.result = done - ResultState.DONE + ResultState.REFUSED
        self.post(WrKind.RESTART, memory.seq, chunk, extra=record.result >> 8 & 0xFF)

    def stall(self, now_us: int, still: bool = True) -> None:
        """A CPU has made no progress for a while (``ring_stall``).

        Launch what should have been launched, and nack what is known to be lost and has not been
        nacked lately. If no CPU makes progress although the previous rank has answered on all of
        them, verify what is stored, and nack a few missing chunks without evidence, because the
        evidence may have been lost. Each call continues behind the last chunk that was nacked, so
        that a chunk that no rank can send yet does not block the others.

        :param still: No CPU has made progress since the last look.
        """
        memory, config, seq = self.memory, self.memory.config, self.memory.seq
        allowed = self._allowance()
        if not self.stalls:
            self._still_us = now_us
        flushed = still and self.stalls >= 1 and memory.flushed == (1 << config.cpus) - 1
        silence = now_us - self._still_us & 0xFFFFFFFF
        # An answer may overtake frames as they overtake each other.
        complete = flushed and silence >= memory.reorder_window_us and self._is_complete()
        least_us = self._least_holdoff_us
        least_us = memory.nack_holdoff_us if least_us is None else least_us
        # A loss that is known, here or elsewhere, explains a silence of some holdoffs.
        round_trips_us = _ROUND_TRIPS * memory.nack_holdoff_us + memory.reorder_window_us
        patient = silence >= max(_HOLDOFFS * least_us, round_trips_us)
        asks = self.stalls >= 1 if memory.is_lossy(seq) else _is_long(self.stalls)
        blind = _BLIND if flushed and patient and asks else 0
        if flushed:
            self._verify_early(min(self.total, memory.ready))
        while self._front < self.total and self._is_done(self._front):
            self._front += 1
        memory.front = self._front
        end = min(self.total, self._front + _REACH * self.window * config.ranks, memory.ready)
        start = self._next if self._front <= self._next < end else self._front
        self.in_recovery = False
        root = memory.tensors[seq & 1].root
        if still and root == config.rank + 1 and memory.ready == self.total:
            memory.next_slot += 1  # frames that should have come back may be lost
        for chunk in (*range(start, end), *range(self._front, min(start, end))):
            record = memory.chunks[chunk]
            if not allowed:
                break
            if self._is_done(chunk):
                continue
            if self._is_mine(chunk) and seq_of(record.reduced) != seq:
                if (chunk if root else chunk // config.ranks) < memory.next_slot:
                    self.post(WrKind.LAUNCH, seq, chunk)
                continue
            stage = self._next_stage(chunk, record)
            if complete:
                record.lost[stage] = seq
            refused = seq_of(record.result) == seq and record.result & 0xFF == ResultState.REFUSED
            known = refused or record.lost[stage] == seq
            self.in_recovery |= known
            if memory.waits(record, now_us):
                continue
            if not known:
                if not blind:
                    continue
                blind -= 1
            if refused and record.reduced <= word_of(
                seq, record.result >> 8 & 0xFF
            ):  # no later round was seen here
                self.post(WrKind.RESTART, seq, chunk, extra=record.result >> 8 & 0xFF)
            self.post(WrKind.NACK, seq, chunk)
            self._next = chunk + 1
            allowed -= 1
        self.stalls += 1

    def probe(self, cpu: int, now_us: int) -> None:
        """Ask the previous rank for the last frame that it sent on a CPU. Whatever has not arrived
        before the answer is lost.
        """
        memory, config = self.memory, self.memory.config
        self._probed_us[self._probes % _TIMED] = now_us
        memory.flushed &= ~(1 << cpu % 64)
        self.post(
            WrKind.PROBE,
            memory.seq,
            config.before,
            self._probes % UNTIMED,
            cpu if config.cpus > 1 else ANYWHERE,
        )
        self._probes += 1

    def measures(self, now_us: int, least_us: int) -> bool:
        """Although nothing has stalled, is it time to measure a round trip (``measures``)?

        It has to be known before a frame is missing; while frames are, it is measured once per
        round trip, because it may have changed.

        :param least_us: Least time since the last probe.
        """
        memory = self.memory
        since = now_us - self._probed_us.get((self._probes - 1) % _TIMED, 0) & 0xFFFFFFFF
        again = memory.is_lossy(memory.seq) and since >= max(least_us, memory.rto_us)
        return not self.stalls and (not self._probes or again)

    def hear(self) -> None:
        """Take the answers to probes that have come since the last call."""
        for cpu, stream in enumerate(self.memory.streams):
            if stream.answer != self._answers.get(cpu, 0):
                self._answers[cpu] = stream.answer
                self.answered(stream.answer)

    def answered(self, answer: int) -> None:
        """The previous rank has answered a probe: adapt the times to the round trip
        (``ring_answered``).

        Every probe has an attempt of its own, so it is clear which one was answered (RFC 6298). The
        least of the latest round trips, and a quarter of it, is the time between two nacks: others
        contain waits for a CPU, and a nack too many costs less than one that comes late. One short
        trip is not enough to call the path short: frames that overtake others make some.

        :param answer: As `Stream.answer`.
        """
        attempt = answer & 0xFFFFFFFF
        ago = (self._probes - 1 - attempt) % UNTIMED
        trip = seq_of(answer) - self._probed_us.get(attempt % _TIMED, 0) & 0xFFFFFFFF
        if attempt >= UNTIMED or ago >= _TIMED or not self._probes or trip > _MOST_TRIP_US:
            return
        memory = self.memory
        if self._least_holdoff_us is None:
            self._least_holdoff_us = memory.nack_holdoff_us
        self._trips_us = [*self._trips_us, trip][-_TRIPS:]
        least, *_ = trips = sorted(self._trips_us)
        is_short = trips[(len(trips) - 1) // 2] < _SHORT_TRIP_US
        least = 0 if is_short else least + least // 4
        memory.nack_holdoff_us = max(self._least_holdoff_us, least)
        off = trip - self._mean8_us // 8
        if self._mean8_us:
            self._mean8_us += off
            self._deviation4_us += abs(off) - self._deviation4_us // 4
        else:
            self._mean8_us, self._deviation4_us = 8 * trip, 2 * trip
        rto = self._mean8_us // 8 + self._deviation4_us + 1
        memory.rto_us = memory.nack_holdoff_us if is_short else rto

    def on_timer(self, now_us: int) -> None:
        """There has been no progress for so long that it is time to probe all CPUs."""
        self.stall(now_us)
        for cpu in range(self.memory.config.cpus):
            self.probe(cpu, now_us)

    def moved(self) -> None:
        """Something has arrived since the last look."""
        self.stalls = 0

    def _is_mine(self, chunk: int) -> bool:
        tensor, config = self.memory.tensors[self.memory.seq & 1], self.memory.config
        if tensor.root and chunk >= tensor.gathered:
            return tensor.root - 1 == config.rank
        return chunk % config.ranks == config.rank

    def _has_result(self, chunk: int) -> bool:
        result = self.memory.chunks[chunk].result
        return seq_of(result) == self.memory.seq and is_done(result)

    def _is_done(self, chunk: int) -> bool:
        """Is the chunk done at this rank: is its result stored, or, if it is scattered and another
        rank completes its sum, has it been sent on?
        """
        memory, config = self.memory, self.memory.config
        home = (chunk - 1) % config.ranks
        if chunk < memory.tensors[memory.seq & 1].scattered and home != config.rank:
            return seq_of(memory.chunks[chunk].reduced) == memory.seq
        return self._has_result(chunk)

    def _is_complete(self) -> bool:
        """Does the previous rank hold all results? Then it has sent whatever this rank lacks."""
        before, seq = self.memory.ranks[self.memory.config.before], self.memory.seq
        return before.verified == seq or (before.seq != 0 and is_before(seq, before.seq))

    def _next_stage(self, chunk: int, record: Chunk) -> Stage:
        """The stage of the next frame about a chunk that this rank lacks."""
        memory = self.memory
        gathered = memory.tensors[memory.seq & 1].gathered
        begun = (
            self._is_mine(chunk)
            or seq_of(record.reduced) == memory.seq
            or (gathered != 0 and chunk >= gathered)
        )
        return Stage.RESULT if begun else Stage.PARTIAL

    def _allowance(self) -> int:
        """How many chunks may be nacked at once: half as many as the last time, until there is
        progress.
        """
        most, progress = (
            self.window * self.memory.config.ranks,
            sum(stream.progress for stream in self.memory.streams),
        )
        come, self._nacked_at = progress - self._nacked_at, progress
        self._allowed = min(self._allowed + come, most) if come > 0 else max(self._allowed // 2, 1)
        return self._allowed

    @property
    def finished(self) -> bool:
        """All results of the collective are stored."""
        return self.memory.stored >= self.total
