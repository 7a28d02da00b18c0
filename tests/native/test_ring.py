"""The process's side of the ring in C (testbed/native/ring.c) against the pure one, call by call, on plain memory."""

import errno

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.kernel.abi import constant
from testbed.protocol.ring.memory import ANYWHERE, ORDERS, PARKING, Memory, Order, OrderEntry, ResultState, Stage, is_done
from testbed.protocol.ring.process import Process
from testbed.protocol.sequence import NEWEST, generation_after, word_of
from testbed.protocol.wire import BLOCK, Frame, Header, Kind
from tests.native.process import NativeProcess
from tests.protocol.network import config

FAN = constant("RING_FAN_LARGE")  # frames that one bell can become
WINDOW = 2
CHUNKS = 16
FREE, PARKED = constant("RING_PARKING_FREE"), constant("RING_PARKING_PARKED")
NOW = 5_000_000  # microseconds

CHUNK = st.integers(0, CHUNKS - 1)
OPERATIONS = st.one_of(
    st.tuples(st.just("begin"), st.integers(1, CHUNKS), st.integers(0, 0xFFFF)),
    st.tuples(st.just("publish"), st.integers(0, CHUNKS), st.just(0)),
    st.tuples(st.just("park"), st.integers(-1, 1), CHUNK),
    st.tuples(st.just("launched"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("taken"), st.integers(1, 20), st.just(0)),
    st.tuples(st.just("result"), CHUNK, st.sampled_from((ResultState.CLAIMED, ResultState.DONE, ResultState.REFUSED))),
    st.tuples(st.just("damage"), CHUNK, st.integers(0, BLOCK // 8 - 1)),
    st.tuples(st.just("reduced"), CHUNK, st.integers(0, 2)),
    st.tuples(st.just("lost"), CHUNK, st.sampled_from(Stage)),
    st.tuples(st.just("asked"), CHUNK, st.integers(0, 400)),
    st.tuples(st.just("refuse"), CHUNK, st.just(0)),
    st.tuples(st.just("flushed"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("said"), st.integers(-1, 1), st.booleans()),
    st.tuples(st.just("stall"), st.booleans(), st.just(0)),
    st.tuples(st.just("stall"), st.just(True), st.just(0)),
    st.tuples(st.just("probe"), st.just(0), st.just(0)),
)


class Both:
    """The pure process and the native one, each on memory of its own that is to stay the same."""

    def __init__(self, native: NativeProcess, memory: Memory, window: int = WINDOW) -> None:
        self.native, self.memory, self.process = native, memory, Process(memory, window)
        self.parked = 0
        # Counters of orders wrap as well.
        native.control.ordered = native.control.taken = 0xFFFFFFF0
        native.control.progress = memory.generation << 32
        native.control.holdoff_us = memory.holdoff_us

    def begin(self, total: int, tag: int) -> None:
        generation = generation_after(self.memory.generation)
        self.process.begin(generation, total, BLOCK, tag)
        self.native.begin(generation, total, BLOCK, tag)

    def publish(self, value: int, _) -> None:
        generation = self.memory.generation
        ready = max(self.memory.ready, min(value, self.memory.tensors[generation & 1].total))
        self.process.publish(ready)
        self.native.publish(generation, ready)
        assert self.native.rings() == -(-len(self.memory.orders) // FAN)

    def park(self, later: int, chunk: int) -> None:
        frame = Frame(Header(Kind.REDUCE, generation=self.memory.generation + later & 0xFFFFFFFF, chunk=chunk))
        self.memory.parking[self.parked] = frame
        parked = self.native.parking[self.parked]
        parked.state, parked.generation, parked.chunk = PARKED, frame.header.generation, chunk
        self.parked = (self.parked + 1) % PARKING

    def launched(self, count: int, _) -> None:
        self.memory.next_slot += count
        self.native.control.next += count

    def taken(self, count: int, _) -> None:
        for _ in range(min(count, len(self.memory.orders))):
            self.memory.orders.popleft()
            self.native.control.taken = self.native.control.taken + 1 & 0xFFFFFFFF

    def result(self, chunk: int, state: ResultState) -> None:
        """The programs have come to this state of a chunk, one round later than before."""
        record, generation = self.memory.chunks[chunk], self.memory.generation
        was = record.result & 0xFF if record.result >> 32 == generation else ResultState.NONE
        record.result = word_of(generation, (record.result + 0x100 & 0xFF00) | state)
        self.native.records[chunk].result = record.result
        self.memory.stored += is_done(state) - is_done(was)
        self.native.control.stored = self.memory.stored
        self.progress()

    def progress(self) -> None:
        """A frame has brought something new."""
        self.memory.lanes[0].progress += 1
        self.native.memory["lanes"]["progress"][0] += 1

    def damage(self, chunk: int, word: int) -> None:
        """What is here of a chunk's result is not what its check says, or is again."""
        self.memory.results[chunk][word] ^= np.uint64(1)
        self.native.memory["results"][chunk, word] ^= np.uint64(1)

    def reduced(self, chunk: int, round_: int) -> None:
        self.memory.chunks[chunk].reduced = self.native.records[chunk].reduced = word_of(self.memory.generation, round_)

    def lost(self, chunk: int, stage: Stage) -> None:
        self.memory.chunks[chunk].lost[stage] = self.native.records[chunk].lost[stage] = self.memory.generation

    def asked(self, chunk: int, ago_us: int) -> None:
        self.memory.chunks[chunk].asked_us = self.native.records[chunk].asked_us = NOW - ago_us

    def refuse(self, chunk: int, _) -> None:
        self.process.refuse(chunk)
        self.native.refuse(chunk)

    def flushed(self, all_: int, _) -> None:
        self.memory.flushed = self.native.control.flushed = all_

    def said(self, later: int, settled: bool) -> None:
        """The rank before has said that it is in this collective, or a neighbouring one."""
        peer, before = self.memory.ranks[self.memory.config.before], self.memory.config.before
        peer.generation = self.native.peers[before].generation = self.memory.generation + later & 0xFFFFFFFF
        peer.settled = self.native.peers[before].settled = peer.generation if settled else 0

    def stall(self, still: bool, _=0) -> None:
        self.process.stall(NOW, still)
        self.native.stall(self.process.total, NOW, still)
        assert self.native.ring.stalls == self.process.stalls

    def probe(self, cpu: int, _=0) -> None:
        self.process.probe(cpu)
        self.native.probe(self.memory.generation, cpu)

    def assert_same(self) -> None:
        native, memory = self.native, self.memory
        assert native.waiting() == list(memory.orders)
        control = native.control
        assert control.progress == memory.generation << 32 | memory.ready
        assert control.next == memory.next_generation << 32 | memory.next_slot
        assert (control.stored, control.front, control.flushed) == (memory.stored, memory.front, memory.flushed)
        tensors = [(tensor.total, tensor.length, tensor.tag) for tensor in memory.tensors]
        assert control.tensors.tolist() == tensors
        assert [entry.state for entry in native.parking] == [FREE if p is None else PARKED for p in memory.parking]
        results = [chunk.result for chunk in memory.chunks]
        assert [native.records[index].result for index in range(len(results))] == results


@given(
    st.integers(2, 5).flatmap(lambda ranks: st.tuples(st.just(ranks), st.integers(0, ranks - 1))),
    st.sampled_from((0, NEWEST - 1, NEWEST)),
    st.booleans(),
    st.sampled_from((0, 200)),
    st.lists(OPERATIONS, min_size=1, max_size=40),
)
def test_same_orders_and_the_same_memory(who, generation, upstream, holdoff_us, operations) -> None:
    ranks, rank = who
    memory = Memory(config(rank, ranks, chunks=CHUNKS, upstream=upstream), generation=generation, holdoff_us=holdoff_us)
    with NativeProcess(rank, ranks, WINDOW) as native:
        both = Both(native, memory)
        for name, value, other in operations:
            getattr(both, name)(value, other)
            both.assert_same()


@pytest.fixture
def both():
    """Rank 0 of 2, all input published: the even chunks are its own, and those of its window are launched."""
    memory = Memory(config(0, 2, chunks=CHUNKS), holdoff_us=200)
    with NativeProcess(0, 2, WINDOW) as native:
        made = Both(native, memory)
        made.begin(CHUNKS, 0)
        made.publish(CHUNKS, 0)
        for entry in memory.orders:
            made.reduced(entry.chunk, 0)
        made.taken(ORDERS, 0)
        yield made
        made.assert_same()


def asked(both: Both) -> list[tuple[Order, int]]:
    """Orders since the last call."""
    found = [(Order(entry.kind), entry.chunk) for entry in both.memory.orders]
    assert both.native.waiting() == list(both.memory.orders)
    both.taken(ORDERS, 0)
    return found


def test_what_is_known_to_be_lost_is_asked_for_at_once_but_not_too_often(both) -> None:
    both.lost(3, Stage.PARTIAL)
    both.lost(2, Stage.RESULT)
    both.asked(2, ago_us=100)
    both.stall(False)
    assert asked(both) == [(Order.REQUEST, 3)]
    both.asked(2, ago_us=200)
    both.stall(False)
    assert asked(both) == [(Order.REQUEST, 2)]  # half as many as the last time


def test_what_is_lost_of_another_lap_is_not_asked_for(both) -> None:
    """Of lap two, the partial sum; of lap one, before this rank has added its input, the result."""
    both.lost(2, Stage.PARTIAL)
    both.lost(3, Stage.RESULT)
    both.stall(False)
    assert asked(both) == []


def test_launches_are_repeated_for_slots_that_are_taken(both) -> None:
    """An order or its frame was lost on the way to the doorbell."""
    both.memory.chunks[2].reduced = both.native.records[2].reduced = 0
    both.stall(False)
    assert asked(both) == [(Order.LAUNCH, 2)]


def test_nothing_is_asked_for_blindly_before_the_rank_before_has_answered(both) -> None:
    """Nothing comes, nothing is known to be lost: it may all be late. Then a few, those that are needed first."""
    for _ in range(3):
        both.stall(True)
        assert asked(both) == []
    both.flushed(1, 0)
    both.stall(False)  # something still comes on a CPU
    assert asked(both) == []
    both.stall(True)
    assert asked(both) == [(Order.REQUEST, 0)]  # the allowance has come down to one


def test_blind_requests_are_few(both) -> None:
    for chunk in range(4):
        both.result(chunk, ResultState.DONE)
    both.stall(False)
    both.flushed(1, 0)
    for chunk in range(4, 8):
        both.result(chunk, ResultState.DONE)
    both.stall(True)
    blind = asked(both)
    assert len([entry for entry in blind if entry[0] == Order.REQUEST]) == 4


def test_each_call_goes_on_behind_what_the_last_one_has_asked_for(both) -> None:
    """What nobody can send yet keeps nothing else from being asked for, however few may be asked for at once."""
    for _ in range(4):
        both.stall(True)
    both.lost(0, Stage.RESULT)
    both.flushed(1, 0)
    missing = (0, 1, 2, 3, 5)
    for chunk in range(4, CHUNKS):
        if chunk not in missing:
            both.result(chunk, ResultState.DONE)
    for _ in range(5):  # until no more than one may be asked for
        both.stall(True)
    start = asked(both)[-1][1]
    found = []
    for _ in range(6):
        both.stall(True)
        found += [chunk for kind, chunk in asked(both) if kind is Order.REQUEST]
    after = missing.index(start) + 1
    assert found == [*(missing + missing)[after:], *missing][:6]


def test_results_are_verified_before_all_are_here(both) -> None:
    """Nothing comes any more: what is good is good for others from now on, what is not is refused."""
    for chunk in (0, 1, 3):
        both.result(chunk, ResultState.DONE)
    both.damage(3, 0)
    both.stall(True)
    both.flushed(1, 0)
    both.stall(True)
    states = [ResultState(chunk.result & 0xFF) for chunk in both.memory.chunks[:4]]
    assert states == [ResultState.VERIFIED, ResultState.VERIFIED, ResultState.NONE, ResultState.REFUSED]
    assert (Order.RESTART, 3) in asked(both)
    both.result(3, ResultState.DONE)
    both.damage(3, 0)
    both.stall(True)
    assert both.memory.chunks[3].result & 0xFF == ResultState.VERIFIED


def test_all_is_asked_for_when_the_rank_before_has_all(both) -> None:
    both.stall(True)
    both.flushed(1, 0)
    both.said(0, True)
    for chunk in (14, 15):
        both.result(chunk, ResultState.DONE)
    both.stall(True)
    # Those of this rank's own that it has not launched yet are not on their way.
    assert asked(both) == [(Order.REQUEST, chunk) for chunk in (0, 1, 2, 3)]


def test_what_was_refused_is_asked_for_again_until_it_comes(both) -> None:
    both.result(1, ResultState.DONE)
    both.refuse(1, 0)
    assert asked(both) == [(Order.RESTART, 1)]
    both.stall(False)
    assert asked(both) == [(Order.RESTART, 1), (Order.REQUEST, 1)]
    both.memory.chunks[1].reduced = both.native.records[1].reduced = word_of(both.memory.generation, 2)
    both.stall(False)
    assert asked(both) == [(Order.REQUEST, 1)]  # a later round has come by here: the owner has begun it


def test_probes_name_their_cpu_and_are_told_apart() -> None:
    memory = Memory(config(1, 3))
    with NativeProcess(1, 3, WINDOW) as native:
        both = Both(native, memory)
        both.flushed(1, 0)
        both.probe(0)
        both.probe(0)
        assert memory.flushed == 0
        both.assert_same()
        probe = OrderEntry(Order.PROBE, 0, 0, 0, ANYWHERE)
        assert list(memory.orders) == [probe, probe._replace(attempt=1)]


def test_a_silent_process_asks_for_less_and_less() -> None:
    """What nobody answers may stand in a queue, which asking makes longer; results raise what may be asked for again."""
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
        both.taken(ORDERS, 0)
        for come in (1, 0, 0, 0, 0, 0, 0, 0, 3, 5, 0):
            for chunk in range(memory.stored, memory.stored + come):
                both.result(chunk, ResultState.DONE)
            both.stall(True)
            counts.append(len(asked(both)))
    assert counts == [32, 16, 8, 4, 2, 1, 1, 1, 4, 9, 4]


def test_a_full_queue_takes_no_more_orders() -> None:
    memory = Memory(config(0, 2))
    process = Process(memory, WINDOW)
    with NativeProcess(0, 2, WINDOW) as native:
        for chunk in range(ORDERS + 1):
            process.order(Order.REQUEST, 1, chunk)
            native.order(Order.REQUEST, 1, chunk)
        assert native.waiting() == list(memory.orders)
        assert len(memory.orders) == ORDERS


def test_a_doorbell_that_is_gone_is_an_error() -> None:
    with NativeProcess(0, 2, WINDOW) as native:
        native.order(Order.PROBE, 0, 1)
        native.far.close()
        assert native.call("flush") == errno.ECONNREFUSED
