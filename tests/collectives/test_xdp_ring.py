"""The in-kernel ring on a real fabric: sums equal numpy's exactly, and disturbances do not change
them.
"""

import json

import numpy as np
import pytest

from testbed.collectives.ring.layout import BLOCKS, chunk_bytes_for
from testbed.core.errors import CollectiveError
from testbed.datapath import set_datapath
from testbed.fabric import Fabric
from testbed.kernel.abi import constant
from testbed.plan import plan_fabric
from testbed.protocol.ring.memory import EARLY_SLOTS
from testbed.worker import Workers
from tests.support.collectives.ring_calls import (
    all_reduce,
    check,
    close_in,
    connect,
    counters_in,
    make_input,
    reduce_in,
    reduce_values_in,
)
from tests.support.tiers import broad

pytestmark = [pytest.mark.net, pytest.mark.fabric(hosts=4, datapath="xdp")]

MTU = 1500
GENERIC = 2  # XDP_ATTACHED_SKB of linux/if_link.h


def sizes_for(bits):
    lane = chunk_bytes_for(MTU) * 8 // bits
    return [0, 1, 2, lane - 1, lane, lane + 1, 33 * lane + 5, 100_003]


@pytest.fixture
def ring4(fabric, workers):
    return fabric.plan, workers


@pytest.mark.parametrize(("ranks", "switch"), broad([(3, "xdp"), (1, "bridge")]))
def test_sums_are_exact(ranks, switch):
    plan = plan_fabric(hosts=ranks, switch=switch, mtu=MTU)
    with Fabric(plan) as fabric, Workers(fabric, modules=[__name__]) as workers:
        set_datapath(fabric, "xdp")
        for group_id, bits in enumerate((16, 32)):
            connect(workers, plan.hosts, lanes=f"int{bits}", group_id=group_id, capacity=1 << 18)
            sizes = sizes_for(bits)
            check(all_reduce(workers, plan.hosts, sizes, group_id), sizes, bits)


@pytest.mark.parametrize("switch", broad(["xdp", "bridge"]))
def test_sums_are_exact_where_programs_run_in_the_stack(switch):
    plan = plan_fabric(hosts=3, switch=switch, mtu=MTU, xdp="generic")
    with Fabric(plan) as fabric, Workers(fabric, modules=[__name__]) as workers:
        set_datapath(fabric, "xdp")
        connect(workers, plan.hosts, lanes="int16", capacity=1 << 18)
        sizes = sizes_for(16)
        check(all_reduce(workers, plan.hosts, sizes), sizes, 16)
        devices = {
            "h1": ("eth0", "doorbell0", "doorbell1"),
            "s1": [plan.switch("s1").ifname(port) for port in plan.switch("s1").ports],
        }
        for node, names in devices.items():
            links = json.loads(fabric.run(node, ["ip", "-json", "link"]).stdout)
            modes = {link["ifname"]: link["xdp"]["mode"] for link in links if "xdp" in link}
            assert modes == dict.fromkeys(names, GENERIC)


@pytest.mark.parametrize("topology", broad(["leaf-spine", "ring"]))
def test_sums_are_exact_over_several_switches(topology):
    plan = plan_fabric(topology, hosts=4, mtu=MTU)
    with Fabric(plan) as fabric, Workers(fabric, modules=[__name__]) as workers:
        set_datapath(fabric, "xdp")
        connect(workers, plan.hosts, lanes="int32", capacity=1 << 18)
        check(all_reduce(workers, plan.hosts, [100_003], 0), [100_003], 32)


@pytest.mark.deep
def test_groups_over_subsets_work_at_once(ring4):
    plan, workers = ring4
    hosts = plan.hosts
    groups = {
        1: hosts,
        2: [hosts[3], hosts[1]],
        3: [hosts[0], hosts[2]],
        4000: [hosts[1], hosts[2], hosts[0]],
    }
    for group_id, members in groups.items():
        connect(workers, members, lanes="int16", group_id=group_id, capacity=1 << 18)
    # Groups 2 and 3 share no host: both are at work at the same time.
    arguments = {
        host.name: {"sizes": [100_003] * 10, "rank": rank, "group_id": group_id}
        for group_id in (2, 3)
        for rank, host in enumerate(groups[group_id])
    }
    results = workers.call_all(reduce_in, arguments, timeout=60)
    for group_id in (2, 3):
        check([results[host.name] for host in groups[group_id]], [100_003] * 10, 16)
    for group_id in (1, 4000, 1):
        check(all_reduce(workers, groups[group_id], [5000], group_id), [5000], 16)


@pytest.mark.deep
def test_ten_thousand_in_a_row(ring4):
    plan, workers = ring4
    connect(workers, plan.hosts, lanes="int32", capacity=1 << 12)
    sizes = [(7 * i) % 1000 + 1 for i in range(100)] * 100
    for results in zip(*all_reduce(workers, plan.hosts, sizes), strict=True):
        for other in results[1:]:
            np.testing.assert_array_equal(results[0], other)
    last = all_reduce(workers, plan.hosts, sizes[:100])
    for of_rank in last:
        for size, result in zip(sizes, of_rank, strict=False):
            reference = np.sum(
                [make_input(size, rank) for rank in range(4)], axis=0, dtype=np.float64
            )
            assert np.abs(result - reference).max() < 1e-5


@pytest.mark.deep
def test_system_calls_do_not_grow_with_the_tensor(ring4):
    plan, workers = ring4
    # Yields say how busy the CPU is, not how large the tensor is.
    options = {"capacity": 4 << 20, "segment": 8 << 20, "yields": 0}
    connect(workers, plan.hosts, lanes="int16", **options)
    names = [host.name for host in plan.hosts]
    spent = {}
    for size in (1 << 18, 1 << 22):
        all_reduce(workers, plan.hosts, [size])  # agrees on the scale
        before = workers.call_all(counters_in, names)
        all_reduce(workers, plan.hosts, [size])
        after = workers.call_all(counters_in, names)
        spent[size] = [
            {key: after[name][key] - before[name][key] for key in after[name]} for name in names
        ]
    # One kick per block and one per 32 early frames, one sleep.
    doorbells = 1 + EARLY_SLOTS // constant("RING_FAN_LARGE")
    for ranks in spent.values():
        for rank in ranks:
            # Each look kicks for probes, and for retransmissions of at most a window of chunks.
            bound = BLOCKS * doorbells + 1 + (2 + doorbells) * (rank["looks"] + 1)
            assert 0 < rank["syscalls"] <= bound


def test_sums_saturate_on_request(ring4):
    plan, workers = ring4
    connect(workers, plan.hosts, lanes="int32", capacity=1 << 12, on_overflow="saturate")
    values = {host.name: {"values": [1.0, 2.0, 4.0]} for host in plan.hosts}
    values["h2"] = {"values": [np.nan, -np.inf, 4.0]}
    for answer in workers.call_all(reduce_values_in, values).values():
        np.testing.assert_array_equal(answer, np.array([3.0, 2.0, 16.0], np.float32))
    values = {host.name: {"values": [3e38, 0.0, -3e38]} for host in plan.hosts}
    for answer in workers.call_all(reduce_values_in, values).values():
        most = np.finfo(np.float32).max
        np.testing.assert_array_equal(answer, np.array([most, 0.0, -most], np.float32))


SAME_TAG = 101_402, 102_000  # their tags and their numbers of frames are equal


@pytest.mark.parametrize("known", broad([False, True]))
def test_different_lengths_that_no_frame_tells_apart_are_an_error_at_once(ring4, known):
    """Whether the ranks have to agree on a scale first, or have reduced tensors of both sizes
    before.
    """
    plan, workers = ring4
    hosts = plan.hosts[:2]
    connect(workers, hosts, lanes="int16", capacity=1 << 18, timeout=600.0)
    if known:
        check(all_reduce(workers, hosts, SAME_TAG), SAME_TAG, 16)
    values = {
        host.name: {"values": np.ones(size)} for host, size in zip(hosts, SAME_TAG, strict=True)
    }
    answers = workers.call_all(reduce_values_in, values, errors="return", timeout=60)
    for answer, here, there, other in (
        (answers["h1"], *SAME_TAG, "rank 1 (h2)"),
        (answers["h2"], *SAME_TAG[::-1], "rank 0 (h1)"),
    ):
        assert isinstance(answer, CollectiveError)
        assert (
            f"the ranks reduce different tensors: {here} elements in int16 here, {other}"
            f" {there} elements in int16 (all-reduce "
        ) in str(answer)


@pytest.mark.deep
def test_a_rank_that_has_given_up_and_closed_is_not_mistaken_for_the_one_that_is_gone(ring4):
    """The others call later, and repeat what it has said."""
    plan, workers = ring4
    connect(workers, plan.hosts, lanes="int32", capacity=1 << 12, timeout=2.0)
    workers["h2"].call(close_in)
    first = workers.call_all(
        reduce_values_in, {"h1": {"values": np.ones(3000)}}, errors="return", timeout=30
    )["h1"]
    assert "rank 0 (h1): rank 1 (h2) silent for 2 s" in str(first)
    workers["h1"].call(close_in)
    values = {name: {"values": np.ones(3000)} for name in ("h3", "h4")}
    for answer in workers.call_all(reduce_values_in, values, errors="return", timeout=30).values():
        assert isinstance(answer, CollectiveError)
        assert "another rank has given up: rank 1 (h2) silent for 2 s" in str(answer)


@pytest.mark.deep
def test_a_rank_that_does_not_call_is_named(ring4):
    plan, workers = ring4
    connect(workers, plan.hosts, lanes="int32", capacity=1 << 12, timeout=3.0)
    values = {name: {"values": np.ones(3000)} for name in ("h1", "h3", "h4")}
    for answer in workers.call_all(reduce_values_in, values, errors="return", timeout=30).values():
        assert isinstance(answer, CollectiveError)
        assert "rank 1 (h2) up, but not in this all-reduce after 3 s" in str(answer)
