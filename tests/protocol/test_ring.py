"""The protocol itself, as `testbed.protocol` models it: whatever the network does, every rank ends
with the exact sum.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.protocol.ring.memory import COUNTERS, Stage, item_of, slots_of
from testbed.protocol.ring.process import Process
from testbed.protocol.ring.rank import Rank
from testbed.protocol.sequence import NEWEST
from testbed.protocol.wire import BLOCK, FRAME_BYTES, RESTART, Frame, Kind, frame_seal
from tests.support.protocol.actions import SCRIPTS, act
from tests.support.protocol.network import Collective, Member, Network, collectives, config
from tests.support.tiers import broad


@pytest.mark.deep
@pytest.mark.timeout(600)
@settings(max_examples=200)
@given(
    ranks=st.integers(2, 5),
    totals=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    window=st.integers(1, 3),
    nack_holdoff_us=st.sampled_from((0, 50)),
    seq=st.sampled_from((0, NEWEST - 2, NEWEST - 1, NEWEST)),
    upstream=st.booleans(),
    reorder_threshold=st.sampled_from((0, 1, 2)),
    script=SCRIPTS,
)
def test_any_interleaving_ends_with_the_exact_sum(
    ranks, totals, nack_holdoff_us, seq, script, **scene
):
    """Each member checks its results against the integer sum before it goes on; see
    `Member.step`.
    """
    todo = collectives(ranks, totals, after=seq, words=16, seed=len(script))
    network = Network(
        ranks, todo, nack_holdoff_us=nack_holdoff_us, chunk_bytes=2 * BLOCK, seq=seq, **scene
    )
    for action, index in script:
        act(network, action, index)
    network.run()


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 16, 31, 32])
@pytest.mark.parametrize("total", [1, 2, 33])
def test_tokens_are_conserved_without_faults(ranks, total):
    """gloo's docs/algorithms.md: a ring moves 2(N-1) times the data in total, and here not one
    frame more.
    """
    window = 2
    network = Network(ranks, collectives(ranks, [total, total]), window=window, retransmit_slots=64)
    tokens = sum(min(window, slots_of(rank, ranks, total)) for rank in range(ranks))
    for member in network.members:
        member.step()
        member.step(total)
    for index, member in enumerate(network.members):
        while member.rank.sq:
            network.serve(index)
            assert len(network.in_flight) <= tokens
    while network.in_flight:
        network.deliver()
        assert len(network.in_flight) <= tokens
    assert all(member.process.finished for member in network.members)
    assert network.total("sent") == 2 * (ranks - 1) * total
    assert network.total("sent_bytes") == 2 * (ranks - 1) * total * (FRAME_BYTES + BLOCK)
    assert network.total("stored") == ranks * total
    assert sum(network.total(name) for name in COUNTERS) == sum(
        network.total(name) for name in ("sent", "sent_bytes", "stored")
    )
    network.run()
    assert network.total("sent") == 4 * (ranks - 1) * total


class Lanes(Network):
    """A network whose ranks have two CPUs each: frames of one stream arrive in order, those of
    different streams in any order.
    """

    def __init__(self, ranks: int, todo: Sequence[Collective]) -> None:
        super().__init__(ranks, todo)
        for index, member in enumerate(self.members):
            rank = Rank(replace(member.rank.config, cpus=2))
            self.members[index] = Member(rank, member.process.window, todo)

    def deliver(self, index: int = 0) -> None:
        """Deliver the oldest frame of the stream that the frame at ``index`` belongs to."""
        ways = [(frame.source, frame.destination, frame.header.stream) for frame in self.in_flight]
        frame = self.in_flight.pop(ways.index(ways[index]))
        rank = self.members[frame.header.receiver].rank
        self.emit(rank.on_frame(frame, self.now_us, cpu=frame.header.stream))
        assert not rank.nack_due

    def serve_on(self, index: int, cpu: int) -> None:
        member = self.members[index]
        self.emit(member.rank.on_wr(member.process.kick(), self.now_us, cpu))


@pytest.mark.deep
@given(
    ranks=st.integers(2, 6),
    order=st.lists(st.integers(0, 1000), min_size=200, max_size=200),
    totals=st.lists(st.integers(1, 9), min_size=1, max_size=3),
)
def test_reordering_between_streams_costs_no_frame(ranks, order, totals):
    """Also with ranks that start late: early frames wait, none is considered lost, and no timer is
    needed.
    """
    network = Lanes(ranks, collectives(ranks, totals))
    for index in order:
        if index % 3 == 1:
            network.serve_on(index // 3 % ranks, index // 7 % 2)
        else:
            act(network, ("deliver", "", "step")[index % 3], index // 3)
    network.run(timers=False)
    assert network.total("sent") == 2 * (ranks - 1) * sum(totals)
    assert network.total("resent") == network.total("duplicate") == network.total("lost") == 0


def test_a_late_rank_finds_early_frames():
    network = Network(3, collectives(3, [6]))
    for index in (0, 1):
        network.members[index].step()
        network.members[index].step(6)
        while network.members[index].rank.sq:
            network.serve(index)
    while network.in_flight:
        network.deliver()
    late = network.members[2]
    assert late.rank.counters["early"] > 0
    late.step()
    late.step(6)
    assert late.rank.sq
    network.run()
    assert network.total("resent") == 0


def test_early_buffer_frees_slots_of_past_sequence_numbers():
    """A duplicate that arrived early and was never replayed does not occupy its slot forever."""
    rank = Rank(config(1, 2))
    process = Process(rank, 1)
    sender = Process(early := Rank(config(0, 2)), 1)
    sender.begin(1, 1, BLOCK, 0)
    sender.publish(1)
    rank.on_frame(early.on_wr(sender.kick()))
    assert rank.early_frames[0] is not None
    process.begin(1, 1, BLOCK, 0)
    process.publish(0)
    assert rank.early_frames[0] is not None
    process.begin(2, 1, BLOCK, 0)
    process.publish(0)
    assert rank.early_frames[0] is None


def losing(network: Network, lost: Callable[[Frame], bool]) -> list[Frame]:
    """Drop frames from now on; return a list to which every frame sent from now on is appended."""
    emit, sent = network.emit, []

    def lossy(frame):
        if frame is not None:
            sent.append(frame.copy())
            if not lost(frame):
                emit(frame)

    network.emit = lossy
    return sent


def way(frame: Frame) -> tuple[int, int]:
    return frame.header.sender, frame.header.receiver


@pytest.mark.parametrize("upstream", [False, True])
@pytest.mark.parametrize("ranks", broad([2, 3, 4, 5], 2))
def test_losses_that_later_frames_show_are_repaired_without_a_timer(ranks, upstream):
    """Each frame is lost in turn: if another frame follows on its stream, the programs request it
    by themselves.
    """
    todo = collectives(ranks, [4 * ranks])
    lossless = Network(ranks, todo)
    lossless.run()
    mended = 0
    for place in range(lossless.total("sent")):
        network = Network(ranks, todo, upstream=upstream)
        places = count()
        sent = losing(network, lambda frame, places=places, place=place: next(places) == place)
        finished = True
        try:
            network.run(timers=False, rounds=20)
        except AssertionError:
            finished = False
        followed = any(
            way(frame) == way(sent[place]) and not frame.header.attempt
            for frame in sent[place + 1 :]
        )
        assert finished == followed, place
        assert (network.total("lost") > 0) == followed
        mended += finished
    assert mended > lossless.total("sent") // 2


@pytest.mark.parametrize("reorder_threshold", [1, 2, 3])
def test_a_missing_frame_is_nacked_once_enough_later_ones_have_arrived(reorder_threshold):
    network = Network(
        2, collectives(2, [16]), window=8, reorder_threshold=reorder_threshold, nack_holdoff_us=5000
    )
    network.now_us = 1 << 20

    def is_second(frame: Frame) -> bool:
        header = frame.header
        return (header.kind, header.chunk, header.attempt) == (Kind.REDUCE, 2, 0)

    sent = losing(network, is_second)
    for index, member in enumerate(network.members):
        member.step()
        member.step(16)
        while index == 0 and member.rank.sq:
            network.serve(index)
    assert [frame.header.chunk for frame in sent] == list(range(0, 16, 2))
    for come in range(reorder_threshold + 1):
        assert not any(frame.header.kind == Kind.NACK for frame in sent), come
        network.deliver()  # the first one was sent before the lost one
    requests = [frame for frame in sent if frame.header.kind == Kind.NACK]
    assert [(frame.header.chunk, frame.header.flags, way(frame)) for frame in requests] == [
        (2, 0, (1, 0))
    ]


def test_without_a_reorder_threshold_only_the_timer_nacks():
    network = Network(3, collectives(3, [9]), reorder_threshold=0)
    sent = losing(
        network,
        lambda frame: (frame.header.chunk, frame.header.attempt, frame.header.hop) == (0, 0, 2),
    )
    with pytest.raises(AssertionError):
        network.run(timers=False, rounds=20)
    assert not any(frame.header.kind == Kind.NACK for frame in sent)
    assert network.total("lost") > 0  # the loss is known, but not nacked
    network.run()


def note_losses(network: Network) -> None:
    """Make all ranks see recent losses, so that they save partial sums."""
    for member in network.members:
        member.rank.lossy = member.rank.seq or 1


def test_upstream_nothing_is_saved_without_losses():
    """The first partial sum that is lost costs its chunk another round, whose partial sums all
    ranks save.
    """
    network = Network(4, collectives(4, [4 * 8]), nack_holdoff_us=5000, retransmit_slots=64)
    network.now_us = 1 << 20

    def is_lost(frame: Frame) -> bool:
        header = frame.header
        return (header.kind, header.chunk) == (Kind.REDUCE, 4) and (header.hop, header.round) in (
            (2, 0),
            (3, 1),
        )

    first = set()
    sent = losing(
        network,
        lambda frame: (
            is_lost(frame) and frame.header.hop not in first and not first.add(frame.header.hop)
        ),
    )
    network.run()
    assert first == {2, 3}
    assert network.total("restarted") == 1
    again = [
        header
        for frame in sent
        if (header := frame.header).chunk == 4 and header.kind == Kind.REDUCE
    ]
    assert [header.hop for header in again if header.round == 1] == [1, 2, 3, 3]


@pytest.mark.parametrize("kind", [Kind.REDUCE, Kind.RESULT])
def test_upstream_a_phase_goes_on_where_it_was_lost(kind):
    """The preceding rank answers with the lost frame, as another attempt: one request, one answer,
    everything else unchanged.

    In the all-gather phase this frame is the result, in the reduce-scatter phase the partial sum
    that the preceding rank has kept.
    """
    network = Network(4, collectives(4, [4 * 8]), nack_holdoff_us=5000, retransmit_slots=64)
    network.now_us = 1 << 20
    note_losses(network)
    place = (kind, 4, 2)

    def is_lost(frame: Frame) -> bool:
        return (
            frame.header.kind,
            frame.header.chunk,
            frame.header.hop,
        ) == place and not frame.header.attempt

    sent = losing(network, is_lost)
    network.run(timers=False)
    (request,) = [frame for frame in sent if frame.header.kind == Kind.NACK]
    lost, again = (
        frame
        for frame in sent
        if (frame.header.kind, frame.header.chunk, frame.header.hop) == place
    )
    assert way(request) == way(lost)[::-1]
    assert (again.source, again.destination) == (lost.source, lost.destination)
    assert again.header.attempt > 0
    same = replace(
        again.header,
        attempt=lost.header.attempt,
        checksum=lost.header.checksum,
        flags=lost.header.flags,
    )
    assert same == lost.header
    np.testing.assert_array_equal(again.payload, lost.payload)
    assert network.total("sent") == 2 * 3 * 32 + 2
    assert network.total("restarted") == 0


def test_upstream_a_phase_whose_partial_sum_is_lost_starts_over():
    """The partial sum was evicted from its slot or never had one: the preceding rank asks the owner
    for another round.
    """
    network = Network(4, collectives(4, [4 * 8]), retransmit_slots=1, nack_holdoff_us=5000)
    network.now_us = 1 << 20
    note_losses(network)

    def is_lost(frame: Frame) -> bool:
        header = frame.header
        return (header.kind, header.chunk, header.hop, header.round) == (
            Kind.REDUCE,
            8,
            3,
            0,
        ) and not header.attempt

    sent = losing(network, is_lost)
    network.run()
    assert network.total("unsaved") > 0
    assert network.total("restarted") == 1
    restarts = [
        frame for frame in sent if frame.header.kind == Kind.NACK and frame.header.flags & RESTART
    ]
    assert {(frame.header.chunk, way(frame)) for frame in restarts} == {(8, (2, 0))}
    again = [frame for frame in sent if (frame.header.chunk, frame.header.round) == (8, 1)]
    assert [frame.header.hop for frame in again if frame.header.kind == Kind.REDUCE] == [1, 2, 3]


@pytest.mark.parametrize("upstream", [False, True])
def test_tokens_whose_last_frame_is_lost_go_on(upstream):
    """The last all-gather hop of each chunk is lost once: the answer becomes the next chunk in its
    place, and no chunk is launched twice.
    """
    network = Network(3, collectives(3, [9]), window=1, upstream=upstream)
    lost = set()

    def is_last(frame: Frame) -> bool:
        header = frame.header
        if header.kind != Kind.RESULT or header.hop != 2 or header.chunk in lost:
            return False
        lost.add(header.chunk)
        return True

    sent = losing(network, is_last)
    network.run()
    assert lost == set(range(9))
    first = [
        frame.header.chunk
        for frame in sent
        if (frame.header.kind, frame.header.hop) == (Kind.REDUCE, 1)
    ]
    assert sorted(chunk for chunk in first) == list(range(9))


@pytest.mark.parametrize("upstream", [False, True])
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_last_frame_of_a_stream_is_found_by_a_probe(ranks, upstream):
    """Nothing follows the last frame; the answer to a probe travels on the same stream behind it
    and names it.
    """
    todo = collectives(ranks, [ranks])
    lossless = Network(ranks, todo)
    ends = losing(lossless, lambda frame: False)
    lossless.run()
    last = {way(frame): place for place, frame in enumerate(ends)}
    for place in last.values():
        network = Network(ranks, todo, upstream=upstream)
        places = count()
        sent = losing(network, lambda frame, places=places, place=place: next(places) == place)
        network.run()
        assert network.total("lost") == 1
        answers = [
            frame
            for frame in sent
            if frame.header.kind == Kind.ALIVE and way(frame) == way(sent[place])
        ]
        item = item_of(
            sent[place].header.chunk,
            0,
            Stage.RESULT if sent[place].header.kind == Kind.RESULT else Stage.PARTIAL,
        )
        assert answers[0].header.prev == item


@pytest.mark.parametrize("upstream", [False, True])
@pytest.mark.parametrize(
    ("kind", "to"), [(Kind.REDUCE, 2), (Kind.REDUCE, 1), (Kind.RESULT, 0), (Kind.RESULT, 1)]
)
@pytest.mark.parametrize("round_", [0, 3])
def test_a_program_held_up_since_the_previous_collective_changes_nothing(
    upstream, kind, to, round_
):
    """Between a program's reading of its state and its action, the process enters the next
    collective and that one's result arrives.
    """
    todo = collectives(3, [3, 3])
    network = Network(3, todo, upstream=upstream)
    sent = losing(network, lambda frame: False)
    for index, member in enumerate(network.members):
        member.step()
        member.step(3)
        while member.rank.sq:
            network.serve(index)
    while network.in_flight:
        network.deliver()
    chunk = 0
    frame = next(
        each
        for each in sent
        if (each.header.kind, each.header.chunk, each.header.receiver) == (kind, chunk, to)
    )
    frame.header.round = round_
    frame.header.checksum += frame_seal(frame.header) - frame_seal(replace(frame.header, round=0))
    frame.header.checksum &= 0xFFFFFFFFFFFFFFFF
    rank = network.members[to].rank
    work = rank.look(frame, network.now_us)
    network.run()
    before = (
        rank.chunks[chunk].result,
        rank.chunks[chunk].reduced,
        rank.stored,
        rank.results[chunk].copy(),
    )
    assert before[0] >> 32 == todo[1].seq
    rank.act(work)
    assert (rank.chunks[chunk].result, rank.chunks[chunk].reduced, rank.stored) == before[:3]
    np.testing.assert_array_equal(rank.results[chunk], before[3])
