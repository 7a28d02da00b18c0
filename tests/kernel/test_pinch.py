"""The programs of an exchange, frame by frame, against numpy: which frames are summed up, answered,
deferred, recorded and sent.
"""

import os
import threading
import time
from collections.abc import Iterator
from itertools import cycle

import numpy as np
import pytest

from testbed.exchange.pinch.process import Waited
from testbed.kernel import XDP_DROP, XDP_PASS, XDP_REDIRECT, XDP_TX
from testbed.kernel.abi import dtype
from testbed.protocol.pinch.packet import ACK_BEHIND, BATCH, LEAST_BYTES, NO_STREAM, WR_ASK
from testbed.protocol.sequence import word_of
from testbed.protocol.wire import FRAME_BYTES, PinchKind, decode
from testbed.testing.graphs import Partitioned, draw_partitioned, embeddings
from tests.support.kernel.pinch import (
    SEQ,
    STREAM,
    Loaded,
    ack,
    bits,
    first_kick,
    frame,
    hub,
    meet,
    received,
    said,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("one_cpu")]

GRAPH = draw_partitioned(0, 60, 500, 3)
ASK = 1
U32 = 0xFFFFFFFF
SHOT = 2  # TC_ACT_SHOT
GRID = [
    *(
        (kind, lanes, 64, 1500)
        for kind in ("sum", "weighted", "max")
        for lanes in ("int16", "int32")
    ),
    *(("sum", lanes, dim, 1500) for lanes in ("int16", "int32") for dim in (1, 3, 509)),
    *(("weighted", "int16", dim, 1500) for dim in (5, 512)),
    *((kind, "int32", 512, 576) for kind in ("sum", "weighted", "max")),
    *(("max", lanes, dim, 3506) for lanes in ("int16", "int32") for dim in (511, 512)),
    ("weighted", "int32", 510, 3506),
]
PACKED = [(1, 1500), (64, 1500), (509, 1500), (512, 576), (511, 3506)]


def small(dim: int = 8, **options) -> Loaded:
    return Loaded(GRAPH, embeddings(0, GRAPH, dim), **options)


def many(vertices: int = 4000, **options) -> Loaded:
    """An exchange of more than a thousand frames with one vertex each."""
    target = np.arange(vertices // 2)
    graph = Partitioned(
        np.concatenate([np.arange(vertices // 2 + 1), np.full(vertices // 2, vertices // 2)]),
        (target + vertices // 2).astype(np.int32),
        np.ones(vertices // 2, np.float32),
        (np.arange(vertices) >= vertices // 2).astype(np.int32),
        2,
    )
    return Loaded(graph, embeddings(0, graph, 128), lanes="int32", mtu=576, **options)


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    with small(60, ranks=(0, 1, 2), lanes="int32", mtu=576) as made:
        yield made


@pytest.fixture(scope="module")
def long() -> Iterator[Loaded]:
    with many(ranks=(0, 1)) as made:
        yield made


@pytest.mark.parametrize(
    ("kind", "lanes", "dim", "mtu", "sums"),
    [(*cell, "wide") for cell in GRID] + [("sum", "int32", *cell, "packed") for cell in PACKED],
)
def test_accumulators_are_those_of_numpy(kind, lanes, dim, mtu, sums) -> None:
    with Loaded(GRAPH, embeddings(1, GRAPH, dim), kind, lanes, mtu=mtu, sums=sums) as loaded:
        numbers = loaded.numbers_to(0)
        for place, (sender, number) in enumerate(numbers):
            assert loaded.events(0) == []
            last = sender not in {sender for sender, _ in numbers[place + 1 :]}
            assert loaded.link(0, loaded.embed(sender, number, 0)).retval == (
                XDP_TX if last else XDP_DROP
            )
        assert loaded.events(0) == [SEQ]
        np.testing.assert_array_equal(loaded.results(0), loaded.expected(0))
        halo, parts = GRAPH.halos[0], loaded.layout.parts
        carried = sum(len(np.flatnonzero(tables.masks & 1)) for tables in loaded.tables[1:]) * parts
        counters = loaded.counters(0)
        assert counters["received"] == loaded.ports[0].maps.control.received == len(numbers)
        assert (counters["vertices"], counters["edges"]) == (carried, len(halo.indices) * parts)
        assert counters.keys() <= {"received", "vertices", "edges", "unused", "acks"}
        assert counters["acks"] == len(dict(numbers))  # one to each sender, for its last frame
        assert loaded.ports[0].maps.peers["received"].sum() == len(numbers)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: one bank")
def test_each_cpu_has_a_bank_and_the_process_adds_them_up() -> None:
    cpus = sorted(os.sched_getaffinity(1))
    try:
        with small() as loaded:
            for cpu, data in zip(cycle(cpus), loaded.frames_to(0)):
                os.sched_setaffinity(0, {cpu})
                loaded.link(0, data)
            port = loaded.ports[0]
            banks = port.maps.accumulators.reshape(port.placement.banks, -1).any(axis=1)
            assert banks[cpus].all() or len(loaded.frames_to(0)) < len(cpus)
            np.testing.assert_array_equal(loaded.results(0), loaded.expected(0))
    finally:
        os.sched_setaffinity(0, {cpus[0]})


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: all are at home")
def test_frames_are_handed_to_the_cpu_that_aggregates() -> None:
    here = min(os.sched_getaffinity(0))
    with small(ranks=(0, 1), processing="pinned") as loaded:
        for rank, port in loaded.ports.items():
            frames = loaded.frames_to(rank)
            verdicts = {loaded.link(rank, data).retval for data in frames}
            if port.placement.cpu == here:
                assert verdicts <= {XDP_DROP, XDP_TX}
                assert "remote" not in loaded.counters(rank)
            else:
                assert verdicts == {XDP_REDIRECT}
                assert loaded.counters(rank) == {"remote": len(frames)}
                continue  # programs of CPU maps have no test runs
            np.testing.assert_array_equal(loaded.results(rank), loaded.expected(rank))


def test_duplicates_change_nothing_and_are_answered(loaded) -> None:
    loaded.open(0, SEQ)
    numbers = loaded.numbers_to(0)
    for sender, number in numbers:
        loaded.link(0, loaded.embed(sender, number, 0))
    before = loaded.memory(0)
    for sender, number in numbers:
        run = loaded.link(0, loaded.embed(sender, number, 0, attempt=1))
        assert run.retval == XDP_TX
        answer = said(run.data)
        assert (answer.header.sender, answer.header.number, answer.header.seq) == (0, number, SEQ)
        assert answer.destination.ip == loaded.groups[0].members[sender].ip
        assert bits(answer) == {n for s, n in numbers if s == sender}
    assert changes(loaded, 0, before) == {"peers"}  # which records that they were heard
    assert loaded.counters(0)["duplicate"] == len(numbers)
    assert loaded.counters(0)["acks"] == len(numbers) + len(dict(numbers))
    np.testing.assert_array_equal(loaded.results(0), loaded.expected(0))


def test_an_acknowledgement_says_which_frames_around_one_have_arrived(long) -> None:
    """Frames arrive in any order, with gaps. The acknowledgement covers the words from twelve
    before the frame's to three after it.
    """
    long.open(0, SEQ)
    random = np.random.default_rng(0)
    numbers = [number for _, number in long.numbers_to(0)]
    assert len(numbers) > 32 * 20
    come: set[int] = set()
    for number in random.permutation(numbers).tolist():
        asked = random.random() < 0.1
        run = long.link(0, long.embed(1, number, 0, flags=ASK * asked))
        come.add(number)
        asked |= len(come) == len(numbers)
        assert run.retval == (XDP_TX if asked else XDP_DROP)
        if asked:
            first = 32 * max(number // 32 - ACK_BEHIND, 0)
            assert bits(said(run.data)) == {
                other for other in come if first <= other < first + 32 * 16
            }
    np.testing.assert_array_equal(long.results(0), long.expected(0))


def test_frames_of_the_previous_exchange_are_acknowledged_all_at_once(loaded) -> None:
    loaded.open(0, SEQ)
    before = loaded.memory(0)
    for sender, number in loaded.numbers_to(0):
        run = loaded.link(0, loaded.embed(sender, number, 0, seq=SEQ - 1))
        assert run.retval == XDP_TX
        answer = said(run.data)
        assert answer.header.seq == SEQ - 1
        assert (answer.payload == 0xFFFFFFFF).all()
    assert changes(loaded, 0, before) == {"peers"}


def changes(loaded: Loaded, rank: int, before: dict[str, bytes]) -> set[str]:
    """The maps that have changed."""
    return {name for name, data in loaded.memory(rank).items() if data != before[name]}


def test_no_exchange_precedes_the_first(loaded) -> None:
    loaded.open(0, 1)
    assert loaded.link(0, loaded.embed(1, 0, 0, seq=0)).retval == XDP_DROP
    assert loaded.counters(0) == {"bad_seq": 1}


@pytest.mark.parametrize("parts", [False, True])
def test_rows_of_hubs_are_added_slice_by_slice(parts) -> None:
    with hub(parts) as loaded:
        port, tables = loaded.ports[0], loaded.tables[0]
        assert tables.hubs == 2 * loaded.layout.parts
        slices = -(-700 // tables.slice) * tables.hubs
        verdicts = [loaded.link(0, data).retval for data in loaded.frames_to(0)]
        assert verdicts.count(XDP_REDIRECT) in range(
            1, tables.hubs + 1
        )  # to the doorbell, to continue there
        assert loaded.events(0) == []
        assert port.maps.control.owed == slices > tables.hubs
        edges = loaded.counters(0)["edges"]
        assert edges == 40 * loaded.layout.parts
        for done in range(1, slices + 1):
            assert port.process.wait(0) is Waited.TIME_UP
            run = loaded.work(0)
            assert run.retval == XDP_REDIRECT
            now = loaded.counters(0)["edges"]
            assert 0 < now - edges <= tables.slice
            edges = now
            assert port.maps.control.owed == slices - done
        assert loaded.events(0) == [SEQ]
        assert loaded.counters(0)["slices"] == slices
        assert loaded.work(0).retval == XDP_DROP
        np.testing.assert_array_equal(loaded.results(0), loaded.expected(0))


def test_a_frame_of_a_hub_that_asks_is_acknowledged_and_work_on_it_goes_on() -> None:
    """The acknowledgement goes to the link and to the doorbell, one copy each; work continues at
    the doorbell.
    """
    with hub(False) as loaded:
        run = loaded.link(0, loaded.embed(1, 0, 0, flags=ASK))
        assert run.retval == XDP_REDIRECT
        assert bits(said(run.data)) == {0}
        copy = loaded.run(0, "pinch_doorbell", run.data)
        assert copy.retval == XDP_REDIRECT
        assert loaded.counters(0)["slices"] == 1


def test_hubs_of_an_exchange_that_is_over_are_left_alone() -> None:
    with hub(False) as loaded:
        loaded.link(0, loaded.embed(1, 0, 0))
        loaded.ports[0].process.open(SEQ + 1)
        loaded.ports[0].maps.control.queued = 1
        before = loaded.memory(0)
        assert loaded.work(0).retval == XDP_DROP
        assert loaded.memory(0) == before


def in_flight(loaded: Loaded, rank: int) -> int:
    return int(loaded.ports[rank].maps.flows["in_flight"].sum())


def test_acknowledgements_at_the_sender(long) -> None:
    """Each frame counts once, in whatever order acknowledgements arrive; an acknowledged frame is
    no longer in flight.
    """
    long.open(1, SEQ)
    port, count = long.ports[1], long.publish(1)
    meet(port, np.zeros(2, np.int64))
    port.maps.flows["next"], port.maps.flows["in_flight"] = count, count
    have: set[int] = set()
    for last in (40, 20, 900, count - 1):
        new = {
            number
            for number in range(last + 1)
            if number // 32 >= last // 32 - ACK_BEHIND and number % 7
        } | have
        run = long.link(1, ack(port, 0, last, sorted(new)))
        window = {
            n
            for n in new
            if max(last // 32 - ACK_BEHIND, 0) <= n // 32 < max(last // 32 - ACK_BEHIND, 0) + 16
        }
        have |= window
        assert port.maps.control.acked == port.maps.peers["acked"][0] == len(have)
        assert in_flight(long, 1) == count - len(have)
        assert set(range(count)) - set(port.sending.lacking(0).tolist()) == have
        # There are gaps before it, so it goes on as a kick.
        assert run.retval == XDP_REDIRECT
        assert decode(run.data).header.kind == PinchKind.DOORBELL
    assert long.events(1) == []
    for last in (*range(31, count, 32), count - 1):
        long.link(1, ack(port, 0, last, range(count)))
    assert (port.maps.control.acked, in_flight(long, 1), len(port.sending.lacking(0))) == (
        count,
        0,
        0,
    )
    assert long.events(1) == [SEQ]
    assert port.process.wait(0) is Waited.COMPLETE
    before = long.memory(1)
    before.pop("peers")
    long.link(1, ack(port, 0, 5, range(count)))  # once more
    after = long.memory(1)
    after.pop("peers")
    assert after == before


def test_an_acknowledgement_counts_only_frames_for_its_sender(loaded) -> None:
    loaded.open(1, SEQ)
    port, count = loaded.ports[1], loaded.publish(1)
    put_out(loaded, 1, range(count))
    mine = [number for sender, number in loaded.numbers_to(0) if sender == 1]
    loaded.link(1, ack(port, 0, mine[-1], range(count)))
    assert port.maps.control.acked == len(mine)
    assert port.sending.lacking(0).size == 0
    assert port.sending.lacking(2).size == len(
        [number for sender, number in loaded.numbers_to(2) if sender == 1]
    )


def test_kicks_are_forwarded_and_extended(loaded) -> None:
    loaded.open(1, SEQ)
    loaded.publish(1)
    loaded.ports[1].maps.flows["next"] = 0
    mine = [number for sender, number in loaded.numbers_to(0) if sender == 1]
    kicked = loaded.link(1, ack(loaded.ports[1], 0, mine[0], mine[:1]))
    assert kicked.retval == XDP_REDIRECT
    run = loaded.run(1, "pinch_doorbell", kicked.data)
    assert run.retval == XDP_PASS
    assert len(run.data) == FRAME_BYTES + max(loaded.layout.payload, 128)


def test_a_kick_becomes_frames_to_the_ranks_that_need_them(loaded) -> None:
    """All frames are sent, complete and addressed, so that receivers compute the right sums."""
    for rank in range(3):
        loaded.open(rank, SEQ)
    for rank, port in loaded.ports.items():
        count = loaded.publish(rank)
        with loaded.wire() as tap:
            kick = first_kick(port)
            while int(port.maps.flows["next"].max()) < count:
                before = int(port.maps.flows["next"].max())
                in_flight_before = in_flight(loaded, rank)
                assert loaded.run(rank, "pinch_send", kick).retval == SHOT
                now = int(port.maps.flows["next"].max())
                assert before < now <= before + BATCH
                assert in_flight(loaded, rank) - in_flight_before == int(
                    port.maps.frames["copies"][before:now].sum()
                )
                port.maps.flows["in_flight"] = 0
            sent = received(tap)
        assert (
            loaded.counters(rank)["sent"]
            == len(sent)
            == int(port.maps.frames["copies"][:count].sum())
        )
        assert loaded.counters(rank)["sent_bytes"] == sum(map(len, sent))
        for data in sent:
            found = decode(data)
            to = int(found.destination.ip.rpartition(".")[2]) - 1
            number = found.header.number
            fields = {
                "flags": int(port.maps.frames["ask"][number]) >> to & 1,
                "serial": found.header.serial,
            }
            exact = loaded.embed(rank, number, to, **fields)
            assert data[: len(exact)] == exact
            assert len(data) == max(len(exact), LEAST_BYTES)
            loaded.link(to, data)
    for rank in range(3):
        np.testing.assert_array_equal(loaded.results(rank), loaded.expected(rank))


def test_no_more_is_sent_than_the_window_has_room_for(long) -> None:
    long.open(1, SEQ)
    port, kick = long.ports[1], first_kick(long.ports[1])
    count = long.publish(1)
    window = int(port.maps.control.window)
    with long.wire() as tap:
        for _ in range(window):
            long.run(1, "pinch_send", kick)
        assert in_flight(long, 1) == len(received(tap)) == window < count
        long.link(1, ack(port, 0, 4, range(5)))
        long.run(1, "pinch_send", kick)
        assert [decode(data).header.number for data in received(tap)] == list(
            range(window, window + 5)
        )


def sent_records(loaded: Loaded, rank: int) -> np.ndarray:
    return loaded.ports[rank].maps.by_name["pinch_sent"].view(dtype("pinch_sent")).reshape(-1)


def put_out(loaded: Loaded, rank: int, serials: range) -> None:
    """Make it look as if all frames had been sent once, with these numbers on the stream; negative
    numbers are from before the wrap.
    """
    port, records = loaded.ports[rank], sent_records(loaded, rank)
    port.maps.flows["next"] = len(serials)
    records["seq"][: len(serials)] = port.process.seq
    records["serial"][: len(serials)] = np.array(serials) & U32
    records["stream"], records["attempt"], records["sent_us"] = STREAM, 0, 1


def test_retransmissions_go_to_the_ranks_that_lack_a_frame(loaded) -> None:
    loaded.open(1, SEQ)
    port, kick = loaded.ports[1], first_kick(loaded.ports[1])
    count = loaded.publish(1)
    to_both = next(number for number in range(count) if port.maps.frames["to"][number] == 0b101)
    with loaded.wire() as tap:
        port.maps.control.met = 0
        for flag in (0, WR_ASK):
            port.sending.post(0, np.array([to_both | flag]))
        loaded.run(1, "pinch_send", kick)
        assert (
            received(tap) == []
        )  # frames that have not been sent are neither retransmitted nor asked about
        put_out(loaded, 1, range(count))
        for lacking in (2, 1, 0):
            for flag, kind in ((WR_ASK, PinchKind.ASK), (0, PinchKind.EMBED)):
                port.sending.post(0, np.array([to_both | flag]))
                loaded.run(1, "pinch_send", kick)
                sent = [decode(data) for data in received(tap)]
                assert len(sent) == lacking
                asked = 0 if flag else ASK
                assert all(
                    (one.header.number, one.header.flags, one.header.kind) == (to_both, asked, kind)
                    for one in sent
                )
            loaded.link(1, ack(port, 2 if lacking == 2 else 0, to_both, [to_both]))
        assert port.maps.flows["sq_head"].tolist() == port.maps.flows["sq_tail"].tolist() == [8]
        port.sending.post(0, np.array([to_both]))  # for an exchange that is over
        port.process.open(SEQ + 1)
        loaded.run(1, "pinch_send", kick)
        assert received(tap) == []
    assert (loaded.counters(1)["asks"], loaded.counters(1)["resent"]) == (3, 3)


def test_each_retransmission_and_ask_has_its_own_attempt(loaded) -> None:
    """Both increment the attempt, which wraps."""
    loaded.open(1, SEQ)
    port = loaded.ports[1]
    put_out(loaded, 1, range(loaded.publish(1)))
    sent_records(loaded, 1)["attempt"] = 253
    with loaded.wire() as tap:
        for attempt in (254, 255, 0, 1):
            port.sending.post(0, np.array([0 if attempt % 2 else WR_ASK]))
            loaded.run(1, "pinch_send", first_kick(port))
            assert {decode(data).header.attempt for data in received(tap)} == {attempt}
    assert loaded.counters(1)["asks"] == loaded.counters(1)["resent"] > 0


@pytest.mark.parametrize("have", [False, True])
def test_a_rank_that_is_asked_says_which_frames_have_arrived(loaded, have) -> None:
    """It changes nothing except that the sender has been heard; the answer names the transmission
    that asked.
    """
    loaded.open(0, SEQ)
    if have:
        loaded.link(0, loaded.embed(1, 0, 0))
    before, heard = loaded.memory(0), int(loaded.ports[0].maps.peers["heard"][1])
    for seq in (SEQ, SEQ - 1):
        fields = {"number": 0, "seq": seq, "stream": 7, "serial": 77}
        run = loaded.link(
            0, frame(loaded.ports[0], np.empty(0, np.uint64), 1, PinchKind.ASK, **fields)
        )
        assert run.retval == XDP_TX
        answer = said(run.data)
        assert (answer.header.number, answer.header.stream, answer.header.serial) == (0, 7, 77)
        assert (
            (answer.payload == 0xFFFFFFFF).all()
            if seq < SEQ
            else bits(answer) == ({0} if have else set())
        )
    assert changes(loaded, 0, before) == {"peers"}
    assert loaded.ports[0].maps.peers["heard"][1] == heard + 2


def test_a_frame_overtaken_on_its_stream_is_lost(long) -> None:
    """It is retransmitted at once; frames sent after the acknowledged one, or on another stream,
    are not.
    """
    long.open(1, SEQ)
    port = long.ports[1]
    count = long.publish(1)
    put_out(long, 1, range(-60, count - 60))
    records = sent_records(long, 1)
    records["serial"][30], records["stream"][40] = 2, STREAM + 1
    have = set(range(64)) - {20, 30, 40, 50, 62}
    run = long.link(1, ack(port, 0, 63, sorted(have), serial=1))
    assert run.retval == XDP_REDIRECT
    kick = run.data.ljust(FRAME_BYTES + long.layout.payload, b"\0")
    with long.wire() as tap:
        long.run(1, "pinch_send", kick)
        again = [decode(data).header for data in received(tap)]
        assert [(header.number, header.attempt, header.flags) for header in again] == [
            (20, 1, ASK),
            (50, 1, ASK),
        ]
        assert long.counters(1)["gaps"] == long.counters(1)["resent"] == 2
        long.run(1, "pinch_send", kick)
        assert received(tap) == []  # that was before they were retransmitted
        later = ack(port, 0, 63, sorted(have), serial=int(records["serial"][50]) + 1)
        long.run(1, "pinch_send", long.link(1, later).data.ljust(len(kick), b"\0"))
        assert [decode(data).header.number for data in received(tap)] == [20, 30, 50, 62]


def test_round_trips_are_those_of_the_transmission_that_was_answered(long) -> None:
    long.open(1, SEQ)
    port = long.ports[1]
    put_out(long, 1, range(10, 10 + long.publish(1)))
    now = time.monotonic_ns() // 1000 & 0xFFFFFFFF
    sent_records(long, 1)["sent_us"] = (now - 1_000_000) & 0xFFFFFFFF
    samples, total = int(port.maps.control.rtt_samples), int(port.maps.control.rtt_sum_us)
    long.link(1, ack(port, 0, 3, range(4), serial=9))
    long.link(1, ack(port, 0, 4, range(5), serial=14, stream=STREAM + 1))
    assert port.maps.control.rtt_samples == samples
    long.link(1, ack(port, 0, 5, range(6), serial=15))
    assert port.maps.control.rtt_samples == samples + 1
    assert 1_000_000 <= port.maps.control.rtt_sum_us - total < 60_000_000


def test_frames_of_other_kinds_do_nothing_at_the_doorbell(loaded) -> None:
    port = loaded.ports[0]
    assert loaded.run(0, "pinch_execute", frame(port, np.zeros(2, np.uint64), 1)).retval == XDP_DROP


def test_late_acknowledgements_of_the_previous_exchange_are_not_counted(loaded) -> None:
    """Not even if a program has read the sequence number before the process entered the next
    exchange, and the wanted frames after that.
    """
    loaded.open(1, SEQ)
    port, count = loaded.ports[1], loaded.publish(1)
    acked = port.maps.by_name["pinch_acked"].view(np.uint64)
    port.process.open(SEQ + 1)
    port.sending.address(loaded.bundles[1])
    assert set((acked[: port.maps.acked_words * 3] >> np.uint64(32)).ravel().tolist()) == {SEQ + 1}
    loaded.link(1, ack(port, 0, 0, range(count), seq=SEQ))
    assert port.maps.control.acked == 0


def test_opening_an_exchange_waits_for_programs_that_send(loaded) -> None:
    loaded.open(1, SEQ)
    port = loaded.ports[1]
    assert port.maps.control.sending == 0
    port.maps.control.sending = 1
    opening = threading.Thread(target=port.process.open, args=(SEQ + 1,))
    opening.start()
    wait_until(lambda: port.maps.control.progress >> 32 == SEQ + 1)
    port.maps.flows["next"] = 7  # the last thing that opening does
    assert opening.is_alive()
    port.maps.control.sending = 0
    opening.join(10)
    assert not opening.is_alive()
    assert not port.maps.flows["next"].any()


QUARTER = 1 << 30


def walk(loaded: Loaded, rank: int, seq: int) -> None:
    """Let a rank open exchanges until it is in one far ahead; only the exchanges at quarters of the
    range are opened, as no others matter.
    """
    port = loaded.ports[rank]
    now = port.process.seq
    while now // QUARTER != seq // QUARTER or now > seq:
        now = (now // QUARTER + 1) % 4 * QUARTER
        port.process.open(now - 1 if now else 0xFFFFFFFF)
        now = max(now, 2)
        port.process.open(now)
    if seq > now:
        port.process.open(seq)


@pytest.mark.parametrize("later", [10 + (1 << 31), 3 * QUARTER, 7])
def test_words_that_were_last_used_long_ago_are_not_stale(loaded, later) -> None:
    """With a cache, a word of a bitmap may stay unused for half of all sequence numbers, or for all
    of them.
    """
    loaded.open(0, 9)
    loaded.seq = 9
    for data in loaded.frames_to(0):
        loaded.link(0, data)
    assert loaded.ports[0].maps.control.received == len(loaded.numbers_to(0))
    walk(loaded, 0, later)
    loaded.seq = later
    loaded.numbers(0).reset(loaded.ports[0].maps.accumulators)
    for data in loaded.frames_to(0):
        loaded.link(0, data)
    loaded.seq = SEQ
    assert loaded.ports[0].maps.control.received == len(loaded.numbers_to(0))
    np.testing.assert_array_equal(loaded.results(0), loaded.expected(0))


def test_forgotten_words_belong_to_neither_of_two_exchanges(loaded) -> None:
    port, maps = loaded.ports[1], loaded.ports[1].maps.by_name
    loaded.open(1, QUARTER - 1)
    kept, old = QUARTER - 1, QUARTER - 2
    bitmaps = [maps[f"pinch_{name}"].view().ravel() for name in ("seen", "acked", "hub_queue")]
    for bitmap in bitmaps:
        bitmap[:] = word_of(old, 7)
        bitmap[0] = word_of(kept, 7)
    port.maps.peers["ours"], port.maps.peers["theirs"] = (
        [word_of(old, 3), word_of(kept, 3)],
        [
            word_of(QUARTER, 3),
            1 << 32,
        ],
    )
    records = sent_records(loaded, 1)
    records["seq"], records["seq"][0] = old, kept
    port.process.open(QUARTER)
    for bitmap in bitmaps:
        assert int(bitmap[0]) == word_of(kept, 7)
        assert (bitmap[1:] == word_of(kept, 0)).all()
    assert (port.maps.peers["ours"] == [0, word_of(kept, 3)]).all()
    assert (port.maps.peers["theirs"] == [word_of(QUARTER, 3), 0]).all()
    assert records["seq"].tolist() == [kept] + [0] * (len(records) - 1)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: all are at home")
@pytest.mark.parametrize("asks", [False, True])
def test_a_frame_that_may_have_overtaken_ones_handed_to_another_cpu_shows_no_losses(asks) -> None:
    """Its acknowledgement names no stream until the frames that were handed over have been
    processed, or the exchange is over.
    """
    home, other = sorted(os.sched_getaffinity(1))[:2]
    with small(ranks=(0,), processing="pinned") as loaded:
        port, (first, second) = loaded.ports[0], loaded.numbers_to(0)[:2]
        assert port.placement.cpu == home

        def stream() -> int:
            data = loaded.embed(*second, 0, flags=ASK, stream=3)
            if asks:
                fields = {"number": second[1], "seq": SEQ, "stream": 3}
                data = frame(port, np.empty(0, np.uint64), second[0], PinchKind.ASK, **fields)
            run = loaded.link(0, data)
            assert run.retval == XDP_TX
            return said(run.data).header.stream

        assert stream() == 3
        os.sched_setaffinity(0, {other})
        assert loaded.link(0, loaded.embed(*first, 0)).retval == XDP_REDIRECT
        os.sched_setaffinity(0, {home})
        assert (port.maps.control.handed, port.maps.control.taken) == (1, 0)
        assert stream() == NO_STREAM
        port.maps.control.taken = (
            1  # as the program on the other CPU does, which does not support test runs
        )
        assert stream() == 3
        port.maps.control.taken = 0
        loaded.open(0, SEQ)
        assert stream() == 3
