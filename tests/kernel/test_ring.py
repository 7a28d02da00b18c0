"""The ring's programs packet by packet: what comes in, the verdict, what goes out, and what is counted."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from testbed.kernel import XDP_DROP, XDP_REDIRECT, XDP_TX
from testbed.protocol.memory import ORDERS, PARKING, PARKING_TRIES, Event, EventKind, Order
from testbed.protocol.scapy_ring import RingHeader
from testbed.protocol.wire import DOUBT, FRAME_BYTES, PORT, Kind, checksum, decode, seal
from tests.kernel.packets import (
    GENERATION,
    LENGTH,
    PEERS,
    RANK,
    TOTAL,
    WINDOW,
    bell,
    input_of,
    loaded,
    packet,
    prepare,
    reduce,
    result,
    total_of,
)

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("one_cpu")]

SENT = {"sent": 1, "sent_bytes": FRAME_BYTES + LENGTH}


@pytest.fixture(scope="module")
def both() -> Iterator[tuple]:
    with loaded() as made:
        yield made


@pytest.fixture
def kernel(both):
    prepare(*both)
    return both[0]


@pytest.fixture
def native(both, kernel):
    return both[1]


def checksum_of(data: bytes) -> int:
    return decode(data).header.checksum


def changes(counters: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in counters.items() if value}


@dataclass
class Row:
    """A packet and what becomes of it.

    :param counted: All counters that change, those of a frame sent included where there is a reply.
    :param reply: Fields of what goes out, if anything does.
    :param to: Rank that it goes to.
    :param words: Its payload.
    :param before: Packets that have come in before; what they count is not looked at.
    """

    name: str
    data: bytes
    counted: dict[str, int] = field(default_factory=dict)
    reply: dict[str, int] | None = None
    to: int = RANK + 1
    words: np.ndarray | None = None
    before: tuple[bytes, ...] = ()

    def __str__(self) -> str:
        return self.name


WRONG = np.uint64(1) + total_of(0)
EARLY = reduce(0, generation=GENERATION + 1)
ROWS = [
    # Not the ring's, or not this group's.
    Row("too short for headers", reduce(0)[: FRAME_BYTES - 1]),
    Row("another port", packet(port=PORT + 1, kind=Kind.REDUCE)),
    Row("another magic", reduce(0, magic=0x4153)),
    Row("another cookie", reduce(0, cookie=1), {"bad_cookie": 1}),
    Row("another version", reduce(0, version=2), {"bad_cookie": 1}),
    # What cannot be.
    Row("no kind", reduce(0, kind=0), {"bad_kind": 1}),
    Row("an unknown kind", reduce(0, kind=6), {"bad_kind": 1}),
    Row("a bell by the link", reduce(0, kind=Kind.BELL), {"bad_kind": 1}),
    Row("no generation", reduce(0, generation=0), {"bad_generation": 1}),
    Row("generation of long ago", reduce(0, generation=GENERATION - 2), {"bad_generation": 1}),
    Row("generation after the next", reduce(0, generation=GENERATION + 2), {"bad_generation": 1}),
    Row("result of the next generation", result(0, generation=GENERATION + 1), {"bad_generation": 1}),
    Row("result of the last generation", result(0, generation=GENERATION - 1), {"bad_generation": 1}),
    Row("chunk beyond the tensor", reduce(6), {"bad_chunk": 1}),
    Row("chunk beyond the maps", reduce(9, generation=GENERATION + 1), {"bad_chunk": 1}),
    Row("request for a chunk beyond the tensor", reduce(7, kind=Kind.REQUEST), {"bad_chunk": 1}),
    Row("length of no block", reduce(0, length=0), {"bad_length": 1}),
    Row("length of broken blocks", reduce(0, length=LENGTH - 8), {"bad_length": 1}),
    Row("length of another tensor", reduce(0, length=LENGTH // 2), {"bad_length": 1}),
    Row("length beyond a chunk", reduce(0, length=2 * LENGTH), {"bad_length": 1}),
    Row("length that is not there", reduce(0)[:-8], {"bad_length": 1}),
    Row("length that is not there, of a last hop", reduce(2)[:-8], {"bad_length": 1}),
    Row("length that is not there, of a result", result(0)[:-8], {"bad_length": 1}),
    Row("length that is not there, to be parked", reduce(0, generation=GENERATION + 1)[:-8], {"bad_length": 1}),
    Row("another tensor", reduce(0, tag=1), {"bad_tensor": 1}),
    Row("another tensor's result", result(0, tag=1), {"bad_tensor": 1}),
    Row("hop that skips a rank", reduce(0, hop=2), {"bad_rank": 1}),
    Row("own chunk on its first lap", reduce(1, hop=3), {"bad_rank": 1}),
    Row("a sender that is no neighbour", reduce(0, source=2), {"bad_rank": 1}),
    Row("a result of a sender that is no neighbour", result(0, source=2), {"bad_rank": 1}),
    Row("result that ends nowhere", result(0, last=3), {"bad_rank": 1}),
    Row("result that has gone too far", result(0, hop=3), {"bad_rank": 1}),
    Row("request for another rank's chunk", reduce(0, kind=Kind.REQUEST), {"bad_rank": 1}),
    Row("request in another rank's name", packet(kind=Kind.REQUEST, chunk=1, last=2, source=0), {"bad_rank": 1}),
    Row("probe in another rank's name", packet(kind=Kind.PROBE, last=2, source=0), {"bad_rank": 1}),
    Row("answer in another rank's name", packet(kind=Kind.ALIVE, last=2, source=0), {"bad_rank": 1}),
    Row("probe by nobody", packet(kind=Kind.PROBE, last=3), {"bad_rank": 1}),
    Row("wrong sum at the end of lap one", reduce(2, checksum=1), {"bad_checksum": 1}),
    Row("wrong sum on lap two", result(0, checksum=1), {"bad_checksum": 1}),
    Row(
        "wrong lanes on lap two",
        packet(WRONG, kind=Kind.RESULT, last=1, hop=2, checksum=checksum_of(result(0))),
        {"bad_checksum": 1},
    ),
    # Lap one.
    Row(
        "lap one",
        reduce(0),
        SENT,
        {"kind": Kind.REDUCE, "chunk": 0, "hop": 2, "generation": GENERATION},
        words=input_of(0, 0) + input_of(1, 0),
    ),
    Row(
        "the end of lap one",
        reduce(2),
        SENT | {"stored": 1},
        {"kind": Kind.RESULT, "chunk": 2, "hop": 1, "last": 0, "flags": 1, "attempt": 0},
        words=total_of(2),
    ),
    Row(
        "lap one of a chunk that is done",
        reduce(0, attempt=1),
        SENT | {"answered": 1},
        {"kind": Kind.RESULT, "chunk": 0, "hop": 1, "last": 0, "flags": 0, "attempt": 1},
        words=total_of(0),
        before=(result(0),),
    ),
    Row("lap one of the next generation", reduce(0, generation=GENERATION + 1), {"parked": 1}),
    # Lap two.
    Row(
        "lap two ends, and the token becomes the next chunk",
        result(0),
        SENT | {"stored": 1},
        {"kind": Kind.REDUCE, "chunk": 4, "hop": 1, "attempt": 0, "flags": 0},
        words=input_of(RANK, 4),
    ),
    Row(
        "lap two goes on",
        result(1),
        SENT | {"stored": 1},
        {"kind": Kind.RESULT, "chunk": 1, "hop": 2, "last": 2, "flags": 1},
        words=total_of(1),
    ),
    Row("lap two ends, and no chunk is left", result(3), {"stored": 1}, before=(result(0),)),
    Row("lap two of a chunk that is done, at its end", result(0, flags=0), {"duplicate": 1}, before=(result(0),)),
    Row(
        "lap two of a chunk that is done goes on",
        result(1, flags=0),
        SENT | {"duplicate": 1},
        {"kind": Kind.RESULT, "chunk": 1, "hop": 2, "last": 2, "flags": 0},
        words=total_of(1),
        before=(result(1),),
    ),
    # Requests and probes.
    Row(
        "request for a chunk under way",
        packet(kind=Kind.REQUEST, chunk=1, last=2, source=2),
        SENT | {"resent": 1},
        {"kind": Kind.REDUCE, "chunk": 1, "hop": 1, "attempt": 1},
        words=input_of(RANK, 1),
    ),
    Row(
        "request for a chunk that is done",
        packet(kind=Kind.REQUEST, chunk=1, last=2, source=2),
        SENT | {"resent": 1, "answered": 1},
        {"kind": Kind.RESULT, "chunk": 1, "hop": 1, "last": 0, "attempt": 1},
        words=total_of(1),
        before=(result(1),),
    ),
    Row(
        "request in doubt for a chunk that is done, before the process has looked",
        packet(kind=Kind.REQUEST, chunk=1, last=2, source=2, flags=DOUBT),
        SENT | {"resent": 1},
        {"kind": Kind.REDUCE, "chunk": 1, "hop": 1, "attempt": 1, "flags": DOUBT},
        words=input_of(RANK, 1),
        before=(result(1),),
    ),
    Row(
        "lap one in doubt of a chunk that is done, before the process has looked",
        reduce(2, flags=DOUBT),
        SENT,
        {"kind": Kind.RESULT, "chunk": 2, "hop": 1, "last": 0, "flags": 0},
        words=total_of(2),
        before=(reduce(2),),
    ),
    Row("request for a chunk not launched", packet(kind=Kind.REQUEST, chunk=4), {"bad_generation": 1}),
    Row("a frame that is parked already", EARLY, {"duplicate": 1}, before=(EARLY,)),
    Row(
        "probe",
        packet(kind=Kind.PROBE, last=2, generation=0, tag=0, source=2),
        {"sent": 1, "sent_bytes": FRAME_BYTES},
        {"kind": Kind.ALIVE, "last": RANK, "generation": GENERATION, "chunk": 1, "length": 0},
        before=(result(0),),
    ),
]


def assert_sent(data: bytes, to: int, fields: dict[str, int], words: np.ndarray | None) -> None:
    """Lengths and both checksums as scapy computes them by itself."""
    seen = Ether(data)
    assert {name: seen[RingHeader].getfieldval(name) for name in fields} == fields
    assert (seen.src, seen.dst) == (PEERS[RANK].mac, PEERS[to].mac)
    assert (seen[IP].src, seen[IP].dst) == (PEERS[RANK].ip, PEERS[to].ip)
    length = seen[RingHeader].length
    assert (seen[IP].len, seen[UDP].len) == (FRAME_BYTES - 14 + length, FRAME_BYTES - 34 + length)
    check = seen[IP].chksum
    del seen[IP].chksum
    assert IP(bytes(seen[IP])).chksum == check
    if words is not None:
        assert data[FRAME_BYTES:] == words.tobytes()
        assert seen[RingHeader].checksum == checksum(words) + seal(decode(data).header) & (1 << 64) - 1


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_packet(kernel, row) -> None:
    for data in row.before:
        kernel.run("ring_link", data)
    before = kernel.counters()
    run = kernel.run("ring_link", row.data)
    assert run.retval == (XDP_DROP if row.reply is None else XDP_TX)
    counted = {name: value - before[name] for name, value in kernel.counters().items()}
    assert changes(counted) == row.counted
    if row.reply is not None:
        to = row.reply["last"] if row.reply["kind"] == Kind.PROBE else row.to
        assert_sent(run.data, to, row.reply, row.words)


def test_every_reason_has_a_row() -> None:
    reasons = {name for row in ROWS for name in row.counted if name.startswith("bad_")}
    assert len(reasons) == 8


@pytest.mark.parametrize(
    ("order", "verdict", "counted", "to", "reply"),
    [
        (None, XDP_DROP, {}, None, None),
        ((Order.LAUNCH, GENERATION, 4, 0), XDP_REDIRECT, SENT, 2, {"kind": Kind.REDUCE, "chunk": 4, "attempt": 0}),
        ((Order.LAUNCH, GENERATION, 1, 3), XDP_REDIRECT, SENT | {"resent": 1}, 2, {"chunk": 1, "attempt": 3}),
        ((Order.LAUNCH, GENERATION - 1, 1, 0), XDP_DROP, {"bad_generation": 1}, None, None),
        ((Order.LAUNCH, GENERATION, TOTAL, 0), XDP_DROP, {"bad_generation": 1}, None, None),
        ((Order.REQUEST, GENERATION - 1, 3, 0), XDP_DROP, {"bad_generation": 1}, None, None),
        (
            (Order.REQUEST, GENERATION, 3, 2),
            XDP_REDIRECT,
            SENT | {"resent": 1},
            0,
            {"kind": Kind.REQUEST, "chunk": 3, "last": RANK, "attempt": 1, "hop": 0, "length": LENGTH},
        ),
        (
            (Order.PROBE, 0, 0, 7),
            XDP_REDIRECT,
            {"sent": 1, "sent_bytes": FRAME_BYTES},
            0,
            {"kind": Kind.PROBE, "last": RANK, "attempt": 7},
        ),
        ((Order.PROBE, 0, 32, 0), XDP_DROP, {}, None, None),
        ((Order.REPLAY, GENERATION, 0, 0), XDP_DROP, {}, None, None),
        ((Order.REPLAY, GENERATION, PARKING, 0), XDP_DROP, {"bad_chunk": 1}, None, None),
        ((9, GENERATION, 0, 0), XDP_DROP, {"bad_kind": 1}, None, None),
    ],
)
def test_order(kernel, native, order, verdict, counted, to, reply) -> None:
    if order is not None:
        native.order(*order)
    run = kernel.run("ring_order", bell())
    assert run.retval == verdict
    assert changes(kernel.counters()) == counted
    assert native.waiting() == []
    if reply is not None:
        assert_sent(run.data, to, reply, None)


@pytest.mark.parametrize(
    ("data", "counted"), [(bell(cookie=1), {"bad_cookie": 1}), (reduce(0), {"bad_kind": 1}), (bell()[:79], {})]
)
def test_what_is_no_bell_takes_no_order(kernel, native, data, counted) -> None:
    native.order(Order.LAUNCH, GENERATION, 4)
    assert kernel.run("ring_order", data).retval == XDP_DROP
    assert changes(kernel.counters()) == counted
    assert len(native.waiting()) == 1


@pytest.mark.parametrize(("waiting", "verdict"), [(0, XDP_DROP), (1, XDP_REDIRECT), (8, XDP_REDIRECT), (9, XDP_REDIRECT)])
def test_a_bell_is_multiplied_when_orders_wait(kernel, native, waiting, verdict) -> None:
    for _ in range(waiting):
        native.order(Order.PROBE, 0, 0)
    assert kernel.run("ring_bell", bell()).retval == verdict
    assert kernel.run("ring_bell", bell(cookie=0)).retval == XDP_DROP


def test_parked_frames_are_replayed_once_their_input_is_ready(kernel, native) -> None:
    words = input_of(0, 0)
    assert kernel.run("ring_link", reduce(0, generation=GENERATION + 1, attempt=2)).retval == XDP_DROP
    native.begin(GENERATION + 1, TOTAL, LENGTH, 0xBEEF)
    native.publish(GENERATION + 1, 1)  # chunk 0, and none of this rank's own
    assert [entry.kind for entry in native.waiting()] == [Order.REPLAY]
    run = kernel.run("ring_order", bell())
    assert run.retval == XDP_REDIRECT
    assert_sent(run.data, 2, {"kind": Kind.REDUCE, "chunk": 0, "hop": 2, "attempt": 2}, words + input_of(1, 0))
    assert all(parked.state == 0 for parked in kernel.parking)


def test_full_parking_drops() -> None:
    """A chunk has a few slots to wait in; here all of one sort meet in them."""
    step = PARKING // PARKING_TRIES
    chunks = range(0, 3 * step * (PARKING_TRIES + 2), 3 * step)
    with loaded(chunks=1 + max(chunks)) as both:
        kernel, _ = both
        prepare(*both)
        for chunk in chunks:
            assert kernel.run("ring_link", reduce(chunk, generation=GENERATION + 1)).retval == XDP_DROP
        assert changes(kernel.counters()) == {"parked": PARKING_TRIES, "parking_full": 2}


def test_full_queue_of_orders_is_served_in_order(kernel, native) -> None:
    native.control.ordered = native.control.taken = 0xFFFFFFFF - ORDERS // 2
    for index in range(ORDERS):
        native.order(Order.PROBE, 0, 0, index % 256)
    for index in range(ORDERS):
        run = kernel.run("ring_order", bell())
        assert Ether(run.data)[RingHeader].attempt == index % 256
    assert kernel.run("ring_order", bell()).retval == XDP_DROP


def test_process_is_woken_when_enough_is_stored(kernel) -> None:
    kernel.control.wake_at = 2
    kernel.run("ring_link", result(0))
    assert kernel.events() == []
    kernel.run("ring_link", result(1))
    assert kernel.events() == [Event(EventKind.STORED, 0, GENERATION, 0)]
    kernel.run("ring_link", result(3))
    assert kernel.events() == []


def test_answers_to_probes_reach_the_process(kernel) -> None:
    run = kernel.run("ring_link", packet(kind=Kind.ALIVE, last=2, generation=9, chunk=77, source=2))
    assert run.retval == XDP_DROP
    assert kernel.events() == [Event(EventKind.ALIVE, 2, 9, 77)]


def test_round_trips_are_measured_of_chunks_sent_once(kernel) -> None:
    """Karn's rule."""
    kernel.run("ring_link", result(1))
    assert kernel.control.rtt_samples == 1
    assert kernel.control.rtt_sum_us == kernel.control.rtt_max_us
    kernel.run("ring_link", result(4, attempt=1))
    assert kernel.control.rtt_samples == 1


def test_requests_that_follow_too_soon_are_ignored() -> None:
    with loaded() as both:
        kernel, _ = both
        prepare(*both)
        kernel.control.quench_us = 60_000_000
        request = packet(kind=Kind.REQUEST, chunk=1, last=2, source=2)
        assert kernel.run("ring_link", request).retval == XDP_DROP
        assert changes(kernel.counters()) == {}
        kernel.records["sent_us"][1] -= 61_000_000
        assert kernel.run("ring_link", request).retval == XDP_TX
        assert kernel.run("ring_link", request).retval == XDP_DROP
        assert changes(kernel.counters()) == SENT | {"resent": 1}


ACCEPTED = {"end of lap one": reduce(2), "lap two": result(0), "parked": reduce(0, generation=GENERATION + 1)}


@pytest.mark.parametrize("name", ["end of lap one", "lap two", "parked"])
def test_cut_frames_change_nothing(kernel, name) -> None:
    """At every length that a test run takes."""
    before = kernel.snapshot()
    for length in range(14, len(ACCEPTED[name])):
        assert kernel.run("ring_link", ACCEPTED[name][:length]).retval == XDP_DROP
        assert kernel.snapshot() == before, length
    kernel.run("ring_link", ACCEPTED[name])
    assert kernel.snapshot() != before


# Ethertype, IP version and protocol, port; of the ring's header magic, version, kind, cookie, generation, chunk, checksum, hop,
# length, tag; the payload. What is left says nothing about sums: attempt, flags, where lap two ends.
PROTECTED = [12, 13, 14, 23, 36, 37, *range(42, 46), *range(48, 72), 73, *range(76, FRAME_BYTES + LENGTH)]


@pytest.mark.parametrize("name", ["end of lap one", "lap two"])
def test_damaged_frames_change_nothing(kernel, name) -> None:
    """Up to eight bits anywhere in one word: 4,000 frames, none stored, none sent.

    A sum of words does not see two errors that cancel out, hence the one word.
    """
    chance = random.Random(name)
    before = kernel.snapshot()
    for _ in range(2000):
        data = bytearray(ACCEPTED[name])
        word = chance.choice(PROTECTED) // 8
        for place in [place for place in PROTECTED if place // 8 == word]:
            data[place] ^= chance.choice((0, 1 << chance.randrange(8)))
        if data == ACCEPTED[name]:
            continue
        assert kernel.run("ring_link", bytes(data)).retval == XDP_DROP, data.hex()
        assert kernel.snapshot() == before, data.hex()
    assert kernel.run("ring_link", ACCEPTED[name]).retval == XDP_TX


def test_window_of_the_fixture_leaves_a_chunk_to_launch(kernel) -> None:
    """What the rows above rely on."""
    assert kernel.control.next == GENERATION << 32 | WINDOW
