"""The process's side of the ring in C (testbed/native/ring.c) against the pure one, call by call, on plain memory."""

import errno

from hypothesis import given
from hypothesis import strategies as st

from testbed.collectives.ring_maps import Parked
from testbed.protocol.generation import NEWEST, generation_after
from testbed.protocol.memory import ORDERS, PARKING, Memory, Order
from testbed.protocol.process import Process
from testbed.protocol.wire import BLOCK, Frame, Header, Kind
from tests.native.process import NativeProcess
from tests.protocol.network import config

FAN = 32  # frames that one bell can become
WINDOW = 2
FREE, PARKED = 0, 2

OPERATIONS = st.one_of(
    st.tuples(st.just("begin"), st.integers(1, 12), st.integers(0, 0xFFFF)),
    st.tuples(st.just("publish"), st.integers(0, 12), st.just(0)),
    st.tuples(st.just("park"), st.integers(-1, 1), st.integers(0, 12)),
    st.tuples(st.just("launched"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("taken"), st.integers(1, 20), st.just(0)),
    st.tuples(st.just("claim"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("stored"), st.integers(0, 11), st.just(0)),
    st.tuples(st.just("chase"), st.just(0), st.just(0)),
)


@given(
    st.integers(2, 5).flatmap(lambda ranks: st.tuples(st.just(ranks), st.integers(0, ranks - 1))),
    st.sampled_from((0, NEWEST - 1, NEWEST)),
    st.lists(OPERATIONS, max_size=40),
)
def test_same_orders_and_the_same_memory(who, generation, operations) -> None:
    ranks, rank = who
    memory = Memory(config(rank, ranks, chunks=16), generation=generation)
    process = Process(memory, WINDOW)
    with NativeProcess(rank, ranks, WINDOW) as native:
        # Counters of orders wrap as well.
        native.control.ordered = native.control.taken = 0xFFFFFFF0
        native.control.progress = generation << 32
        slot, block, last = 0, 1, 0
        for name, value, other in operations:
            generation = memory.generation
            if name == "begin":
                generation = generation_after(generation)
                block, last = other % 3 + 1, other // 3 % value
                process.begin(generation, value, BLOCK, other, block, last)
                native.begin(generation, value, BLOCK, other)
            elif name == "publish":
                ready = max(memory.ready, min(value, memory.tensors[generation & 1].total))
                process.publish(ready)
                native.publish(generation, ready)
                assert native.rings() == -(-len(memory.orders) // FAN)
            elif name == "park":
                frame = Frame(Header(Kind.REDUCE, generation=generation + value & 0xFFFFFFFF, chunk=other))
                memory.parking[slot] = frame
                native.parking[slot] = Parked(PARKED, frame.header.generation, other)
                slot = (slot + 1) % PARKING
            elif name == "launched":
                memory.next_slot += value
                native.control.next += value
            elif name == "stored":
                memory.stored += memory.chunks[value].done != generation
                native.control.stored = memory.stored
                memory.chunks[value].done = native.records[value].done = generation
                memory.chunks[value].attempt = native.records[value].attempt = value * 97 & 0xFF
            elif name == "chase":
                process.chase()
                native.chase(memory.tensors[generation & 1].total, block, last)
            elif name == "taken":
                for _ in range(min(value, len(memory.orders))):
                    memory.orders.popleft()
                    native.control.taken = native.control.taken + 1 & 0xFFFFFFFF
            else:
                assert native.take(value) == process.take(value)
            assert native.waiting() == list(memory.orders)
            control = native.control
            assert control.progress == memory.generation << 32 | memory.ready
            assert control.next == memory.next_generation << 32 | memory.next_slot
            assert control.stored == memory.stored
            tensors = [(tensor.total, tensor.length, tensor.tag) for tensor in memory.tensors]
            assert [(tensor.total, tensor.length, tensor.tag) for tensor in control.tensors] == tensors
            assert [entry.state for entry in native.parking] == [FREE if p is None else PARKED for p in memory.parking]


def test_a_silent_process_asks_for_less_and_less() -> None:
    """What nobody answers may stand in a queue, which asking makes longer; results raise what may be asked for again."""
    window, ranks, total = 16, 2, 64
    memory = Memory(config(0, ranks, chunks=total))
    process = Process(memory, window)
    asked = []
    with NativeProcess(0, ranks, window) as native:
        process.begin(1, total, BLOCK, 0, last=0)
        native.begin(1, total, BLOCK, 0)
        for come in (1, 0, 0, 0, 0, 0, 0, 0, 3, 5, 0):
            for chunk in range(memory.stored, memory.stored + come):
                memory.chunks[chunk].done = native.records[chunk].done = 1
            memory.stored += come
            native.control.stored = memory.stored
            process.chase()
            native.chase(total, 1, 0)
            assert native.waiting() == list(memory.orders)
            asked.append(len(memory.orders))
            memory.orders.clear()
            native.control.taken = native.control.ordered
    assert asked == [32, 16, 8, 4, 2, 1, 1, 1, 4, 9, 4]


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
