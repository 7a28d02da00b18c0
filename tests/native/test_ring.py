"""The process's side of the ring in C (testbed/native/ring.c), compared with the pure model call by
call, on plain memory.
"""

import errno
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.kernel.abi import constant
from testbed.protocol.ring.memory import (
    ANYWHERE,
    EARLY_SLOTS,
    SQ_ENTRIES,
    Memory,
    ResultState,
    Stage,
    WorkRequest,
    WrKind,
    is_done,
)
from testbed.protocol.ring.process import PATIENCE, Process
from testbed.protocol.sequence import NEWEST, seq_after, word_of
from testbed.protocol.wire import BLOCK, Frame, Header, Kind
from tests.support.native.process import NativeProcess
from tests.support.protocol.network import config

FAN = constant("RING_FAN_LARGE")  # frames that one kick can become
WINDOW = 2
CHUNKS = 16
FREE, WAITING = constant("RING_EARLY_FREE"), constant("RING_EARLY_WAITING")
NOW = 5_000_000  # microseconds
HOLDOFF = 200
TICK = 8 * HOLDOFF  # so long a silence is not explained by losses that are known

CHUNK = st.integers(0, CHUNKS - 1)
OPERATIONS = st.one_of(
    st.tuples(st.just("begin"), st.integers(1, CHUNKS), st.integers(0, 0xFFFF)),
    st.tuples(st.just("publish"), st.integers(0, CHUNKS), st.just(0)),
    st.tuples(st.just("park"), st.integers(-1, 1), CHUNK),
    st.tuples(st.just("launched"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("taken"), st.integers(1, 20), st.just(0)),
    st.tuples(
        st.just("result"),
        CHUNK,
        st.sampled_from((ResultState.CLAIMED, ResultState.DONE, ResultState.REFUSED)),
    ),
    st.tuples(st.just("damage"), CHUNK, st.integers(0, BLOCK // 8 - 1)),
    st.tuples(st.just("reduced"), CHUNK, st.integers(0, 2)),
    st.tuples(st.just("lost"), CHUNK, st.sampled_from(Stage)),
    st.tuples(st.just("asked"), CHUNK, st.integers(0, 400)),
    st.tuples(st.just("tries"), CHUNK, st.integers(0, 20)),
    st.tuples(st.just("late"), st.integers(0, 4000), st.integers(0, 10_000)),
    st.tuples(st.just("answered"), st.integers(0, 2), st.integers(0, 3000)),
    st.tuples(st.just("refuse"), CHUNK, st.just(0)),
    st.tuples(st.just("flushed"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("lossy"), st.integers(0, 300), st.just(0)),
    st.tuples(st.just("said"), st.integers(-1, 1), st.booleans()),
    st.tuples(st.just("stall"), st.booleans(), st.sampled_from((0, TICK))),
    st.tuples(st.just("stall"), st.just(True), st.sampled_from((0, TICK))),
    st.tuples(st.just("probe"), st.just(0), st.just(0)),
)


class Both:
    """The pure process and the native one, each on memory of its own; the two memories must stay
    equal.
    """

    def __init__(self, native: NativeProcess, memory: Memory, window: int = WINDOW) -> None:
        self.native, self.memory, self.process = native, memory, Process(memory, window)
        self.slot = 0
        self.now = NOW
        # Head and tail also wrap.
        native.control.sq_tail = native.control.sq_head = 0xFFFFFFF0
        native.control.progress = word_of(memory.seq, 0)
        native.control.nack_holdoff_us = memory.nack_holdoff_us

    def begin(self, total: int, tag: int) -> None:
        seq = seq_after(self.memory.seq)
        self.process.begin(seq, total, BLOCK, tag)
        self.native.begin(seq, total, BLOCK, tag)

    def publish(self, value: int, _) -> None:
        seq = self.memory.seq
        ready = max(self.memory.ready, min(value, self.memory.tensors[seq & 1].total))
        self.process.publish(ready)
        self.native.publish(seq, ready)
        assert self.native.kicks() == -(-len(self.memory.sq) // FAN)

    def park(self, later: int, chunk: int) -> None:
        frame = Frame(Header(Kind.REDUCE, seq=self.memory.seq + later & 0xFFFFFFFF, chunk=chunk))
        self.memory.early_frames[self.slot] = frame
        early = self.native.early_frames[self.slot]
        early.state, early.seq, early.chunk = WAITING, frame.header.seq, chunk
        self.slot = (self.slot + 1) % EARLY_SLOTS

    def launched(self, count: int, _) -> None:
        self.memory.next_slot += count
        self.native.control.next += count

    def taken(self, count: int, _) -> None:
        for _ in range(min(count, len(self.memory.sq))):
            self.memory.sq.popleft()
            self.native.control.sq_head = self.native.control.sq_head + 1 & 0xFFFFFFFF

    def result(self, chunk: int, state: ResultState) -> None:
        """The programs have reached this state of a chunk, one round later than before."""
        record, seq = self.memory.chunks[chunk], self.memory.seq
        was = record.result & 0xFF if record.result >> 32 == seq else ResultState.NONE
        record.result = word_of(seq, (record.result + 0x100 & 0xFF00) | state)
        self.native.records[chunk].result = record.result
        self.memory.stored += is_done(state) - is_done(was)
        self.native.control.stored = self.memory.stored
        self.progress()

    def progress(self) -> None:
        """A frame has made progress."""
        self.memory.streams[0].progress += 1
        self.native.memory["streams"]["progress"][0] += 1

    def damage(self, chunk: int, word: int) -> None:
        """Flip a bit of a stored result, or flip it back."""
        self.memory.results[chunk][word] ^= np.uint64(1)
        self.native.memory["results"][chunk, word] ^= np.uint64(1)

    def reduced(self, chunk: int, round_: int) -> None:
        self.memory.chunks[chunk].reduced = self.native.records[chunk].reduced = word_of(
            self.memory.seq, round_
        )

    def lost(self, chunk: int, stage: Stage) -> None:
        self.memory.chunks[chunk].lost[stage] = self.native.records[chunk].lost[stage] = (
            self.memory.seq
        )

    def asked(self, chunk: int, ago_us: int) -> None:
        self.memory.chunks[chunk].nacked_us = self.native.records[chunk].nacked_us = (
            self.now - ago_us
        )
        self.tries(chunk, 1)

    def tries(self, chunk: int, tries: int) -> None:
        self.memory.chunks[chunk].tries = self.native.records[chunk].tries = tries

    def late(self, late_us: int, answered_ago_us: int) -> None:
        """The programs have seen late frames, and answers."""
        self.memory.late_us = self.native.control.late_us = late_us
        self.memory.answered_us = self.native.control.answered_us = self.now - answered_ago_us

    def refuse(self, chunk: int, _) -> None:
        self.process.refuse(chunk)
        self.native.refuse(chunk)

    def lossy(self, ago: int, _) -> None:
        """The last sign of loss was seen `ago` collectives ago."""
        self.memory.lossy = self.native.control.lossy = self.memory.seq - ago & 0xFFFFFFFF

    def flushed(self, all_: int, _) -> None:
        self.memory.flushed = self.native.control.flushed = all_

    def said(self, later: int, verified: bool) -> None:
        """The preceding rank has said that it is in this collective, or an adjacent one."""
        peer, before = self.memory.ranks[self.memory.config.before], self.memory.config.before
        peer.seq = self.native.peers[before].seq = self.memory.seq + later & 0xFFFFFFFF
        peer.verified = self.native.peers[before].verified = peer.seq if verified else 0

    def stall(self, still: bool, pass_us: int = TICK) -> None:
        """The process looks at its memory; then some time passes."""
        self.process.stall(self.now, still)
        self.native.stall(self.process.total, self.now, still)
        self.now += pass_us
        assert self.native.ring.stalls == self.process.stalls

    def probe(self, cpu: int, _=0) -> None:
        self.process.probe(cpu, self.now)
        self.native.probe(self.memory.seq, cpu, self.now)

    def answered(self, ago: int, trip_us: int) -> None:
        """The last probe but some has been answered after a while."""
        attempt = self.native.ring.probes - 1 - ago & 0xFFFF
        answer = word_of(self.now + trip_us & 0xFFFFFFFF, attempt)
        self.process.answered(answer)
        self.native.answered(answer)

    def assert_same(self) -> None:
        native, memory = self.native, self.memory
        assert native.waiting() == list(memory.sq)
        control = native.control
        assert control.progress == word_of(memory.seq, memory.ready)
        assert control.next == word_of(memory.next_seq, memory.next_slot)
        assert (control.stored, control.front, control.flushed) == (
            memory.stored,
            memory.front,
            memory.flushed,
        )
        tensors = [astuple(tensor) for tensor in memory.tensors]
        assert control.tensors.tolist() == tensors
        assert control.rto_us == memory.rto_us
        for record, chunk in zip(native.records, memory.chunks, strict=False):
            assert record.lost.tolist() == chunk.lost
        assert [entry.state for entry in native.early_frames] == [
            FREE if p is None else WAITING for p in memory.early_frames
        ]
        results = [chunk.result for chunk in memory.chunks]
        assert [native.records[index].result for index in range(len(results))] == results


@given(
    st.integers(2, 5).flatmap(lambda ranks: st.tuples(st.just(ranks), st.integers(0, ranks - 1))),
    st.sampled_from((0, NEWEST - 1, NEWEST)),
    st.booleans(),
    st.sampled_from((0, 200)),
    st.lists(OPERATIONS, min_size=1, max_size=40),
)
def test_both_post_the_same_work_requests_and_keep_the_same_memory(
    who, seq, upstream, nack_holdoff_us, operations
) -> None:
    ranks, rank = who
    memory = Memory(
        config(rank, ranks, chunks=CHUNKS, upstream=upstream),
        seq=seq,
        nack_holdoff_us=nack_holdoff_us,
    )
    with NativeProcess(rank, ranks, WINDOW) as native:
        both = Both(native, memory)
        for name, value, other in operations:
            getattr(both, name)(value, other)
            both.assert_same()


@pytest.fixture
def both():
    """Rank 0 of 2 with all input published: the even chunks are its own, and those in its window
    are launched.
    """
    memory = Memory(config(0, 2, chunks=CHUNKS), nack_holdoff_us=HOLDOFF)
    with NativeProcess(0, 2, WINDOW) as native:
        made = Both(native, memory)
        made.begin(CHUNKS, 0)
        made.publish(CHUNKS, 0)
        for entry in memory.sq:
            made.reduced(entry.chunk, 0)
        made.taken(SQ_ENTRIES, 0)
        yield made
        made.assert_same()


def asked(both: Both) -> list[tuple[WrKind, int]]:
    """Work requests posted since the last call."""
    found = [(WrKind(entry.kind), entry.chunk) for entry in both.memory.sq]
    assert both.native.waiting() == list(both.memory.sq)
    both.taken(SQ_ENTRIES, 0)
    return found


def test_known_losses_are_nacked_at_once_but_not_too_often(both) -> None:
    both.lost(3, Stage.PARTIAL)
    both.lost(2, Stage.RESULT)
    both.asked(2, ago_us=100)
    both.stall(False)
    assert asked(both) == [(WrKind.NACK, 3)]
    both.asked(2, ago_us=200)
    both.stall(False)
    assert asked(both) == [(WrKind.NACK, 2)]  # half as many as the last time


def test_losses_of_another_phase_are_not_nacked(both) -> None:
    """These are the partial sum in all-gather, and the result in reduce-scatter, before this rank
    has added its input.
    """
    both.lost(2, Stage.PARTIAL)
    both.lost(3, Stage.RESULT)
    both.stall(False)
    assert asked(both) == []


def test_launches_are_repeated_for_slots_that_are_taken(both) -> None:
    """A work request or its kick was lost on the way to the doorbell."""
    both.memory.chunks[2].reduced = both.native.records[2].reduced = 0
    both.stall(False)
    assert asked(both) == [(WrKind.LAUNCH, 2)]


def test_nothing_is_nacked_blindly_before_the_preceding_rank_has_answered(both) -> None:
    """Nothing arrives and nothing is known to be lost: everything may be late. After the answer a
    few frames are nacked, those that are needed first.
    """
    for _ in range(PATIENCE - 1):
        both.stall(True)
        assert asked(both) == []
    both.flushed(1, 0)
    both.stall(False)  # something still arrives on a CPU
    assert asked(both) == []
    both.stall(True)
    assert asked(both) == [(WrKind.NACK, 0)]  # the allowance has dropped to one


def test_nothing_is_nacked_blindly_within_some_holdoffs(both) -> None:
    """A loss that another rank knows of explains the silence."""
    both.lossy(0, 0)
    both.flushed(1, 0)
    both.stall(True, TICK - 1)
    both.stall(True, 1)
    assert asked(both) == []
    both.stall(True)
    assert [kind for kind, _ in asked(both)] == [WrKind.NACK]


def test_without_recent_losses_blind_nacks_are_sent_later(both) -> None:
    """On a busy machine nothing may arrive for a while although nothing is lost."""
    both.flushed(1, 0)
    for _ in range(PATIENCE):
        both.stall(True)
        assert asked(both) == []
    both.stall(True)
    assert [kind for kind, _ in asked(both)] == [WrKind.NACK]


def test_without_losses_each_blind_nack_takes_twice_the_silence_of_the_last(both) -> None:
    """A rank whose process waits for a CPU is late, and the others need not ask all the time."""
    both.flushed(1, 0)
    found = []
    for stall in range(9 * PATIENCE):
        both.stall(True)
        found += [stall for kind, _ in asked(both) if kind is WrKind.NACK]
    assert found == [PATIENCE, 2 * PATIENCE, 4 * PATIENCE, 8 * PATIENCE]


def test_blind_nacks_are_few(both) -> None:
    for chunk in range(4):
        both.result(chunk, ResultState.DONE)
    both.lossy(0, 0)
    both.stall(False)
    both.flushed(1, 0)
    for chunk in range(4, 8):
        both.result(chunk, ResultState.DONE)
    both.stall(True)
    blind = asked(both)
    assert len([entry for entry in blind if entry[0] == WrKind.NACK]) == 4


def test_each_stall_continues_after_the_last_nack(both) -> None:
    """A chunk that no rank can send yet does not block the others, however few may be nacked at
    once.
    """
    both.lossy(0, 0)
    both.stall(True)
    both.lost(0, Stage.RESULT)
    both.flushed(1, 0)
    missing = (0, 1, 2, 3, 5)
    for chunk in range(4, CHUNKS):
        if chunk not in missing:
            both.result(chunk, ResultState.DONE)
    for _ in range(5):  # until no more than one may be nacked at once
        both.stall(True)
    start = asked(both)[-1][1]
    found = []
    for _ in range(6):
        both.stall(True)
        found += [chunk for kind, chunk in asked(both) if kind is WrKind.NACK]
    after = missing.index(start) + 1
    assert found == [*(missing + missing)[after:], *missing][:6]


def test_results_are_verified_before_all_are_stored(both) -> None:
    """After a stall, right results answer nacks of any round, and wrong ones are refused."""
    for chunk in (0, 1, 3):
        both.result(chunk, ResultState.DONE)
    both.damage(3, 0)
    both.stall(True)
    both.flushed(1, 0)
    both.stall(True)
    states = [ResultState(chunk.result & 0xFF) for chunk in both.memory.chunks[:4]]
    assert states == [
        ResultState.VERIFIED,
        ResultState.VERIFIED,
        ResultState.NONE,
        ResultState.REFUSED,
    ]
    assert (WrKind.RESTART, 3) in asked(both)
    both.result(3, ResultState.DONE)
    both.damage(3, 0)
    both.stall(True)
    assert both.memory.chunks[3].result & 0xFF == ResultState.VERIFIED


def test_everything_is_nacked_when_the_preceding_rank_has_everything(both) -> None:
    both.stall(True)
    both.flushed(1, 0)
    both.said(0, True)
    for chunk in (14, 15):
        both.result(chunk, ResultState.DONE)
    both.stall(True)
    # Own chunks that this rank has not launched yet are not in flight.
    assert asked(both) == [(WrKind.NACK, chunk) for chunk in (0, 1, 2, 3)]


def test_a_refused_result_is_nacked_until_it_arrives(both) -> None:
    both.result(1, ResultState.DONE)
    both.refuse(1, 0)
    assert asked(both) == [(WrKind.RESTART, 1)]
    both.stall(False)
    assert asked(both) == [(WrKind.RESTART, 1), (WrKind.NACK, 1)]
    both.memory.chunks[1].reduced = both.native.records[1].reduced = word_of(both.memory.seq, 2)
    both.stall(False)
    assert asked(both) == [
        (WrKind.NACK, 1)
    ]  # a later round has been seen, so the owner has started it


def test_probes_name_their_cpu_and_differ() -> None:
    memory = Memory(config(1, 3))
    with NativeProcess(1, 3, WINDOW) as native:
        both = Both(native, memory)
        both.flushed(1, 0)
        both.probe(0)
        both.probe(0)
        assert memory.flushed == 0
        both.assert_same()
        probe = WorkRequest(WrKind.PROBE, 0, 0, 0, ANYWHERE)
        assert list(memory.sq) == [probe, probe._replace(attempt=1)]


def test_unanswered_nacks_become_fewer_and_fewer() -> None:
    """Unanswered nacks may be waiting in a queue, so fewer are sent each time; results raise the
    number again.
    """
    window, total = 16, 64
    memory = Memory(config(0, 2, chunks=total))
    counts = []
    with NativeProcess(0, 2, window) as native:
        both = Both(native, memory, window)
        both.begin(total, 0)
        both.publish(total, 0)
        for chunk in range(total):
            both.reduced(chunk, 0)
            both.lost(chunk, Stage.RESULT)
        both.taken(SQ_ENTRIES, 0)
        for come in (1, 0, 0, 0, 0, 0, 0, 0, 3, 5, 0):
            for chunk in range(memory.stored, memory.stored + come):
                both.result(chunk, ResultState.DONE)
            both.stall(True)
            counts.append(len(asked(both)))
    assert counts == [32, 16, 8, 4, 2, 1, 1, 1, 4, 9, 4]


def test_a_full_queue_takes_no_more_work_requests() -> None:
    memory = Memory(config(0, 2))
    process = Process(memory, WINDOW)
    with NativeProcess(0, 2, WINDOW) as native:
        for chunk in range(SQ_ENTRIES + 1):
            process.post(WrKind.NACK, 1, chunk)
            native.post(WrKind.NACK, 1, chunk)
        assert native.waiting() == list(memory.sq)
        assert len(memory.sq) == SQ_ENTRIES


def test_a_doorbell_that_is_gone_is_an_error() -> None:
    with NativeProcess(0, 2, WINDOW) as native:
        native.post(WrKind.PROBE, 0, 1)
        native.far.close()
        assert native.call("flush") == errno.ECONNREFUSED
