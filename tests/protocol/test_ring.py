"""The protocol itself, on `testbed.protocol`: whatever the network does, every rank ends with the exact sum."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.protocol.generation import NEWEST, generation_after
from testbed.protocol.memory import COUNTERS, slots_of
from testbed.protocol.process import Process
from testbed.protocol.ring import Rank
from testbed.protocol.wire import BLOCK, FRAME_BYTES, Header, Kind
from tests.protocol.network import Network, collectives, config

ACTIONS = ("deliver", "deliver", "serve", "step", "lose", "duplicate", "damage", "cancel", "misread", "timer")
"""A healthy network most of the time: what delivers is drawn more often."""

WIDTHS = {"generation": 32, "chunk": 32, "checksum": 64, "length": 16, "tag": 16, "attempt": 16, "prev": 32}
FIELDS = ("kind", "lane", "hop", "sender", "receiver", "flags", "round", *WIDTHS)

# Long ones: hypothesis tends to lists of about twice the least size, and a handful of actions comes to no loss.
SCRIPTS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1000)), min_size=80, max_size=400)


def act(network: Network, action: str, index: int) -> None:
    """One thing that happens, to the frame or member that ``index`` falls on."""
    flying, member = network.flying, network.members[index % len(network.members)]
    if action == "serve":
        network.serve(index % len(network.members))
    elif action == "step":
        member.step(index % 3 + 1)
    elif action == "timer" and member.waiting:
        member.process.on_timer(network.now_us)
    elif not flying:
        return
    elif action == "deliver":
        network.deliver(index % len(flying))
    elif action == "lose":
        flying.pop(index % len(flying))
    elif action == "duplicate":
        flying.append(flying[index % len(flying)].copy())
    elif action == "damage" and (frame := flying[index % len(flying)]).payload.size:
        frame.payload[index % frame.payload.size] ^= np.uint64(1 << index % 64)
    elif action == "cancel" and (frame := flying[index % len(flying)]).payload.size:
        # Two errors that a sum of words does not see: a bit set in one word, and the same one cleared in another.
        bit = np.uint64(1 << index % 64)
        clear, full = np.flatnonzero(frame.payload & bit == 0), np.flatnonzero(frame.payload & bit)
        if clear.size and full.size:
            frame.payload[[clear[index % clear.size], full[index % full.size]]] ^= bit
    elif action == "misread":
        header, field = flying[index % len(flying)].header, FIELDS[index % len(FIELDS)]
        setattr(header, field, getattr(header, field) ^ 1 << index // len(FIELDS) % WIDTHS.get(field, 8))


@settings(max_examples=200)
@given(
    ranks=st.integers(2, 5),
    totals=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    window=st.integers(1, 3),
    holdoff_us=st.sampled_from((0, 50)),
    generation=st.sampled_from((0, NEWEST - 2, NEWEST - 1, NEWEST)),
    upstream=st.booleans(),
    gap=st.sampled_from((0, 1, 2)),
    script=SCRIPTS,
)
def test_any_interleaving_ends_with_the_exact_sum(ranks, totals, holdoff_us, generation, script, **scene):
    """Each member checks its results against the integer sum before it goes on; see `Member.step`."""
    todo = collectives(ranks, totals, after=generation, words=16, seed=len(script))
    network = Network(ranks, todo, holdoff_us=holdoff_us, chunk_bytes=2 * BLOCK, generation=generation, **scene)
    for action, index in script:
        act(network, action, index)
    network.run()


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 16, 31, 32])
@pytest.mark.parametrize("total", [1, 2, 33])
def test_tokens_are_conserved_without_faults(ranks, total):
    """gloo's docs/algorithms.md: a ring moves 2(N-1) times the data in all; here not one frame more."""
    window = 2
    network = Network(ranks, collectives(ranks, [total, total]), window=window)
    tokens = sum(min(window, slots_of(rank, ranks, total)) for rank in range(ranks))
    for member in network.members:
        member.step()
        member.step(total)
    for index, member in enumerate(network.members):
        while member.rank.orders:
            network.serve(index)
            assert len(network.flying) <= tokens
    while network.flying:
        network.deliver()
        assert len(network.flying) <= tokens
    assert all(member.process.finished for member in network.members)
    assert network.total("sent") == 2 * (ranks - 1) * total
    assert network.total("sent_bytes") == 2 * (ranks - 1) * total * (FRAME_BYTES + BLOCK)
    assert network.total("stored") == ranks * total
    assert sum(network.total(name) for name in COUNTERS) == sum(
        network.total(name) for name in ("sent", "sent_bytes", "stored")
    )
    network.run()
    assert network.total("sent") == 4 * (ranks - 1) * total


@given(
    ranks=st.integers(2, 6),
    order=st.lists(st.integers(0, 1000), min_size=200, max_size=200),
    totals=st.lists(st.integers(1, 9), min_size=1, max_size=3),
)
def test_reordering_alone_costs_no_frame(ranks, order, totals):
    """Also with ranks that start late: what comes early is parked, nothing is sent anew, no timer is needed."""
    network = Network(ranks, collectives(ranks, totals))
    for index in order:
        act(network, ("deliver", "serve", "step")[index % 3], index // 3)
    network.run(timers=False)
    assert network.total("sent") == 2 * (ranks - 1) * sum(totals)
    assert network.total("resent") == network.total("duplicate") == 0


def test_a_late_rank_finds_frames_parked():
    network = Network(3, collectives(3, [6]))
    for index in (0, 1):
        network.members[index].step()
        network.members[index].step(6)
        while network.members[index].rank.orders:
            network.serve(index)
    while network.flying:
        network.deliver()
    late = network.members[2]
    assert late.rank.counters["parked"] > 0
    late.step()
    late.step(6)
    assert late.rank.orders
    network.run()
    assert network.total("resent") == 0


def test_parking_lets_go_of_past_generations():
    """A duplicate that was parked and never replayed does not take its slot for good."""
    rank = Rank(config(1, 2))
    process = Process(rank, 1)
    frame = Process(Rank(config(0, 2)), 1).bell()
    frame.source = rank.config.peers[0]
    frame.header = Header(Kind.REDUCE, cookie=frame.header.cookie, generation=1, chunk=0, hop=1, length=BLOCK)
    rank.on_frame(frame)
    assert rank.parking[0] is not None
    process.begin(1, 1, BLOCK, 0)
    process.publish(0)
    assert rank.parking[0] is not None
    process.begin(2, 1, BLOCK, 0)
    process.publish(0)
    assert rank.parking[0] is None


def test_every_frame_lost_once_is_recovered_from():
    """One loss at each place of a collective in turn: the rest is delivered in order."""
    lossless = Network(3, collectives(3, [5]))
    lossless.run()
    for place in range(lossless.total("sent")):
        network = Network(3, collectives(3, [5]))
        seen = 0
        emit = network.emit

        def lossy(frame, emit=emit, place=place):
            nonlocal seen
            if frame is not None:
                seen += 1
                if seen == place + 1:
                    return
            emit(frame)

        network.emit = lossy
        network.run()
        assert network.total("resent") > 0


@pytest.mark.parametrize("upstream", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_gaps_are_closed_without_a_timer(ranks, upstream):
    """One loss at each place in turn, of a chunk that others of its owner follow: the kernel alone asks for it."""
    todo = collectives(ranks, [8 * ranks])
    lossless = Network(ranks, todo)
    lossless.run()
    for place in range(lossless.total("sent")):
        network = Network(ranks, todo, upstream=upstream, gap=2)
        emit, chunks = network.emit, []

        def lossy(frame, emit=emit, chunks=chunks, place=place):
            if frame is not None:
                chunks.append(frame.header.chunk)
                if len(chunks) == place + 1:
                    return
            emit(frame)

        network.emit = lossy
        followed = True
        try:
            network.run(timers=False, rounds=20)
        except AssertionError:
            followed = False
        assert followed or chunks[place] // ranks >= 8 - 4, (place, chunks[place])
        assert network.total("gaps") > 0 or not followed or chunks[place] // ranks >= 8 - 4


def test_upstream_goes_on_where_a_second_lap_was_lost():
    """The neighbour's answer is the frame that was lost, with another attempt, and ends where that would have."""
    network = Network(4, collectives(4, [4 * 8]), upstream=True, gap=1, holdoff_us=5000)
    network.now_us = 1 << 20
    emit, sent = network.emit, []

    def lossy(frame):
        header = frame.header
        sent.append(frame)
        if header.kind == Kind.RESULT and header.chunk == 4 and header.hop == 2 and not header.attempt:
            return
        emit(frame)

    network.emit = lossy
    network.run(timers=False)
    requests = [frame for frame in sent if frame.header.kind == Kind.REQUEST]
    # The rank behind asks as well, and its neighbour, who does so already, passes nothing on.
    ways = [(frame.source.ip, frame.destination.ip) for frame in requests]
    assert ways == [("10.0.0.2", "10.0.0.1"), ("10.0.0.3", "10.0.0.2")]
    lost, again = (frame for frame in sent if (frame.header.kind, frame.header.chunk, frame.header.hop) == (Kind.RESULT, 4, 2))
    assert (again.source, again.destination) == (lost.source, lost.destination)
    assert (again.header.last, again.header.attempt, again.header.flags) == (lost.header.last, 1, 0)
    assert network.total("sent") == 2 * 3 * 32 + 3  # two requests, one answer: what follows is the lap that was to come


def test_tokens_that_are_lost_without_a_result_are_claimed_anew():
    """Lap two is lost before its end, its answer behind the last rank that lacked it: all is stored, no token is left."""
    network = Network(3, collectives(3, [9]), window=1)
    emit, lost = network.emit, set()

    def lossy(frame):
        if frame is not None and frame.header.kind == Kind.RESULT and frame.header.flags & USEFUL:
            to = int(frame.destination.ip.rpartition(".")[2]) - 1
            chunk = frame.header.chunk
            stored = network.members[to].rank.chunks[chunk].done == frame.header.generation
            if stored or (to == frame.header.last and chunk not in lost):
                lost.add(chunk)
                return
        emit(frame)

    network.emit = lossy
    network.run()
    assert lost == set(range(9))


def test_generation_numbers_wrap_past_none_and_change_parity():
    numbers = [NEWEST - 1]
    for _ in range(4):
        numbers.append(generation_after(numbers[-1]))
    assert numbers == [NEWEST - 1, NEWEST, 2, 3, 4]
    assert all((one ^ other) & 1 for one, other in pairwise(numbers))
