"""The ring's programs packet by packet: the input, the verdict, the output, and the counters."""

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from testbed.kernel import XDP_DROP, XDP_REDIRECT, XDP_TX
from testbed.protocol.ring.liveness import Reason
from testbed.protocol.ring.memory import (
    ANYWHERE,
    EARLY_SLOTS,
    EARLY_TRIES,
    SQ_ENTRIES,
    ResultState,
    Stage,
    WrKind,
    item_of,
)
from testbed.protocol.scapy_layers import RingHeader
from testbed.protocol.sequence import word_of
from testbed.protocol.wire import (
    AGAIN,
    EARLIER,
    ENDED,
    FRAME_BYTES,
    NOTHING,
    PORT,
    RESTART,
    RESULT,
    VERIFIED,
    VERIFIED_ACK,
    VERSION,
    Kind,
    checksum,
    decode,
    frame_seal,
)
from tests.support.kernel.packets import (
    LENGTH,
    PEERS,
    RANK,
    RANKS,
    SEQ,
    TOTAL,
    WINDOW,
    input_of,
    kick,
    loaded,
    nack,
    packet,
    prepare,
    probe,
    reduce,
    result,
    total_of,
)
from tests.support.kernel.reference import KernelRank
from tests.support.native.process import NativeProcess
from tests.support.protocol.network import GROUP

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("one_cpu")]

SENT = {"sent": 1, "sent_bytes": FRAME_BYTES + LENGTH}
SAID = {"sent": 1, "sent_bytes": FRAME_BYTES}
LAUNCHED = item_of(1, 0, Stage.PARTIAL)
"""The frames that the rank has sent when a row starts."""


@pytest.fixture(scope="module")
def load_once() -> Iterator[Callable[[bool], tuple[KernelRank, NativeProcess]]]:
    """Load each way of recovery when a test first needs it: the verifier takes a second."""
    with ExitStack() as stack:
        yield functools.cache(lambda upstream: stack.enter_context(loaded(upstream=upstream)))


@pytest.fixture
def both(request, load_once) -> tuple[KernelRank, NativeProcess]:
    """Ranks recover by `origin`, unless the test says otherwise: only restarts, nacks and stored
    partial sums depend on it.
    """
    return load_once(getattr(request, "param", False))


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
    """A packet, and what the programs do with it.

    :param counted: All counters that change, including those of a sent frame if there is a reply.
    :param reply: Fields of the frame sent, if any.
    :param to: Rank to which it is sent.
    :param words: Its payload.
    :param before: Packets that have arrived before; their counts are ignored.
    :param upstream: Way of recovery to which the row applies; None: both.
    :param verified: Whether the process has verified its results.
    :param verified_early: Whether it has verified the stored ones although others are missing.
    """

    name: str
    data: bytes
    counted: dict[str, int] = field(default_factory=dict)
    reply: dict[str, int] | None = None
    to: int = RANK + 1
    words: np.ndarray | None = None
    before: tuple[bytes, ...] = ()
    upstream: bool | None = None
    verified: bool = False
    verified_early: bool = False


def cut(data: bytes) -> bytes:
    return data[:-8]


WRONG = np.uint64(1) + total_of(0)
NEXT = SEQ + 1
EARLY = reduce(0, seq=NEXT)
ANEW = {"flags": RESTART}
RELAUNCHED = {"kind": Kind.REDUCE, "chunk": 1, "hop": 1, "round": 0, "attempt": 1, "prev": NOTHING}
ANSWER = {
    "kind": Kind.RESULT,
    "chunk": 1,
    "hop": 2,
    "round": 0,
    "attempt": 1,
    "prev": LAUNCHED,
    "flags": AGAIN,
}
ROWS = [
    # Frames that are not the ring's, or not this group's.
    Row("too short for headers", reduce(0)[: FRAME_BYTES - 1]),
    Row("another port", packet(port=PORT + 1, kind=Kind.REDUCE)),
    Row("another magic", reduce(0, magic=0x4153)),
    Row("another group", reduce(0, group=GROUP + 1), {"bad_cookie": 1}),
    # Impossible frames that test_hostile_frames.py does not send.
    Row("an unknown kind", reduce(0, kind=6), {"bad_kind": 1}),
    Row("length that is not there", cut(reduce(0)), {"bad_length": 1}),
    Row("length that is not there, of a last hop", cut(reduce(2)), {"bad_length": 1}),
    Row("length that is not there, of an early frame", cut(EARLY), {"bad_length": 1}),
    Row("another tensor", reduce(0, tag=1), {"bad_tensor": 1}),
    Row("another tensor's nack", nack(1, tag=1), {"bad_tensor": 1}),
    Row("own chunk in its reduce-scatter phase", reduce(1, hop=3), {"bad_rank": 1}),
    Row("a sender whose address is another rank's", result(0, sender=2), {"bad_rank": 1}),
    Row("a sender beyond the ring", result(0, sender=RANKS), {"bad_rank": 1}),
    Row("a frame of its own", result(0, source=RANK), {"bad_rank": 1}),
    Row("result of a chunk whose results come to be here", result(2, hop=0), {"bad_rank": 1}),
    Row("nack of a rank that is not behind", nack(1, source=0), {"bad_rank": 1}),
    Row(
        "nack that was passed on, for another rank's chunk",
        nack(0, hop=1),
        {"bad_rank": 1},
        upstream=False,
    ),
    Row(
        "nack that was passed on, where nobody does so",
        nack(1, hop=1),
        {"bad_rank": 1},
        upstream=True,
    ),
    Row("probe in another rank's name", probe(0, sender=2), {"bad_rank": 1}),
    Row("answer in another rank's name", probe(0, Kind.ALIVE, sender=2), {"bad_rank": 1}),
    Row(
        "wrong all-gather",
        packet(WRONG, kind=Kind.RESULT, hop=2, checksum=checksum_of(result(0))),
        {"bad_checksum": 1},
    ),
    # Reduce-scatter phase.
    Row(
        "reduce-scatter",
        reduce(0),
        SENT,
        {"kind": Kind.REDUCE, "chunk": 0, "hop": 2, "seq": SEQ, "prev": LAUNCHED},
        words=input_of(0, 0) + input_of(1, 0),
    ),
    Row(
        "the end of reduce-scatter",
        reduce(2),
        SENT | {"stored": 1},
        {"kind": Kind.RESULT, "chunk": 2, "hop": 1, "flags": 0, "attempt": 0, "prev": LAUNCHED},
        words=total_of(2),
    ),
    Row(
        "reduce-scatter once more",
        reduce(0, attempt=1),
        {"duplicate": 1},
        before=(reduce(0),),
        upstream=True,
    ),
    Row(
        "reduce-scatter once more, which the owner has begun again for a rank behind",
        reduce(0, attempt=1),
        SENT,
        {"kind": Kind.REDUCE, "chunk": 0, "hop": 2, "attempt": 1, "round": 0},
        words=input_of(0, 0) + input_of(1, 0),
        before=(reduce(0),),
        upstream=False,
    ),
    Row(
        "reduce-scatter of a later round",
        reduce(0, round=1),
        SENT,
        {"kind": Kind.REDUCE, "chunk": 0, "hop": 2, "round": 1},
        words=input_of(0, 0) + input_of(1, 0),
        before=(reduce(0),),
    ),
    Row(
        "reduce-scatter of an earlier round",
        reduce(0),
        {"duplicate": 1},
        before=(reduce(0, round=1),),
    ),
    Row(
        "the end of reduce-scatter once more",
        reduce(2),
        {"duplicate": 1},
        before=(reduce(2),),
        upstream=True,
    ),
    Row(
        "reduce-scatter of a chunk that is done",
        reduce(0, attempt=1),
        SENT | {"answered": 1, "resent": 1},
        {"kind": Kind.RESULT, "chunk": 0, "hop": 1, "flags": AGAIN, "attempt": 1, "prev": NOTHING},
        to=0,
        words=total_of(0),
        before=(result(0),),
        upstream=False,
    ),
    Row("reduce-scatter of the next sequence number", EARLY, {"early": 1}),
    Row("an early frame that is there already", EARLY, {"duplicate": 1}, before=(EARLY,)),
    # All-gather phase.
    Row(
        "all-gather ends, and the token becomes the next chunk",
        result(0),
        SENT | {"stored": 1},
        {"kind": Kind.REDUCE, "chunk": 4, "hop": 1, "attempt": 0, "flags": 0, "prev": LAUNCHED},
        words=input_of(RANK, 4),
    ),
    Row(
        "all-gather goes on",
        result(1),
        SENT | {"stored": 1},
        {"kind": Kind.RESULT, "chunk": 1, "hop": 2, "flags": 0, "prev": LAUNCHED},
        words=total_of(1),
    ),
    Row("all-gather ends, and no chunk is left", result(3), {"stored": 1}, before=(result(0),)),
    Row(
        "all-gather of a chunk that is done, at its end",
        result(0),
        {"duplicate": 1},
        before=(result(0),),
    ),
    Row("all-gather of a chunk that is done", result(1), {"duplicate": 1}, before=(result(1),)),
    Row(
        "all-gather of a rank further off, which was asked for it",
        result(1, source=2),
        SENT | {"stored": 1},
        {"kind": Kind.RESULT, "chunk": 1, "hop": 2},
        words=total_of(1),
    ),
    Row(
        "a later round's result in place of one that nobody has verified",
        result(1, round=1),
        SENT | {"stored": 1},
        {"kind": Kind.RESULT, "chunk": 1, "hop": 2, "round": 1},
        words=total_of(1),
        before=(result(1),),
    ),
    Row(
        "a later round's result sets no token free",
        result(0, round=1),
        {"stored": 1},
        before=(result(0),),
    ),
    Row("an earlier round's result", result(1), {"duplicate": 1}, before=(result(1, round=1),)),
    Row(
        "a later round's result passes by one that was verified",
        result(1, round=1),
        SENT,
        {"kind": Kind.RESULT, "chunk": 1, "hop": 2, "round": 1},
        words=total_of(1),
        before=(result(1),),
        verified=True,
    ),
    # Nacks.
    Row(
        "nack for an own chunk under way",
        nack(1),
        SENT | {"resent": 1},
        RELAUNCHED,
        words=input_of(RANK, 1),
    ),
    Row(
        "nack for a chunk that is done",
        nack(1),
        SENT | {"resent": 1, "answered": 1},
        ANSWER,
        words=total_of(1),
        before=(result(1),),
    ),
    Row(
        "nack for the result of a chunk that is done",
        nack(1, flags=RESULT, summed=0),
        SENT | {"resent": 1, "answered": 1},
        ANSWER,
        words=total_of(1),
        before=(result(1),),
    ),
    Row(
        "nack of the rank where the result came to be, which has refused it",
        nack(1, source=2, hop=1, prev=LAUNCHED),
        SENT | {"answered": 1, "resent": 1},
        {"kind": Kind.RESULT, "chunk": 1, "hop": RANKS, "attempt": 1, "prev": LAUNCHED},
        to=0,
        words=total_of(1),
        before=(result(1),),
        upstream=False,
    ),
    Row(
        "nack for a partial sum that is kept",
        nack(0),
        SENT | {"resent": 1},
        {"kind": Kind.REDUCE, "chunk": 0, "hop": 2, "round": 0, "attempt": 1, "prev": LAUNCHED},
        words=input_of(0, 0) + input_of(1, 0),
        before=(reduce(0),),
        upstream=True,
    ),
    Row(
        "nack for a partial sum that the owner is to send again",
        nack(0),
        SENT | {"resent": 1},
        {"kind": Kind.NACK, "chunk": 0, "hop": 1, "round": 0, "prev": NOTHING},
        to=0,
        before=(reduce(0),),
        upstream=False,
    ),
    Row(
        "nack for a result that the owner is to send again",
        nack(2, flags=RESULT, summed=0),
        SENT | {"resent": 1},
        {"kind": Kind.NACK, "chunk": 2, "hop": 1, "flags": RESULT, "prev": LAUNCHED},
        before=(reduce(2),),
        upstream=False,
    ),
    Row(
        "nack that was passed on for what came meanwhile",
        nack(1, source=0, hop=1),
        {"duplicate": 1},
        before=(result(1),),
        upstream=False,
    ),
    Row("nack for a partial sum that was never sent", nack(0), {"not_held": 1}),
    Row("nack for a result that is not here", nack(0, flags=RESULT, summed=0), {"not_held": 1}),
    Row(
        "nack for a result that is not here, of a rank that has the partial sum",
        nack(0, flags=RESULT, summed=0),
        {"not_held": 1},
        before=(reduce(0),),
    ),
    Row(
        "nack for a result, of a rank that lacks the partial sum of a later round",
        nack(0, flags=RESULT, summed=0),
        SENT | {"resent": 1},
        {"kind": Kind.REDUCE, "chunk": 0, "hop": 2, "round": 1},
        words=input_of(0, 0) + input_of(1, 0),
        before=(reduce(0), reduce(0, round=1)),
        upstream=True,
    ),
    Row("nack of the collective before", nack(1, seq=SEQ - 1), {"not_held": 1}),
    Row("nack of the next collective", nack(1, seq=NEXT), {"not_held": 1}),
    # Restart nacks.
    Row(
        "restart nack",
        nack(1, **ANEW),
        SENT | {"resent": 1, "restarted": 1},
        {"kind": Kind.REDUCE, "chunk": 1, "hop": 1, "round": 1, "attempt": 1},
        words=input_of(RANK, 1),
    ),
    Row(
        "the same of any rank once more, which has not seen the new round",
        nack(1, source=0, **ANEW),
        SENT | {"resent": 1},
        {"kind": Kind.REDUCE, "chunk": 1, "hop": 1, "round": 1},
        words=input_of(RANK, 1),
        before=(nack(1, **ANEW),),
        upstream=False,
    ),
    Row(
        "restart nack after the restart, where each hop is recovered by itself",
        nack(1, source=0, **ANEW),
        before=(nack(1, **ANEW),),
        upstream=True,
    ),
    Row(
        "restart nack after another round",
        nack(1, round=1, **ANEW),
        SENT | {"resent": 1, "restarted": 1},
        {"kind": Kind.REDUCE, "chunk": 1, "hop": 1, "round": 2, "attempt": 2},
        words=input_of(RANK, 1),
        before=(nack(1, **ANEW),),
    ),
    Row(
        "restart nack for a stored result, not verified yet",
        nack(1, **ANEW),
        SENT | {"resent": 1, "restarted": 1},
        {"kind": Kind.REDUCE, "chunk": 1, "hop": 1, "round": 1},
        words=input_of(RANK, 1),
        before=(result(1),),
    ),
    Row(
        "restart nack for a verified result",
        nack(1, **ANEW),
        SENT | {"resent": 1, "answered": 1},
        ANSWER | {"round": 1},
        words=total_of(1),
        before=(result(1),),
        verified=True,
    ),
    Row(
        "restart nack for a result verified before all are stored",
        nack(1, **ANEW),
        SENT | {"resent": 1, "answered": 1},
        ANSWER | {"round": 1},
        words=total_of(1),
        before=(result(1),),
        verified_early=True,
    ),
    Row("restart nack for a chunk not launched", nack(4, **ANEW)),
    Row("restart nack in another collective", nack(1, seq=NEXT, **ANEW), {"not_held": 1}),
    # Probes.
    Row(
        "probe of the rank behind",
        probe(2, seq=SEQ - 1),
        SAID,
        {"kind": Kind.ALIVE, "seq": SEQ, "chunk": 0, "length": 0, "flags": 0, "prev": LAUNCHED},
    ),
    Row(
        "probe of another rank",
        probe(0),
        SAID,
        {"kind": Kind.ALIVE, "flags": 0, "prev": NOTHING},
        to=0,
    ),
    Row(
        "probe of a rank that is done",
        probe(0, flags=VERIFIED),
        SAID,
        {"kind": Kind.ALIVE, "flags": VERIFIED_ACK},
        to=0,
    ),
    Row(
        "probe of a rank that waits",
        probe(0),
        SAID,
        {"kind": Kind.ALIVE, "flags": VERIFIED},
        to=0,
        verified=True,
    ),
    Row("answer of a rank", probe(0, Kind.ALIVE)),
]


def assert_sent(data: bytes, to: int, fields: dict[str, int], words: np.ndarray | None) -> None:
    """Compare lengths and both checksums with those that scapy computes itself."""
    seen = Ether(data)
    said = {"sender": RANK, "receiver": to, "group": GROUP, "version": VERSION} | fields
    assert {name: seen[RingHeader].getfieldval(name) for name in said} == said
    assert (seen.src, seen.dst) == (PEERS[RANK].mac, PEERS[to].mac)
    assert (seen[IP].src, seen[IP].dst) == (PEERS[RANK].ip, PEERS[to].ip)
    length = seen[RingHeader].length
    assert (seen[IP].len, seen[UDP].len) == (FRAME_BYTES - 14 + length, FRAME_BYTES - 34 + length)
    check = seen[IP].chksum
    del seen[IP].chksum
    assert IP(bytes(seen[IP])).chksum == check
    if words is not None:
        assert data[FRAME_BYTES:] == words.tobytes()
        assert (
            seen[RingHeader].checksum
            == checksum(words) + frame_seal(decode(data).header) & (1 << 64) - 1
        )


def cases() -> Iterator:
    """Each row with each way of recovery to which it applies."""
    for upstream in (False, True):
        for row in ROWS:
            if row.upstream in (None, upstream):
                yield pytest.param(
                    upstream, row, id=f"{'upstream' if upstream else 'origin'}-{row.name}"
                )


@pytest.mark.parametrize(("both", "row"), [*cases()], indirect=["both"])
def test_each_packet_is_handled_as_its_row_says(kernel, row) -> None:
    for data in row.before:
        kernel.run("ring_link", data)
    if row.verified:
        kernel.control.verified = SEQ
    if row.verified_early:
        here = kernel.records["result"] == word_of(SEQ, ResultState.DONE)
        kernel.records["result"][here] = word_of(SEQ, ResultState.VERIFIED)
    before = kernel.counters()
    run = kernel.run("ring_link", row.data)
    assert run.retval == (XDP_DROP if row.reply is None else XDP_TX)
    counted = {name: value - before[name] for name, value in kernel.counters().items()}
    assert changes(counted) == row.counted
    if row.reply is not None:
        assert_sent(run.data, row.to, row.reply, row.words)


ASKED = {"kind": Kind.NACK, "attempt": 1, "hop": 0, "length": LENGTH, "round": 0, "prev": 0}
POSTED = [
    (None, None, XDP_DROP, {}, None, None),
    (
        None,
        (WrKind.LAUNCH, SEQ, 4),
        XDP_REDIRECT,
        SENT,
        2,
        {"kind": Kind.REDUCE, "chunk": 4, "attempt": 0},
    ),
    (None, (WrKind.LAUNCH, SEQ, 1), XDP_DROP, {}, None, None),  # it is in flight
    (None, (WrKind.LAUNCH, SEQ - 1, 1), XDP_DROP, {"bad_seq": 1}, None, None),
    (None, (WrKind.LAUNCH, SEQ, TOTAL), XDP_DROP, {"bad_seq": 1}, None, None),
    (None, (WrKind.NACK, SEQ - 1, 3), XDP_DROP, {"bad_seq": 1}, None, None),
    (
        None,
        (WrKind.NACK, SEQ, 3),
        XDP_REDIRECT,
        SENT | {"resent": 1},
        0,
        ASKED | {"chunk": 3, "flags": 0},
    ),
    (
        None,
        (WrKind.NACK, SEQ, 2),
        XDP_REDIRECT,
        SENT | {"resent": 1},
        0,
        ASKED | {"chunk": 2, "flags": 0},
    ),
    (
        None,
        (WrKind.NACK, SEQ, 1),
        XDP_REDIRECT,
        SENT | {"resent": 1},
        0,
        ASKED | {"chunk": 1, "flags": RESULT},
    ),
    (None, (WrKind.NACK, SEQ, 4), XDP_DROP, {}, None, None),  # not launched yet
    (
        None,
        (WrKind.RESTART, SEQ, 1, 0, 0),
        XDP_REDIRECT,
        SENT | {"resent": 1, "restarted": 1},
        2,
        {"kind": Kind.REDUCE, "chunk": 1, "hop": 1, "round": 1},
    ),
    (None, (WrKind.RESTART, SEQ, 1, 0, 7), XDP_DROP, {}, None, None),  # of another round
    (
        None,
        (WrKind.RESTART, SEQ, 2, 0, 3),
        XDP_REDIRECT,
        SENT | {"resent": 1},
        2,
        {"kind": Kind.NACK, "chunk": 2, "flags": RESTART, "round": 3, "length": LENGTH},
    ),
    (
        None,
        (WrKind.PROBE, 0, 0, 7, ANYWHERE),
        XDP_REDIRECT,
        SAID,
        0,
        {"kind": Kind.PROBE, "attempt": 7, "prev": NOTHING},
    ),
    (
        None,
        (WrKind.PROBE, 0, 2, 0, ANYWHERE),
        XDP_REDIRECT,
        SAID,
        2,
        {"kind": Kind.PROBE, "prev": NOTHING},
    ),
    (None, (WrKind.REPLAY, SEQ, 0), XDP_DROP, {}, None, None),
    (None, (WrKind.REPLAY, SEQ, EARLY_SLOTS), XDP_DROP, {"bad_chunk": 1}, None, None),
    (None, (9, SEQ, 0), XDP_DROP, {"bad_kind": 1}, None, None),
]


@pytest.mark.parametrize(
    ("both", "work", "verdict", "counted", "to", "reply"),
    [
        (upstream, *row)
        for upstream in (False, True)
        for only, *row in POSTED
        if only in (None, upstream)
    ],
    indirect=["both"],
)
def test_work_requests(kernel, native, work, verdict, counted, to, reply) -> None:
    if work is not None:
        native.post(*work)
    run = kernel.run("ring_execute", kick())
    assert run.retval == verdict
    assert changes(kernel.counters()) == counted
    assert native.waiting() == []
    if reply is not None:
        assert_sent(run.data, to, reply, None)


@pytest.mark.parametrize(
    ("data", "counted"),
    [(kick(cookie=1), {"bad_cookie": 1}), (reduce(0), {}), (kick()[: FRAME_BYTES - 1], {})],
)
def test_only_a_kick_takes_a_work_request(kernel, native, data, counted) -> None:
    """Any other frame at the doorbell is a copy that requests missing frames, and here none is
    missing.
    """
    native.post(WrKind.LAUNCH, SEQ, 4)
    assert kernel.run("ring_execute", data).retval == XDP_DROP
    assert changes(kernel.counters()) == counted
    assert len(native.waiting()) == 1


@pytest.mark.parametrize(
    ("waiting", "verdict"), [(0, XDP_DROP), (1, XDP_REDIRECT), (8, XDP_REDIRECT), (9, XDP_REDIRECT)]
)
def test_a_kick_is_multiplied_if_work_requests_wait(kernel, native, waiting, verdict) -> None:
    for _ in range(waiting):
        native.post(WrKind.PROBE, 0, 0)
    assert kernel.run("ring_doorbell", kick()).retval == verdict
    assert kernel.run("ring_doorbell", kick(cookie=0)).retval == XDP_DROP


def test_a_kick_for_one_work_request_takes_it_at_once(kernel, native) -> None:
    programs, maps = kernel.object.programs, kernel.object.maps
    maps["ring_executor"].update(0, programs["ring_execute"].fd)
    try:
        native.post(WrKind.LAUNCH, SEQ, 4)
        run = kernel.run("ring_doorbell", kick())
        assert (run.retval, native.waiting()) == (XDP_REDIRECT, [])
        assert decode(run.data).header.kind == Kind.REDUCE
        native.post(WrKind.PROBE, 0, 0)
        native.post(WrKind.PROBE, 0, 0)
        kernel.run("ring_doorbell", kick())  # multiplied
        assert len(native.waiting()) == 2
    finally:
        maps["ring_executor"].delete(0)


def test_early_frames_are_replayed_once_their_input_is_ready(kernel, native) -> None:
    words = input_of(0, 0)
    assert kernel.run("ring_link", reduce(0, seq=SEQ + 1, attempt=2)).retval == XDP_DROP
    native.begin(SEQ + 1, TOTAL, LENGTH, 0xBEEF)
    native.publish(SEQ + 1, 1)  # chunk 0, which is not this rank's own
    assert [entry.kind for entry in native.waiting()] == [WrKind.REPLAY]
    run = kernel.run("ring_execute", kick())
    assert run.retval == XDP_REDIRECT
    assert_sent(
        run.data,
        2,
        {"kind": Kind.REDUCE, "chunk": 0, "hop": 2, "attempt": 2},
        words + input_of(1, 0),
    )
    assert all(early.state == 0 for early in kernel.early_frames)


def test_full_early_buffer_drops() -> None:
    """A chunk can wait in one of a few slots; here all chunks that map to the same slots meet."""
    step = EARLY_SLOTS // EARLY_TRIES
    chunks = range(0, 3 * step * (EARLY_TRIES + 2), 3 * step)
    with loaded(chunks=1 + max(chunks)) as both:
        kernel, _ = both
        prepare(*both)
        for chunk in chunks:
            assert kernel.run("ring_link", reduce(chunk, seq=SEQ + 1)).retval == XDP_DROP
        assert changes(kernel.counters()) == {"early": EARLY_TRIES, "early_full": 2}


def test_full_submission_queue_is_served_in_order(kernel, native) -> None:
    native.control.sq_tail = native.control.sq_head = 0xFFFFFFFF - SQ_ENTRIES // 2
    for index in range(SQ_ENTRIES):
        native.post(WrKind.PROBE, 0, 0, index, ANYWHERE)
    for index in range(SQ_ENTRIES):
        run = kernel.run("ring_execute", kick())
        assert Ether(run.data)[RingHeader].attempt == index
    assert kernel.run("ring_execute", kick()).retval == XDP_DROP


def test_process_is_woken_when_enough_results_are_stored(kernel) -> None:
    kernel.control.wake_at = 2
    kernel.run("ring_link", result(0))
    assert kernel.events() == []
    kernel.run("ring_link", result(1))
    assert kernel.events() == [SEQ]
    kernel.run("ring_link", result(3))
    assert kernel.events() == []


def said_of(kernel, rank: int) -> tuple[int, ...]:
    peer = kernel.ranks[rank]
    return peer.seq, peer.verified, peer.verified_acked, peer.front


def test_what_ranks_say_about_themselves_reaches_the_process(kernel) -> None:
    """Ranks report in probes and in answers; reports older than what is known are ignored."""
    assert kernel.run("ring_link", probe(2, Kind.ALIVE, seq=9, front=77)).retval == XDP_DROP
    assert said_of(kernel, 2) == (9, 0, 0, 77)
    assert kernel.run("ring_link", probe(2, seq=9, front=78, flags=VERIFIED)).retval == XDP_TX
    assert said_of(kernel, 2) == (9, 9, 0, 78)
    kernel.control.verified = SEQ
    kernel.run(
        "ring_link", probe(2, Kind.ALIVE, seq=9, front=78, flags=VERIFIED_ACK, acked=SEQ - 1)
    )
    assert said_of(kernel, 2) == (
        9,
        9,
        0,
        78,
    )  # a late answer, which acknowledges the previous collective
    kernel.run("ring_link", probe(2, Kind.ALIVE, seq=9, front=78, flags=VERIFIED_ACK, acked=SEQ))
    assert said_of(kernel, 2) == (9, 9, SEQ, 78)
    kernel.run("ring_link", probe(2, Kind.ALIVE, seq=8, front=5))
    assert said_of(kernel, 2) == (9, 9, SEQ, 78)
    assert said_of(kernel, 0) == (0, 0, 0, 0)


def test_a_rank_that_has_given_up_tells_the_process_and_all_others_why(kernel) -> None:
    """The first reason is kept, and passed on in answers; a damaged frame gives no reason."""
    first, later = Reason.SILENT, Reason.STUCK
    kernel.run("ring_link", probe(2, blamed=0b10, flags=ENDED, reason=first, checksum=1))
    assert kernel.control.ended == 0
    kernel.run("ring_link", probe(2, front=7))
    run = kernel.run("ring_link", probe(2, blamed=0b10, flags=ENDED, reason=first))
    assert kernel.control.ended == first << 32 | 0b10
    header = Ether(run.data)[RingHeader]
    assert (header.kind, header.flags & ENDED) == (Kind.ALIVE, ENDED)
    assert (header.round, header.chunk) == (first, 0b10)
    assert (
        said_of(kernel, 2)[3] == 7
    )  # a frame that ends does not update the chunk that its sender waits for
    kernel.run("ring_link", probe(0, Kind.ALIVE, blamed=0b101, flags=ENDED, reason=later))
    assert kernel.control.ended == first << 32 | 0b10
    assert [kernel.ranks[rank].ended for rank in range(RANKS)] == [1, 0, 1]


def test_a_rank_that_gave_up_in_an_earlier_collective_has_given_up(kernel) -> None:
    """Whatever it has said about later collectives."""
    kernel.run("ring_link", probe(2, seq=9))
    kernel.run("ring_link", probe(2, seq=8, blamed=1, flags=ENDED, reason=Reason.ABSENT))
    assert kernel.control.ended == Reason.ABSENT << 32 | 1
    assert kernel.ranks[2].ended == 1


@pytest.mark.parametrize(
    ("data", "flushed"),
    [
        (probe(0, Kind.ALIVE, stream=5), 1 << 5),
        (probe(0, Kind.ALIVE, stream=5, seq=NEXT), 1 << 5),
        (probe(0, Kind.ALIVE, stream=63), 1 << 63),
        (probe(0, Kind.ALIVE, stream=64), 0),
        (
            probe(0, Kind.ALIVE, stream=5, seq=SEQ - 1),
            0,
        ),  # an answer to a probe of another collective
        (probe(2, Kind.ALIVE, stream=5), 0),  # not the preceding rank
        (probe(0, stream=5), 0),  # not an answer
    ],
)
def test_answers_of_the_preceding_rank_flush_its_streams(kernel, data, flushed) -> None:
    kernel.run("ring_link", data)
    assert kernel.control.flushed == flushed


def heard(kernel) -> list[int]:
    counts: list[int] = kernel.memory["streams"]["heard"][:, :RANKS].sum(axis=0).tolist()
    return counts


def test_every_frame_of_a_rank_counts_as_a_sign_of_life(kernel) -> None:
    for data in (reduce(0), result(0), probe(2), probe(0, Kind.ALIVE), nack(1)):
        kernel.run("ring_link", data)
    assert heard(kernel) == [3, 0, 2]


def answer(source: int, **fields: int) -> bytes:
    return probe(source, Kind.ALIVE, **fields)


@pytest.mark.parametrize("make", [reduce, result, nack, probe, answer])
def test_frames_that_fail_their_check_are_no_sign_of_life(kernel, make) -> None:
    """Neither are frames for another rank, or of another group."""
    for damage in ({"checksum": 1}, {"cookie": 1}, {"receiver": 2}, {"to": 2}):
        kernel.run("ring_link", make(0, **damage))
    assert heard(kernel) == [0, 0, 0]


LOST = {
    "partial sum": (item_of(0, 0, Stage.PARTIAL), reduce(0), 0, Stage.PARTIAL),
    "result": (item_of(0, 0, Stage.RESULT), result(0), 0, Stage.RESULT),
    "result of a chunk of its own": (item_of(1, 0, Stage.RESULT), result(1), 1, Stage.RESULT),
}


def naming(carrier: str, item: int) -> bytes:
    """A frame of the preceding rank that was sent after another."""
    made = {
        "reduce-scatter": lambda: reduce(3, prev=item),
        "all-gather": lambda: result(3, prev=item),
        "answer": lambda: probe(0, Kind.ALIVE, prev=item),
        "early": lambda: reduce(3, seq=NEXT, flags=EARLIER, prev=item),
        "answer of the next collective": lambda: probe(
            0, Kind.ALIVE, seq=NEXT, flags=EARLIER, prev=item
        ),
    }
    return made[carrier]()


CARRIERS = ("reduce-scatter", "all-gather", "answer", "early", "answer of the next collective")
# Each carrier, and each lost frame: what a frame names does not depend on what carries it.
NAMED = [("partial sum", carrier) for carrier in CARRIERS]
NAMED += [(what, "all-gather") for what in LOST if what != "partial sum"]


@pytest.mark.parametrize(("what", "carrier"), NAMED)
def test_a_frame_that_a_later_one_names_is_known_to_be_lost(kernel, what, carrier) -> None:
    item, _, chunk, stage = LOST[what]
    kernel.run("ring_link", naming(carrier, item))
    assert kernel.counters()["lost"] == 1
    assert kernel.records["lost"][chunk].tolist() == [SEQ * (stage == each) for each in Stage]
    assert (
        kernel.counters()["resent"] == 0
    )  # only the process sends nacks here, as there is no reorder threshold


@pytest.mark.parametrize(("what", "carrier"), NAMED)
def test_a_frame_that_has_arrived_is_not_known_to_be_lost(kernel, what, carrier) -> None:
    item, data, chunk, _ = LOST[what]
    kernel.run("ring_link", data)
    kernel.run("ring_link", naming(carrier, item))
    assert kernel.counters()["lost"] == 0
    assert not kernel.records["lost"][chunk].any()


def test_a_frame_that_does_not_match_its_seal_names_nothing(kernel) -> None:
    item = item_of(0, 0, Stage.RESULT)
    forged = [
        reduce(3, prev=item, checksum=1),
        result(3, prev=item, checksum=1),
        probe(0, Kind.ALIVE, prev=item, checksum=1),
    ]
    forged += [probe(2, Kind.ALIVE, prev=item)]  # not the preceding rank
    for data in forged:
        kernel.run("ring_link", data)
    assert kernel.counters()["lost"] == 0


WANTED = item_of(0, 0, Stage.PARTIAL)
NACK_ENTRIES = {"kind": Kind.NACK, "chunk": 0, "flags": 0, "round": 0}


@pytest.mark.parametrize("reorder_threshold", [1, 2, 3])
@pytest.mark.parametrize("upstream", [False, True])
def test_a_frame_goes_on_and_its_copy_nacks_what_is_lost(upstream, reorder_threshold) -> None:
    """As soon as enough later frames have arrived."""
    with loaded(upstream=upstream, reorder_threshold=reorder_threshold) as both:
        kernel, _ = both
        prepare(*both)
        kernel.control.nack_holdoff_us = 60_000_000
        *before, last = [result(1, prev=WANTED), reduce(3), reduce(2)][:reorder_threshold]
        for data in before:
            assert kernel.run("ring_link", data).retval == XDP_TX
        run = kernel.run("ring_link", last)
        assert run.retval == XDP_REDIRECT  # to the link and to the doorbell
        assert decode(run.data).header.kind in (Kind.RESULT, Kind.REDUCE)
        assert kernel.counters()["resent"] == 0
        run = kernel.run("ring_execute", run.data)
        assert run.retval == XDP_REDIRECT
        assert_sent(run.data, 0, NACK_ENTRIES | {"attempt": 1}, None)
        assert kernel.run("ring_link", reduce(3, round=1)).retval == XDP_TX  # not again at once
        assert kernel.counters()["resent"] == 1


def test_a_late_frame_opens_the_reordering_window() -> None:
    """The next frame that is overtaken is not nacked before it has been missing for so long."""
    round_trip = 60_000_000
    with loaded(upstream=True, reorder_threshold=1) as both:
        kernel, _ = both
        prepare(*both)
        kernel.control.rto_us = round_trip
        assert kernel.run("ring_link", result(1, prev=WANTED)).retval == XDP_REDIRECT  # at once
        kernel.records["nacked_us"][0] -= 1000
        assert kernel.run("ring_link", reduce(0)).retval == XDP_TX
        assert 1000 <= kernel.control.late_us < round_trip
        kernel.control.late_us = round_trip
        overtakes = reduce(2, prev=item_of(3, 0, Stage.PARTIAL))
        assert kernel.run("ring_link", overtakes).retval == XDP_TX
        assert kernel.counters()["lost"] == 2
        # A frame that was sent again was lost, so the window was too long.
        assert kernel.run("ring_link", reduce(3, flags=AGAIN)).retval == XDP_TX
        assert kernel.control.late_us == round_trip - (round_trip >> 4)


@pytest.mark.parametrize("upstream", [False, True])
def test_a_frame_that_goes_nowhere_becomes_the_nack(upstream) -> None:
    with loaded(upstream=upstream, reorder_threshold=1) as both:
        kernel, _ = both
        prepare(*both)
        run = kernel.run("ring_link", probe(0, Kind.ALIVE, prev=WANTED))
        assert run.retval == XDP_TX
        assert_sent(run.data, 0, NACK_ENTRIES | {"attempt": 1}, None)
        # No time has to pass between two nacks here: each frame sends one again, until the lost
        # frame arrives.
        run = kernel.run("ring_link", probe(0, Kind.ALIVE))
        assert_sent(run.data, 0, NACK_ENTRIES | {"attempt": 2}, None)
        assert kernel.run("ring_link", reduce(0)).retval == XDP_TX
        assert kernel.run("ring_link", probe(0, Kind.ALIVE)).retval == XDP_DROP
        assert kernel.counters()["resent"] == 2


@pytest.mark.parametrize("lossy", [0, SEQ - 256 & 0xFFFFFFFF])
def test_partial_sums_are_saved_after_losses_only(lossy) -> None:
    """A nack for a partial sum that was not saved is a sign of loss, and so is a later round."""
    with loaded(upstream=True) as both:
        kernel, _ = both
        prepare(*both)
        kernel.control.lossy = lossy
        kernel.run("ring_link", reduce(0))
        run = kernel.run("ring_link", nack(0))
        assert_sent(
            run.data, 0, {"kind": Kind.NACK, "chunk": 0, "flags": RESTART, "round": 0}, None
        )
        assert kernel.control.lossy == SEQ
        kernel.control.lossy = lossy
        kernel.run("ring_link", reduce(0, round=1))
        assert kernel.control.lossy == SEQ
        assert decode(kernel.run("ring_link", nack(0)).data).header.kind == Kind.REDUCE


def test_partial_sums_are_saved_until_their_result_is_here() -> None:
    """Chunks share slots: a partial sum that may still be needed stays, and a chunk without a slot
    is restarted when nacked.
    """
    with loaded(upstream=True, retransmit_slots=1) as both:
        kernel, _ = both
        prepare(*both)
        kernel.run("ring_link", reduce(0))
        kernel.run("ring_link", reduce(3))
        assert kernel.counters()["unsaved"] == 1
        assert decode(kernel.run("ring_link", nack(0)).data).header.kind == Kind.REDUCE
        run = kernel.run("ring_link", nack(3))
        assert_sent(
            run.data, 0, {"kind": Kind.NACK, "chunk": 3, "flags": RESTART, "round": 0}, None
        )
        kernel.run("ring_link", result(0))
        kernel.run("ring_link", reduce(3, round=1))
        assert kernel.counters()["unsaved"] == 1
        run = kernel.run("ring_link", nack(3))
        assert_sent(
            run.data,
            2,
            {"kind": Kind.REDUCE, "chunk": 3, "hop": 2, "round": 1},
            input_of(0, 3) + input_of(1, 3),
        )
        # A rank that nacks the other chunk now already has its partial sum, or there would be no
        # result; so the answer is the result.
        assert decode(kernel.run("ring_link", nack(0)).data).header.kind == Kind.RESULT


@pytest.mark.parametrize("both", [False], indirect=True)
def test_nacks_of_many_ranks_are_answered_once(kernel) -> None:
    """The owner of a chunk answers one of several simultaneous nacks; later it answers again."""
    kernel.control.nack_holdoff_us = 60_000_000
    assert kernel.run("ring_link", nack(1)).retval == XDP_TX
    assert kernel.run("ring_link", nack(1, source=2, hop=1)).retval == XDP_DROP
    assert changes(kernel.counters()) == SENT | {"resent": 1}
    kernel.records["resent_us"][1] -= 61_000_000
    assert kernel.run("ring_link", nack(1)).retval == XDP_TX
    # Nacks for a result are answered from now on.
    kernel.run("ring_link", result(1))
    assert kernel.run("ring_link", nack(1)).retval == XDP_TX
    assert kernel.run("ring_link", nack(1)).retval == XDP_DROP


@pytest.mark.parametrize("both", [True], indirect=True)
def test_upstream_answers_every_nack(kernel) -> None:
    """Only one rank sends them, the next one, and it observes the holdoff itself."""
    kernel.control.nack_holdoff_us = 60_000_000
    for _ in range(3):
        assert kernel.run("ring_link", nack(1)).retval == XDP_TX


ACCEPTED = {
    "reduce-scatter": reduce(0),
    "end of reduce-scatter": reduce(2),
    "all-gather": result(0),
    "early": EARLY,
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_truncated_frames_change_nothing(kernel, name) -> None:
    """At every length that a test run accepts."""
    before = kernel.snapshot()
    for length in range(14, len(ACCEPTED[name])):
        assert kernel.run("ring_link", ACCEPTED[name][:length]).retval == XDP_DROP
        assert kernel.snapshot() == before, length
    kernel.run("ring_link", ACCEPTED[name])
    assert kernel.snapshot() != before


# Ethertype, IP version and protocol, addresses, port; the ring's whole header; the payload.
PROTECTED = [12, 13, 14, 23, *range(26, 34), 36, 37, *range(42, FRAME_BYTES + LENGTH)]


@pytest.mark.parametrize("name", ["reduce-scatter", "end of reduce-scatter", "all-gather"])
def test_damaged_frames_change_nothing(kernel, name) -> None:
    """Up to eight flipped bits in one word, in 4,000 frames: none is stored, none is sent.

    A sum of words does not detect two errors that cancel out, so all are in one word.
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
    """The rows above rely on this."""
    assert kernel.control.next == word_of(SEQ, WINDOW)
