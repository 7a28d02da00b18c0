"""Failures of collectives that have been observed in the network, one test each.

Some have their tests elsewhere: the same frame on two CPUs at once, stored
(tests/kernel/test_ring_race.py); 10,000 collectives in a row, and a rank that stops for half a
second (tests/collectives/test_xdp_ring.py); nacks of another collective, earlier, later or never
launched (tests/kernel/test_hostile_frames.py).
"""

import os
import threading
import time
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest

from testbed.collectives.ring.layout import Layout, chunk_bytes_for
from testbed.comm.group import make_groups
from testbed.core.errors import CollectiveError, SpecError
from testbed.datapath import set_datapath
from testbed.fabric import Fabric
from testbed.plan import plan_fabric
from testbed.protocol.lanes import Lanes
from testbed.protocol.ring.memory import Stage, item_of
from testbed.protocol.sequence import NEWEST, word_of
from testbed.protocol.status import Fault, Kind, decode, encode
from testbed.protocol.wire import Kind as FrameKind
from testbed.protocol.wire import decode as decode_frame
from testbed.worker import Workers
from tests.support.collectives.ring_calls import (
    check,
    close_in,
    counters_in,
    expected,
    make_input,
    open_in,
    reduce_in,
    reduce_values_in,
    set_seq_in,
)
from tests.support.fabric.tap import received, replay, tapped
from tests.support.kept import kept
from tests.support.kernel.packets import LENGTH, SEQ, TAG, kick, loaded, packet
from tests.support.kernel.pair import Pair
from tests.support.protocol.network import Network, collectives
from tests.support.tiers import broad
from tests.support.waiting import wait_until

net = pytest.mark.net
kernel_test = pytest.mark.kernel
two_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: nothing can race")

BITS = pytest.mark.parametrize("bits", broad([16, 32]))
GROUPS = count()
SO_RCVBUFFORCE = 33  # asm-generic/socket.h
ETH_P_ALL = 3


class Groups:
    """A fabric on which tests form groups, each with a number of its own."""

    def __init__(self, fabric: Fabric, workers: Workers) -> None:
        self.fabric = fabric
        self.workers = workers
        self.hosts = fabric.plan.hosts

    def form(self, ranks: int = 4, group_id: int | None = None, **options) -> int:
        """Form a group of the first hosts; return its number."""
        group_id = next(GROUPS) if group_id is None else group_id
        hosts = self.hosts[:ranks]
        options = {"capacity": 1 << 18, "mtu": self.fabric.plan.mtu, "timeout": 30.0} | options
        specs = make_groups(hosts, group_id=group_id, **options)
        self.workers.call_all(
            open_in, {h.name: {"spec": s} for h, s in zip(hosts, specs, strict=True)}, timeout=60
        )
        return group_id

    def call(self, function, group_id: int, ranks: int = 4, each=None, **arguments) -> list:
        """Call a function in all ranks' workers; return what they return or raise, by rank.

        :param each: Arguments that differ, by rank.
        """
        calls = {
            host.name: {"group_id": group_id, **arguments, **(each[rank] if each else {})}
            for rank, host in enumerate(self.hosts[:ranks])
        }
        return list(self.workers.call_all(function, calls, errors="return", timeout=90).values())

    def reduce(self, group_id: int, sizes: list[int], bits: int, ranks: int = 4) -> None:
        """Sum random tensors, and compare bit for bit."""
        check(
            self.call(
                reduce_in, group_id, ranks, [{"rank": rank} for rank in range(ranks)], sizes=sizes
            ),
            sizes,
            bits,
        )

    def sum(self, group_id: int, values: list) -> list:
        """Sum one tensor per rank; return what each rank gets or raises."""
        return self.call(
            reduce_values_in, group_id, len(values), [{"values": one} for one in values]
        )

    def counters(self, group_id: int, ranks: int = 4) -> list[dict[str, int]]:
        return self.call(counters_in, group_id, ranks)


@pytest.fixture(scope="module")
def four() -> Iterator[Groups]:
    with Fabric(plan_fabric(hosts=4)) as fabric, Workers(fabric, modules=[__name__]) as workers:
        set_datapath(fabric, "xdp")
        yield Groups(fabric, workers)


# A frame and its duplicate on two CPUs.


@kernel_test
@two_cpus
@pytest.mark.deep
def test_a_frame_and_its_duplicate_are_saved_whole_on_two_cpus() -> None:
    """Each frame is saved once, or twice in separate slots; saved frames are complete, and
    replaying them gives the same sum.
    """
    rounds, chunks = 80, range(0, 3 * 80, 3)
    words = [np.full(LENGTH // 8, chunk, np.uint64) for chunk in chunks]
    early = {"kind": FrameKind.REDUCE, "hop": 1, "seq": SEQ + 1}
    frames = [packet(one, chunk=chunk, **early) for chunk, one in zip(chunks, words, strict=True)]
    with loaded(chunks=3 * rounds) as (kernel, native):
        for _ in range(20):
            kernel.reset(SEQ)
            Pair(lambda turn: kernel.run("ring_link", frames[turn])).run(rounds)
            counted = kernel.counters()
            # The later frame is a duplicate, or finds the slots of its chunk taken by others in the
            # meantime.
            assert counted["early"] + counted["duplicate"] == 2 * rounds
            early = [entry for entry in kernel.early_frames if entry.state]
            assert len(early) == counted["early"]
            assert {entry.chunk for entry in early} == set(chunks)
            kernel.inputs[:] = 1
            native.begin(SEQ + 1, 3 * rounds, LENGTH, TAG)
            native.control.next = 0
            native.publish(SEQ + 1, 3 * rounds)
            native.kicks()
            assert len(native.waiting()) == len(early)
            for _ in early:
                sent = decode_frame(kernel.run("ring_execute", kick()).data)
                assert (sent.payload == sent.header.chunk + 1).all()


@kernel_test
@two_cpus
@pytest.mark.deep
def test_a_loss_that_two_cpus_see_is_nacked_by_one_of_them_or_both() -> None:
    """Every other result of an owner is missing; the others arrive on both CPUs at once, and each
    names the missing one before it. Each CPU has a nack queue of its own, and sends no nack if it
    finds that the other has.
    """
    rounds = 500
    chunks = range(0, 6 * rounds, 6)
    one = np.ones(LENGTH // 8, np.uint64)
    lost = [item_of(chunk + 3, 0, Stage.RESULT) for chunk in chunks]
    fields = {"kind": FrameKind.RESULT, "hop": 2}
    frames = [
        packet(one, chunk=chunk, prev=item, **fields)
        for chunk, item in zip(chunks, lost, strict=True)
    ]
    with loaded(chunks=6 * rounds, reorder_threshold=1) as (kernel, native):
        kernel.reset(SEQ - 1, nack_holdoff_us=60_000_000)
        native.begin(SEQ, 6 * rounds, LENGTH, TAG)
        native.control.progress = word_of(SEQ, 6 * rounds)
        native.control.next = word_of(SEQ, 0xFFFF)  # no token can become another chunk

        def work(turn: int) -> None:
            kernel.run("ring_link", frames[turn])
            kernel.run("ring_execute", frames[turn])  # a copy that sends nacks if any are due

        Pair(work).run(rounds)
        counted = kernel.counters()
        assert counted["stored"] == rounds
        # A frame whose duplicate was stored first is not processed further; otherwise both CPUs see
        # what is missing.
        assert rounds <= counted["lost"] <= 2 * rounds
        assert rounds <= counted["resent"] <= counted["lost"]
        nacks = kernel.records["nacks"][3::6]
        assert ((nacks == 1) | (nacks == 2)).all()
        assert rounds <= nacks.sum() <= counted["resent"]
        assert (kernel.records["lost"][3::6, Stage.RESULT] == SEQ).all()


# Sequence numbers.


@pytest.mark.parametrize("upstream", [False, True])
@pytest.mark.parametrize("after", [0, NEWEST - 1])
def test_frames_of_the_previous_collective_may_arrive_in_the_next(upstream, after) -> None:
    """All of them arrive again before each frame of the next one: each rank's sums are exact (see
    `Member.step`).
    """
    todo = collectives(3, [6, 6], after=after)
    network = Network(3, todo, upstream=upstream, reorder_threshold=1, seq=after)
    emit, recorded = network.emit, []

    def record(frame) -> None:
        if frame is not None and frame.header.seq == todo[0].seq:
            recorded.append(frame.copy())
        emit(frame)

    network.emit = record
    deliver = network.deliver

    def flood(index: int = 0) -> None:
        if network.in_flight[index].header.seq != todo[0].seq:
            for old in recorded:
                rank = network.members[int(old.destination.ip.rpartition(".")[2]) - 1].rank
                # Replies to them are dropped: they would be just as old.
                rank.on_frame(old, network.now_us)
        deliver(index)

    network.deliver = flood
    network.run()
    assert recorded
    assert network.total("bad_seq") > 0


@net
@BITS
def test_the_sequence_number_wraps(four, bits) -> None:
    group = four.form(lanes=f"int{bits}")
    four.call(set_seq_in, group, seq=NEWEST - 4)
    four.reduce(group, [3000, 100_003, 1] * 3, bits)


def seq_in(context, group_id):
    return kept(context)[group_id].seq


@net
@pytest.mark.deep
def test_results_of_2_to_the_32_collectives_ago_are_not_taken_for_new_ones(four) -> None:
    """Nothing touches the last chunks of a large tensor until the sequence number under which they
    were stored comes again.

    Numbers only go forward by less than half their range at a time, and old results are forgotten
    on the way.
    """
    group = four.form(lanes="int32", timeout=5.0)
    four.reduce(group, [100_003] * 8, 32)
    number = four.call(seq_in, group)[0]
    for quarter in (1, 2, 3):
        four.call(set_seq_in, group, seq=(quarter << 30) - 2)
        four.reduce(group, [3000] * 3, 32)
    four.call(set_seq_in, group, seq=NEWEST - 1)
    four.reduce(group, [3000] * 2, 32)
    assert four.call(seq_in, group)[0] < number - 1
    four.call(set_seq_in, group, seq=number - 1)
    four.reduce(group, [100_003], 32)


# Ranks that come late.


def reduce_late_in(context, size, rank, late, group_id):
    time.sleep(late)
    return reduce_in(context, [size], rank, group_id)


@net
@BITS
@pytest.mark.parametrize("late", broad([0, 1, 3]))
@pytest.mark.deep
def test_one_rank_enters_200_ms_after_the_others(four, bits, late) -> None:
    """Frames sent to it in the meantime arrive early, and its sum equals the others'."""
    group = four.form(lanes=f"int{bits}")
    four.reduce(group, [50_000], bits)  # agrees on the scale
    before = four.counters(group)[late]["early"]
    each = [{"rank": rank, "late": 0.2 * (rank == late)} for rank in range(4)]
    check(four.call(reduce_late_in, group, 4, each, size=50_000), [50_000], bits)
    assert four.counters(group)[late]["early"] > before


# More ranks than a field has bits.


def test_a_status_tells_32_ranks_apart() -> None:
    """All ranks with the same exponent, the worst case for one byte; and each rank alone with a
    fault that fills its record.
    """
    total = np.sum(
        [np.frombuffer(encode(32, rank, 5, 0), np.uint64) for rank in range(32)],
        axis=0,
        dtype=np.uint64,
    )
    assert decode(32, total.tobytes()).exponent == 5
    for bad in range(32):
        fault = Fault(bad, Kind.INFINITY, (1 << 31) - 1, 0xFFFFFFFF)
        parts = [encode(32, rank, rank, 0, fault if rank == bad else None) for rank in range(32)]
        summed = np.sum([np.frombuffer(part, np.uint64) for part in parts], axis=0, dtype=np.uint64)
        status = decode(32, summed.tobytes())
        assert (status.exponent, status.faults) == (31, (fault,))


@pytest.mark.parametrize("ranks", [31, 32])
@pytest.mark.parametrize("upstream", [False, True])
def test_32_ranks_recover_from_losses(ranks, upstream) -> None:
    network = Network(
        ranks, collectives(ranks, [2 * ranks]), upstream=upstream, nack_holdoff_us=2000
    )
    network.now_us = 1 << 20
    emit, seen = network.emit, count()

    def lossy(frame) -> None:
        if frame is None or next(seen) % 97:
            emit(frame)

    network.emit = lossy
    network.run()
    assert network.total("resent") > 0


@net
@pytest.mark.timeout(240)
@pytest.mark.deep
def test_32_ranks_sum_exactly() -> None:
    with Fabric(plan_fabric(hosts=32)) as fabric, Workers(fabric, modules=[__name__]) as workers:
        set_datapath(fabric, "xdp")
        groups = Groups(fabric, workers)
        groups.reduce(groups.form(32, lanes="int16", capacity=1 << 14), [1, 10_007], 16, 32)


def test_33_ranks_are_refused() -> None:
    hosts = list(plan_fabric(hosts=32).hosts)
    with pytest.raises(SpecError, match=r"^group: 33 members: must be 1\.\.32$"):
        make_groups([*hosts, hosts[0]])
    with pytest.raises(SpecError, match="33"):
        plan_fabric(hosts=33)


# Numbers that a format cannot hold.


@net
@BITS
@pytest.mark.deep
def test_rounding_alone_is_no_overflow(four, bits) -> None:
    """Alternately the largest float32 and its negative: one of three is left over, whatever
    rounding adds to it.
    """
    most = float(np.finfo(np.float32).max)
    values = [[most, -most], [-most, most], [most, -most]]
    for answer in four.sum(four.form(3, lanes=f"int{bits}"), values):
        np.testing.assert_allclose(answer, [most, -most], rtol=2.0 ** (3 - bits + 2))


@net
@BITS
def test_a_sum_overflows_float32(four, bits) -> None:
    """Every rank raises an error that names the index, or returns the largest float32 if this was
    requested.
    """
    most = float(np.finfo(np.float32).max)
    values = [[1.0, 0.75 * most, -2.0]] * 4
    for answer in four.sum(four.form(lanes=f"int{bits}"), values):
        assert isinstance(answer, CollectiveError)
        assert "the sum over ranks 0..3 overflows float32 at index 1" in str(answer)
    group = four.form(lanes=f"int{bits}", on_overflow="saturate")
    for answer in four.sum(group, values):
        assert answer[1] == most
        assert np.isfinite(answer).all()
    for answer in four.sum(group, [[most, -most], [-most, most], [most, -most], [-most, most]]):
        assert (
            np.abs(answer).max() <= most * 2.0**-12
        )  # cancels within the lanes, does not saturate


def bound_in(context, absmax, group_id):
    return kept(context)[group_id].error_bound(absmax)


SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
SMALL = {
    "1e-30": ([1e-30, -3e-31, 5e-34], 1e-30),
    "the least normal": ([2.0**-126, -(2.0**-126), 0.0], 2.0**-126),
    "subnormal": ([1e-40, -1e-41, SMALLEST], 1e-40),
    "zeros": ([0.0, -0.0, 0.0], 0.0),
    "mixed with large ones": ([1e30, 1e-30, -1e-40], 1e30),
    "mixed with one": ([1.0, 1e-8, -1e-30], 1.0),
}


@net
@BITS
@pytest.mark.parametrize("name", broad(SMALL))
def test_inputs_that_a_fixed_scale_would_lose_keep_their_precision(four, bits, name) -> None:
    """1e-30 at a scale of 1e8 vanishes. Here the error depends on the group's largest magnitude,
    whatever that is.
    """
    values, absmax = SMALL[name]
    values = np.array(values, np.float32)
    group = four.form(lanes=f"int{bits}")
    bound = four.call(bound_in, group, absmax=absmax)[0]
    for answer in four.sum(group, [values, -values / 2, values, values]):
        assert np.abs(answer.astype(float) - 2.5 * values.astype(float)).max() <= bound
        if absmax > 2.0**-100:
            assert abs(answer[0] / (2.5 * values[0]) - 1) < 2.0 ** (6 - bits + 3)


# Ranks that sum different things.


@net
@pytest.mark.deep
def test_ranks_with_different_lanes_are_an_error(four) -> None:
    """One value and a status have the same length with both: only the tag differs."""
    hosts, group_id = four.hosts, next(GROUPS)
    specs = [
        make_groups(hosts, group_id=group_id, lanes=f"int{16 + 16 * (rank == 2)}", timeout=1.0)[
            rank
        ]
        for rank in range(4)
    ]
    specs = [spec.model_copy(update={"cookie": specs[0].cookie}) for spec in specs]
    calls = {host.name: {"spec": spec} for host, spec in zip(hosts, specs, strict=True)}
    four.workers.call_all(open_in, calls, timeout=60)
    answers = four.sum(group_id, [[1.0]] * 4)
    assert all(isinstance(answer, CollectiveError) for answer in answers)
    assert "the ranks reduce different tensors" in str(answers[2])


# Blocks that do not fit.


@net
@pytest.mark.parametrize("mtu", broad([1500, 576, 3506]))
@pytest.mark.deep
def test_tensors_around_a_multiple_of_the_mtu_are_summed(mtu) -> None:
    """Tensors that end just before, at and just after the end of a frame, with and without the
    status.
    """
    with (
        Fabric(plan_fabric(hosts=3, mtu=mtu)) as fabric,
        Workers(fabric, modules=[__name__]) as workers,
    ):
        set_datapath(fabric, "xdp")
        groups = Groups(fabric, workers)
        chunk_bytes = chunk_bytes_for(mtu)
        for bits in (16, 32):
            lanes = Lanes(bits, 3)
            totals = [
                Layout.plan(size, lanes, chunk_bytes).total
                for size in range(6 * chunk_bytes // lanes.bytes)
            ]
            ends = (
                np.flatnonzero(np.diff(totals)) + 1
            )  # sizes that take one more frame than the preceding ones
            whole = chunk_bytes // lanes.bytes
            near = {int(end) + step for end in [*ends[:3], whole, 2 * whole] for step in (-1, 0, 1)}
            groups.reduce(groups.form(3, lanes=f"int{bits}"), sorted(near), bits, 3)


# Frames of another run.


@net
@pytest.mark.deep
def test_frames_recorded_in_one_run_do_no_harm_in_the_next() -> None:
    """A host outside replays all frames of the first group while the second works, which has
    another cookie.

    Sequence numbers start at 1 in every group, so only the cookie differs. A bridge forwards to
    such a host what a switch program does not.
    """
    with (
        Fabric(plan_fabric(hosts=4, switch="bridge")) as fabric,
        Workers(fabric, modules=[__name__]) as workers,
    ):
        set_datapath(fabric, "xdp")
        groups = Groups(fabric, workers)
        sizes = [20_000, 1, 3000] * 3
        others = [
            [-make_input(size, rank) for rank in range(3)] for size in sizes
        ]  # of the same size, so with the same tag
        with tapped(fabric) as tap:
            group = groups.form(3)
            for values in others:
                groups.sum(group, values)
            recorded = dict(received(tap))
        kinds = {frame.header.kind for frame in recorded.values()}
        assert {FrameKind.REDUCE, FrameKind.RESULT} <= kinds
        groups.call(close_in, group, 3)
        groups.form(3, group)
        before = groups.counters(group, 3)
        replayed = threading.Thread(target=replay, args=(fabric, sorted(recorded)))
        replayed.start()
        while replayed.is_alive():
            groups.reduce(group, sizes, 32, 3)
        replayed.join()
        wait_until(lambda: met(groups, group, before) > len(recorded) // 2)
        groups.reduce(group, sizes, 32, 3)
        assert met(groups, group, before) <= len(recorded)


def met(groups: Groups, group: int, before: list[dict[str, int]]) -> int:
    """The number of frames with another cookie that have arrived since."""
    return sum(
        now["bad_cookie"] - then["bad_cookie"]
        for now, then in zip(groups.counters(group, 3), before, strict=True)
    )


# Two groups on the same hosts.


def reduce_both_in(context, rank, groups, size, times, at_once):
    """Run two groups' collectives in one process: alternately, or in a thread each."""
    results = {group_id: [] for group_id in groups}

    def work(group_id, rounds):
        for _ in range(rounds):
            results[group_id] += reduce_in(context, [size], rank, group_id)

    if at_once:
        threads = [threading.Thread(target=work, args=(group_id, times)) for group_id in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        for _ in range(times):
            for group_id in groups:
                work(group_id, 1)
    return [results[group_id] for group_id in groups]


@net
@pytest.mark.parametrize("at_once", broad([True, False]), ids=["at once", "by turns"])
def test_two_groups_on_the_same_hosts_do_not_disturb_each_other(four, at_once) -> None:
    """One of them has the opposite order of ranks, so that each link carries both groups in both
    directions.
    """
    hosts = four.hosts
    groups = [four.form(lanes="int16"), next(GROUPS)]
    specs = make_groups(
        hosts[::-1], group_id=groups[1], lanes="int16", capacity=1 << 18, mtu=1500, timeout=30.0
    )
    four.workers.call_all(
        open_in, {host.name: {"spec": spec} for host, spec in zip(hosts[::-1], specs, strict=True)}
    )
    same = {"groups": groups, "size": 20_011, "times": 20, "at_once": at_once}
    calls = {host.name: {"rank": host.rank, **same} for host in hosts}
    answers = four.workers.call_all(reduce_both_in, calls, timeout=90)
    reference = expected(20_011, 4, 16)
    for of_rank in answers.values():
        for of_group in of_rank:
            assert len(of_group) == 20
            for result in of_group:
                np.testing.assert_array_equal(result, reference)
