"""Failures of collectives that have been observed in the network, one test each.

Some have their tests elsewhere: the same frame on two CPUs at once, stored
(tests/kernel/test_ring_race.py); 10,000 collectives in a row, and tensors that no frame tells apart
(tests/collectives/test_xdp_ring.py); a rank that stops for half a second
(tests/matrix/test_ring_faults.py); sequence numbers that wrap
(tests/collectives/test_xdp_ring_segments.py); frames of another run or of another collective,
earlier, later or never launched (tests/kernel/test_hostile_frames.py); a status of 32 ranks
(tests/protocol/test_status.py).
"""

import os
import threading
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest

from testbed.collectives.ring.layout import Layout, chunk_bytes_for
from testbed.comm.group import make_groups
from testbed.core.errors import CollectiveError
from testbed.datapath import set_datapath
from testbed.fabric import Fabric
from testbed.plan import plan_fabric
from testbed.protocol.lanes import Lanes
from testbed.protocol.ring.memory import Stage, item_of
from testbed.protocol.sequence import NEWEST, word_of
from testbed.protocol.wire import Kind as FrameKind
from testbed.protocol.wire import decode as decode_frame
from testbed.worker import Workers
from tests.support.collectives.ring_calls import (
    check,
    counters_in,
    expected,
    open_in,
    reduce_in,
    reduce_values_in,
    set_seq_in,
)
from tests.support.kept import kept
from tests.support.kernel.packets import LENGTH, SEQ, TAG, kick, loaded, packet
from tests.support.kernel.pair import Pair
from tests.support.protocol.network import Network, collectives
from tests.support.tiers import broad

net = pytest.mark.net
kernel_test = pytest.mark.kernel
two_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: nothing can race")

BITS = pytest.mark.parametrize("bits", broad([16, 32]))
GROUPS = count()


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


# More ranks than a field has bits.


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
SMALL = [
    pytest.param([1e-30, -3e-31, 5e-34], 16, id="1e-30"),
    pytest.param([1e-40, -1e-41, SMALLEST], 32, id="subnormal"),
    pytest.param([0.0, -0.0, 0.0], 16, id="zeros"),
]


@net
@pytest.mark.parametrize(("values", "bits"), broad(SMALL))
def test_inputs_that_a_fixed_scale_would_lose_keep_their_precision(four, values, bits) -> None:
    """1e-30 at a scale of 1e8 vanishes. Here the error depends on the group's largest magnitude,
    whatever that is.
    """
    values = np.array(values, np.float32)
    absmax = float(np.abs(values).max())
    group = four.form(lanes=f"int{bits}")
    bound = four.call(bound_in, group, absmax=absmax)[0]
    for answer in four.sum(group, [values, -values / 2, values, values]):
        assert np.abs(answer.astype(float) - 2.5 * values.astype(float)).max() <= bound
        if absmax > 2.0**-100:
            assert abs(answer[0] / (2.5 * values[0]) - 1) < 2.0 ** (6 - bits + 3)


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
