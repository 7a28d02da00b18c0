"""How ranks enter an exchange, frame by frame: the answer to a handshake, and when frames may be
sent.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from socket import AF_PACKET, SOCK_RAW, socket

import numpy as np
import pytest

from testbed.exchange.pinch.fixed_point import EXPONENTS
from testbed.exchange.pinch.process import Waited
from testbed.kernel import XDP_DROP, XDP_PASS, XDP_REDIRECT, XDP_TX
from testbed.protocol.pinch.packet import KICK_ALL, LEAST_BYTES, WR_ASK, frames_in
from testbed.protocol.sequence import word_of
from testbed.protocol.wire import FRAME_BYTES, Frame, PinchKind, decode
from testbed.testing.graphs import draw_partitioned, embeddings
from tests.support.kernel.pinch import ETH_P_ALL, SEQ, Loaded, first_kick, handshake, received

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("one_cpu")]

GRAPH = draw_partitioned(0, 60, 500, 3)
ASK = 1
WRAPS = [(SEQ, SEQ + 1), (1, 2), (0xFFFFFFFE, 0xFFFFFFFF), (0xFFFFFFFF, 2)]
"""Sequence numbers, each with its successor."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Loaded]:
    with Loaded(GRAPH, embeddings(0, GRAPH, 30), lanes="int32", mtu=576, ranks=(0, 1)) as made:
        yield made


def before(loaded: Loaded, seq: int = SEQ) -> Loaded:
    """Rank 0 accepts frames of a sequence number that no rank has entered."""
    port = loaded.ports[0]
    port.maps.peers["ours"] = port.maps.peers["theirs"] = 0
    loaded.open(0, seq)
    port.maps.peers["theirs"] = 0
    for name in ("met", "unfit", "nonfinite", "gone", "late", "end_acked"):
        setattr(port.maps.control, name, 0)
    return loaded


@pytest.fixture
def loaded(shared) -> Loaded:
    return before(shared)


def enter(loaded: Loaded, exponent: int | None = 0, holds: range = EXPONENTS) -> list[Frame]:
    """Let rank 0 enter; return the frames that it sends to the others."""
    port = loaded.ports[0]
    with loaded.wire() as tap:
        port.handshakes.enter(exponent, holds)
        loaded.run(0, "pinch_send", bytes(port.kicks.handshake))
        return [found for data in received(tap) if (found := decode(data)) is not None]


def word_in(found: Frame) -> int:
    assert found.header.kind == PinchKind.HANDSHAKE
    assert found.header.length == 8
    return int(found.payload[0])


def test_a_rank_that_enters_sends_handshakes_to_all_others(loaded) -> None:
    """Each frame equals the reference model's, checked as its receiver would check it."""
    said = enter(loaded, 7)
    assert [found.destination.ip for found in said] == [
        loaded.groups[0].members[rank].ip for rank in (1, 2)
    ]
    for rank, found in zip((1, 2), said, strict=True):
        frames = len([1 for sender, _ in loaded.numbers_to(rank) if sender == 0])
        port = loaded.ports[0]
        expected = decode(handshake(port, 0, frames, 7, receiver=rank, entered=SEQ))
        assert (found.header, word_in(found)) == (expected.header, word_in(expected))
        assert len(found.payload) * 8 + FRAME_BYTES == LEAST_BYTES
    assert loaded.counters(0) == {"handshakes": 2}


def test_the_last_handshake_is_a_kick_for_all_flows(loaded) -> None:
    enter(loaded)
    port = loaded.ports[0]
    assert loaded.link(0, handshake(port, 1, 3)).retval == XDP_DROP
    assert port.maps.control.met == 0
    run = loaded.link(0, handshake(port, 2, 4))
    assert run.retval == XDP_REDIRECT
    kick = decode(run.data).header
    assert (kick.kind, kick.sender, kick.flags) == (PinchKind.DOORBELL, 0, KICK_ALL)
    assert port.maps.control.met == word_of(SEQ, 7)
    assert port.maps.peers["heard"].tolist()[0] == 0
    assert loaded.run(0, "pinch_doorbell", run.data).retval == XDP_PASS


def test_frames_wait_for_the_last_handshake(loaded) -> None:
    port, kick = loaded.ports[0], first_kick(loaded.ports[0])
    enter(loaded)
    loaded.publish(0)
    with loaded.wire() as tap:
        for rank in (1, 2):
            loaded.run(0, "pinch_send", kick)
            assert received(tap) == []
            loaded.link(0, handshake(port, rank))
        loaded.run(0, "pinch_send", kick)
        assert len(received(tap)) > 0


def test_the_last_rank_to_enter_has_met_all(loaded) -> None:
    """The others' handshakes have already arrived, some even before this rank opened the
    exchange.
    """
    port = loaded.ports[0]
    port.process.open(SEQ - 1)
    loaded.link(0, handshake(port, 1, 3, seq=SEQ))
    port.process.open(SEQ)
    loaded.link(0, handshake(port, 2, 4))
    assert port.maps.control.met == 0
    enter(loaded)
    assert port.maps.control.met == word_of(SEQ, 7)


def test_a_rank_that_asks_is_answered_even_if_this_rank_has_gone_on(loaded) -> None:
    enter(loaded, 3)
    port = loaded.ports[0]
    for seq in (SEQ, SEQ + 1):
        run = loaded.link(0, handshake(port, 1, 3, seq=SEQ, flags=ASK, attempt=4))
        assert run.retval == XDP_TX
        found = decode(run.data)
        mine = decode(
            handshake(
                port, 0, len([1 for sender, _ in loaded.numbers_to(1) if sender == 0]), 3, seq=SEQ
            )
        )
        assert word_in(found) == word_in(mine)
        assert (found.header.flags, found.header.attempt) == (0, 4)
        assert found.destination.ip == loaded.groups[0].members[1].ip
        if seq == SEQ:
            port.process.open(SEQ + 1)


def test_a_handshake_counts_once(loaded) -> None:
    enter(loaded)
    port = loaded.ports[0]
    heard, news = (int(port.maps.peers[name][1]) for name in ("heard", "news"))
    for turn in (1, 2):
        assert loaded.link(0, handshake(port, 1, 3)).retval == XDP_DROP
        assert (int(port.maps.peers["heard"][1]), int(port.maps.peers["news"][1])) == (
            heard + turn,
            news + 1,
        )
    assert loaded.counters(0)["duplicate"] == 1


def test_a_rank_that_has_not_entered_answers_with_its_last_exchange(loaded) -> None:
    """This tells a waiting rank that it is up."""
    port = loaded.ports[0]
    asking = handshake(port, 1, 3, seq=SEQ + 1, flags=ASK)
    assert loaded.link(0, asking).retval == XDP_DROP  # it has never entered an exchange
    enter(loaded)
    found = decode(loaded.link(0, asking).data)
    assert found.header.seq == word_in(found) >> 32 == SEQ
    assert found.header.entered == SEQ
    other = loaded.ports[1]
    other.process.open(SEQ + 1)
    heard = int(other.maps.peers["heard"][0])
    loaded.link(1, handshake(other, 0, seq=SEQ, entered=SEQ, waits=0b100))
    assert other.maps.peers[["heard", "at", "waits"]][0].tolist() == (heard + 1, SEQ, 0b100)
    loaded.open(1, SEQ)


def test_repeated_handshakes_go_only_to_ranks_that_are_missing(loaded) -> None:
    port = loaded.ports[0]
    enter(loaded)
    loaded.link(0, handshake(port, 1))
    with loaded.wire() as tap, kicks() as kicked:
        port.kicks.send_handshakes(300)
        (kick,) = received(kicked)
        loaded.run(0, "pinch_send", kick)
        (again,) = (decode(data) for data in received(tap))
    assert again.destination.ip == loaded.groups[0].members[2].ip
    assert (again.header.attempt, again.header.flags) == (45, ASK)


@pytest.mark.parametrize(
    ("exponents", "holds", "fits"),
    [
        ((3, 2, 3), range(2, 4), True),
        ((1, 2, 0), range(2, 4), True),
        ((1, 1, 1), range(2, 4), False),
        ((3, 4, 3), range(2, 4), False),
        ((3, None, 3), range(2, 4), False),
        ((3, None, 3), EXPONENTS, False),
        ((-149, 128, 0), EXPONENTS, True),
        ((0, 0, 0), range(0), False),
    ],
)
def test_nothing_is_sent_if_the_scale_does_not_hold(loaded, exponents, holds, fits) -> None:
    port = loaded.ports[0]
    enter(loaded, exponents[0], holds)
    loaded.publish(0)
    loaded.events(0)
    for rank in (1, 2):
        run = loaded.link(0, handshake(port, rank, exponent=exponents[rank]))
    assert run.retval == (XDP_REDIRECT if fits else XDP_DROP)
    assert port.handshakes.highest == (None if None in exponents else max(exponents))
    assert (port.maps.control.met >> 32 == SEQ) == fits
    assert (port.maps.control.unfit == SEQ) == (not fits)
    assert loaded.events(0) == ([] if fits else [SEQ])
    assert port.process.wait(0) is (Waited.TIME_UP if fits else Waited.UNFIT)


@pytest.mark.parametrize(("seq", "after"), WRAPS)
def test_sequence_numbers_wrap(shared, seq, after) -> None:
    loaded = before(shared, seq)
    port = loaded.ports[0]
    enter(loaded)
    assert loaded.link(0, handshake(port, 1, 2, seq=after)).retval == XDP_DROP
    assert loaded.counters(0) == {"handshakes": 2}
    for rank in (1, 2):
        loaded.link(0, handshake(port, rank, 1))
    assert port.maps.control.met == word_of(seq, 2)
    port.process.open(after)
    enter(loaded)
    assert frames_in(int(port.handshakes.words[1])) == 2
    loaded.link(0, handshake(port, 2, 5))
    assert port.maps.control.met == word_of(after, 7)
    # A late frame is answered by an acknowledgement of all.
    loaded.seq = after
    assert loaded.link(0, loaded.embed(1, 0, 0, seq=seq)).retval == XDP_TX
    loaded.seq = SEQ


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: there is one flow")
def test_each_flow_gets_one_kick() -> None:
    here = min(os.sched_getaffinity(0))
    with Loaded(GRAPH, embeddings(0, GRAPH, 8), processing="pinned") as loaded:
        port = loaded.ports[0]
        before(loaded)
        enter(loaded)
        loaded.link(0, handshake(port, 1))
        kick = loaded.link(0, handshake(port, 2)).data
        flows = sorted(set(port.placement.homes))
        assert len(flows) > 1
        verdicts = {}
        for _ in flows:
            run = loaded.run(0, "pinch_doorbell", kick)
            verdicts[decode(run.data).header.flow] = run.retval
        assert verdicts == {flow: XDP_PASS if flow == here else XDP_REDIRECT for flow in flows}


def test_a_late_handshake_kick_triggers_the_sending_of_frames(loaded) -> None:
    """This rank is the last to enter, and its handshake kick still waits for a CPU when the process
    checks whether all ranks have entered.
    """
    port = loaded.ports[0]
    for rank in (1, 2):
        loaded.link(0, handshake(port, rank))
    mine = np.ascontiguousarray(loaded.x[GRAPH.halos[0].owned])
    with loaded.wire() as tap, kicks() as kicked:
        port.handshakes.enter(0, EXPONENTS)
        port.sending.send(mine, loaded.bundles[0], 1.0, None)
        received(kicked)
        loaded.run(0, "pinch_send", bytes(port.kicks.handshake))
        assert port.maps.control.met >> 32 == SEQ
        (kick,) = received(kicked)
        assert decode(kick).header.flags == KICK_ALL
        received(tap)
        loaded.run(0, "pinch_send", loaded.run(0, "pinch_doorbell", kick).data)
        assert len(received(tap)) > 0


@contextmanager
def kicks() -> Iterator[socket]:
    """A socket at the far end of the doorbell."""
    with socket(AF_PACKET, SOCK_RAW, 0) as tap:
        tap.bind(("doorbell1", ETH_P_ALL))
        yield tap


def test_ranks_far_ahead_answer_a_rank_that_is_still_connecting(loaded) -> None:
    port = loaded.ports[0]
    first = handshake(port, 1, seq=1, exponent=EXPONENTS[0], flags=ASK)
    found = decode(loaded.link(0, first).data)
    assert word_in(found) == 1 << 32
    assert loaded.link(0, handshake(port, 1, seq=1, exponent=EXPONENTS[0])).retval == XDP_DROP
    assert loaded.counters(0) == {"handshakes": 1, "bad_seq": 1}


@pytest.mark.parametrize("seq", [1 << 31, 0xFFFFFFFF])
def test_work_requests_of_high_sequence_numbers_are_executed(shared, seq) -> None:
    loaded = before(shared, seq)
    loaded.ports[0].sending.post(1, np.array([0, 1 | WR_ASK]))
    assert loaded.ports[0].maps.sq[0, :2].tolist() == [word_of(seq, 0), word_of(seq, WR_ASK | 1)]
    loaded.ports[0].maps.flows["sq_tail"] = 0


@pytest.mark.parametrize("world", [31, 32])
@pytest.mark.parametrize("last", [False, True])
def test_many_ranks_meet(world, last) -> None:
    me = world - 1 if last else 0
    graph = draw_partitioned(0, 400, 6000, world)
    with Loaded(graph, embeddings(0, graph, 30), ranks=(me,), processing="pinned") as loaded:
        port = loaded.ports[me]
        port.maps.peers["theirs"] = 0
        port.maps.control.met = 0
        with loaded.wire() as tap:
            port.handshakes.enter(0, EXPONENTS)
            loaded.run(me, "pinch_send", bytes(port.kicks.handshake))
            assert len(received(tap)) == world - 1
        for rank in set(range(world)) - {me}:
            assert port.maps.control.met == 0
            assert rank in port.seen().partners
            loaded.link(me, handshake(port, rank, rank + 1))
        assert port.maps.control.met == word_of(SEQ, world * (world + 1) // 2 - (me + 1))
        assert port.handshakes.words.all()
