"""The ring under faults: a small matrix in which every pair of values occurs, and what happens to
links and hosts meanwhile.

Each cell asserts four things: exact sums, an end in bounded time, faults that have fired as the
reference model says, and nothing left.
"""

import numpy as np
import pytest

from testbed.collectives.ring.xdp_ring import XdpRing
from testbed.comm.group import make_groups
from testbed.core.errors import CollectiveError, WorkerDied
from testbed.testing import assert_exact, assert_faults_fired, pairwise
from testbed.testing.group import Group
from tests.support.busy import busy_cpus
from tests.support.collectives.ring_calls import all_reduce, check, make_input
from tests.support.kept import kept
from tests.support.levels import EVENTS, NONE, levels
from tests.support.tiers import broad

pytestmark = pytest.mark.net

HOSTS = 8
WITHIN = 40.0  # seconds for the slowest collective on a busy machine

FAULTS = levels("10ms")
FACTORS = {
    "switch": ["xdp", "bridge"],
    "ranks": [2, 3, 4, HOSTS],
    "lanes": ["int16", "int32"],
    "recovery": ["upstream", "origin"],
    "size": [0, 1, 1000, 1 << 14, 1 << 18, 1 << 20],  # float32 elements: up to 4 MiB
    **FAULTS,
}
FLOODED = [
    pytest.param(*cell, marks=pytest.mark.fabric(hosts=4, switch=switch, datapath="xdp"), id=switch)
    for switch, *cell in (("xdp", "int16", "upstream"), ("bridge", "int32", "origin"))
]
TIMES = {0: 5, 1: 10, 1000: 10, 1 << 14: 5, 1 << 18: 1, 1 << 20: 1}
WORST = {"lanes": "int32", "size": 1 << 18, **{name: levels[-1] for name, levels in FAULTS.items()}}
CELLS = [
    *pairwise(FACTORS, seed=1),
    {"switch": "xdp", "ranks": 4, "recovery": "origin", **WORST},
    {"switch": "bridge", "ranks": HOSTS, "recovery": "upstream", **WORST},
]


def parameters():
    """Return cells as parameters, grouped by fabric, each with its number as the seed."""
    found = []
    for seed, cell in sorted(enumerate(CELLS), key=lambda numbered: numbered[1]["switch"]):
        setting = "-".join(
            str(cell[name]) for name in ("switch", "ranks", "lanes", "recovery", "size")
        )
        marks = pytest.mark.fabric(hosts=HOSTS, switch=cell["switch"], datapath="xdp")
        found.append(pytest.param(cell, seed, marks=marks, id=f"{setting}-{seed}"))
    return broad(sorted(found, key=lambda each: each.values[0]["ranks"] != 3), 2)


def make_inputs(ranks, size, number=0):
    return [
        np.random.default_rng([number, rank]).standard_normal(size, np.float32)
        for rank in range(ranks)
    ]


@pytest.mark.parametrize(("cell", "seed"), parameters())
def test_sums_are_exact(fabric, faults, assert_nothing_left, cell, seed):
    wanted = [cell[name] for name in FAULTS if cell[name] != NONE]
    hosts = list(fabric.hosts)[: cell["ranks"]]
    with Group(
        fabric, hosts=hosts, lanes=cell["lanes"], recovery=cell["recovery"], timeout=WITHIN / 2
    ) as group:
        with faults(*(words for _, words in wanted), seed=seed) as injected:
            for number in range(TIMES[cell["size"]]):
                inputs = make_inputs(cell["ranks"], cell["size"], number)
                assert_exact(group.all_reduce(inputs, within=WITHIN), inputs, cell["lanes"])
        injected.check_replay(at_most=10_000)
    frames = injected.frames()
    assert (frames > 0) == (cell["size"] > 0)
    for p, words in wanted:
        if (
            frames * p > 100
        ):  # a drop may hide a frame from the rules after it, but practically never all frames
            assert_faults_fired(injected, words.split()[0])
    assert_nothing_left()


@pytest.mark.parametrize("words", broad([*(levels[-1][1] for levels in FAULTS.values()), ""]))
@pytest.mark.parametrize(
    "mtu",
    broad(
        pytest.param(mtu, marks=pytest.mark.fabric(hosts=4, mtu=mtu, datapath="xdp"))
        for mtu in (65_535, 9000)
    ),
)
def test_sums_are_exact_with_jumbo_frames(fabric, faults, assert_nothing_left, mtu, words):
    """Of tensors that take a frame, a frame of each rank, and many; each fault alone."""
    with Group(fabric, lanes="int16", timeout=WITHIN / 2) as group:
        with faults(*filter(None, [words]), seed=1) as injected:
            for number, size in enumerate((1000, 1 << 14, 100_003, 1 << 19)):
                inputs = make_inputs(4, size, number)
                assert_exact(group.all_reduce(inputs, within=WITHIN), inputs, "int16")
        injected.check_replay(at_most=10_000)
    assert_nothing_left()


@pytest.mark.parametrize("recovery", broad(FACTORS["recovery"]))
@pytest.mark.parametrize("event", broad(EVENTS))
@pytest.mark.fabric(hosts=4, datapath="xdp")
def test_sums_are_exact_after_an_interruption(fabric, faults, assert_nothing_left, event, recovery):
    with Group(fabric, lanes="int16", recovery=recovery) as group:
        with faults(f"{event} at=20ms") as injected:
            number = 0
            while not any(entry.ended for entry in injected.timeline.log()):
                inputs = make_inputs(4, 1 << 16, number)
                assert_exact(group.all_reduce(inputs), inputs, "int16")
                number += 1
        assert_faults_fired(injected)
    assert_nothing_left()


@pytest.mark.parametrize("recovery", broad(FACTORS["recovery"]))
@pytest.mark.fabric(hosts=4, datapath="xdp")
def test_a_killed_rank_is_named_by_all_others(fabric, faults, recovery):
    with Group(fabric, lanes="int32", recovery=recovery, timeout=2.0) as group:
        inputs = make_inputs(4, 1 << 16)
        errors = {}
        with faults("kill host=h2 at=50ms", "drop p=0.01"):
            while (
                len(errors) < 3
            ):  # a rank that already has all results fails in the next all-reduce
                outcomes = group.outcomes(inputs, within=WITHIN)
                errors |= {
                    rank: outcome
                    for rank, outcome in enumerate(outcomes)
                    if isinstance(outcome, CollectiveError)
                }
        assert isinstance(outcomes[1], WorkerDied)
        assert "killed by signal 9" in str(outcomes[1])
        assert sorted(errors) == [0, 2, 3]
        assert all("rank 1 (h2) silent for 2 s" in str(error) for error in errors.values())
        group.open(["h3", "h1", "h4"])
        assert group.hosts == ["h3", "h1", "h4"]
        assert_exact(group.all_reduce(inputs[:3]), inputs[:3], "int32")


def meet_in(context, spec):
    ring = kept(context)[spec.group_id] = XdpRing(context, spec)
    ring.connect()


def part_in(context, group_id):
    kept(context).pop(group_id).close()


@pytest.mark.parametrize("recovery", FACTORS["recovery"])
@pytest.mark.fabric(hosts=4, datapath="xdp")
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.deep
def test_groups_meet_and_part_under_loss(
    fabric, workers, faults, assert_nothing_left, recovery, seed
):
    """One all-reduce each, and then all ranks close: a rank that is done stays until no other needs
    it, and no longer.
    """
    hosts, names = fabric.plan.hosts, list(fabric.hosts)
    with faults("drop p=0.05", seed=seed) as injected:
        for number in range(20):
            terms = {"lanes": "int16", "capacity": 1 << 12, "timeout": 600.0, "recovery": recovery}
            specs = make_groups(hosts, group_id=number, **terms)
            workers.call_all(
                meet_in,
                {name: {"spec": spec} for name, spec in zip(names, specs, strict=True)},
                timeout=60,
            )
            check(all_reduce(workers, hosts, [3000], number), [3000], 16)
            workers.call_all(part_in, {name: {"group_id": number} for name in names}, timeout=60)
    assert_faults_fired(injected, "drop")
    assert_nothing_left()


def reduce_and_part_in(context, size, rank):
    ring = kept(context).pop(0)
    try:
        return ring.all_reduce(make_input(size, rank))
    finally:
        ring.close()


@pytest.mark.parametrize("event", ["link-down", "pause"])
@pytest.mark.parametrize("recovery", FACTORS["recovery"])
@pytest.mark.fabric(hosts=4, datapath="xdp")
@pytest.mark.deep
def test_a_rank_that_was_away_gets_its_results_from_those_that_close(
    fabric, workers, faults, assert_nothing_left, recovery, event
):
    """One all-reduce, and all ranks close at once. Soon after the others are done, an event keeps
    h3 from getting its missing results for three seconds.
    """
    hosts, names, size = fabric.plan.hosts, list(fabric.hosts), 3000
    specs = make_groups(hosts, lanes="int16", capacity=1 << 12, timeout=10.0, recovery=recovery)
    workers.call_all(
        meet_in,
        {name: {"spec": spec} for name, spec in zip(names, specs, strict=True)},
        timeout=60,
    )
    # The first all-reduce agrees on the scale. In the second, h3 sends everything that the others
    # need, and gets no result until it has asked 256 times.
    lost = "drop link=*->h3 kind=result seq=3 attempt=0..255"
    with faults(lost, f"{event} host=h3 at=100ms for=3s") as injected:
        arguments = {name: {"size": size, "rank": rank} for rank, name in enumerate(names)}
        answers = workers.call_all(reduce_and_part_in, arguments, timeout=60)
    assert_faults_fired(injected)
    check([[answers[name]] for name in names], [size], 16)
    assert_nothing_left()


@pytest.mark.parametrize("recovery", broad(FACTORS["recovery"]))
@pytest.mark.parametrize("lanes", broad(FACTORS["lanes"]))
@pytest.mark.fabric(hosts=14, datapath="xdp")
@pytest.mark.deep
def test_many_ranks_at_a_high_loss(fabric, faults, assert_nothing_left, lanes, recovery):
    """The more ranks there are, the more hops a phase has that may fail: it must continue where it
    was lost, or it would never end.
    """
    with Group(fabric, lanes=lanes, recovery=recovery, timeout=30.0) as group:
        with faults("drop p=0.3", seed=14) as injected:
            for size in (2, 70, 1000, 5000):
                inputs = make_inputs(14, size)
                assert_exact(group.all_reduce(inputs, within=WITHIN), inputs, lanes)
        assert_faults_fired(injected, "drop")
    assert_nothing_left()


@pytest.mark.parametrize("recovery", broad(FACTORS["recovery"]))
@pytest.mark.fabric(hosts=5, datapath="xdp")
def test_most_results_are_damaged(fabric, faults, assert_nothing_left, recovery):
    """Each rank must receive its frames intact once, but not all ranks at the same time."""
    with Group(fabric, lanes="int32", recovery=recovery, timeout=30.0) as group:
        with faults("drop p=0.15", "corrupt p=0.6 kind=result", seed=5) as injected:
            for size in (2, 1000, 5000):
                inputs = make_inputs(5, size)
                assert_exact(group.all_reduce(inputs, within=WITHIN), inputs, "int32")
        assert_faults_fired(injected, "drop")
        assert_faults_fired(injected, "corrupt")
    assert_nothing_left()


@pytest.mark.parametrize("recovery", FACTORS["recovery"])
@pytest.mark.parametrize("lanes", FACTORS["lanes"])
@pytest.mark.fabric(hosts=4, datapath="xdp")
@pytest.mark.alone
def test_nothing_is_retransmitted_without_faults(fabric, lanes, recovery):
    """However busy the machine is, late frames are not lost. One frame in a thousand may be
    requested blindly.
    """
    with Group(fabric, lanes=lanes, recovery=recovery) as group, busy_cpus():
        for number in range(50):
            size = (1, 1000, 1 << 14, 1 << 16)[number % 4]
            inputs = make_inputs(4, size, number)
            assert_exact(group.all_reduce(inputs), inputs, lanes)
        counters = group.counters()
    assert all(counter.packets > 0 for counter in counters)
    assert all(1000 * counter.retransmissions <= counter.packets for counter in counters)


@pytest.mark.parametrize(("lanes", "recovery"), broad(FLOODED))
def test_sums_are_exact_while_a_switch_floods(fabric, faults, assert_nothing_left, lanes, recovery):
    """Any frame for another rank is dropped."""
    with Group(fabric, lanes=lanes, recovery=recovery) as group:
        with faults("flood switch=s1") as injected:
            for number, size in enumerate((1, 1000, 1 << 14, 1 << 16) * 2):
                inputs = make_inputs(4, size, number)
                assert_exact(group.all_reduce(inputs), inputs, lanes)
        assert_faults_fired(injected)
    assert_nothing_left()
