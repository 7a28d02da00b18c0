"""Tensors that the ring reduces segment by segment: the sums are those of single collectives, and
errors name places in the whole tensor.
"""

import numpy as np
import pytest

from testbed.core.errors import CollectiveError
from testbed.datapath import set_datapath
from testbed.fabric import Fabric
from testbed.plan import plan_fabric
from testbed.protocol.sequence import NEWEST
from testbed.worker import Workers
from tests.support.collectives.ring_calls import (
    all_reduce,
    check,
    connect,
    counters_in,
    reduce_values_in,
    set_seq_in,
)
from tests.support.tiers import broad

pytestmark = pytest.mark.net

SEGMENT = 1 << 14  # bytes of lanes
SIZE = 30_011  # elements: eight segments in int32, four in int16
LANES = {"int16": 16, "int32": 32}


@pytest.fixture(scope="module")
def ring3():
    plan = plan_fabric(hosts=3)
    with Fabric(plan) as fabric, Workers(fabric, modules=[__name__]) as workers:
        set_datapath(fabric, "xdp")
        yield plan, workers


def open_segmented(ring, group_id, **options):
    plan, workers = ring
    connect(workers, plan.hosts, group_id=group_id, capacity=1 << 18, segment=SEGMENT, **options)
    return plan.hosts, workers, [host.name for host in plan.hosts]


def reduce_by_host(workers, values, group_id):
    arguments = {name: {"values": each, "group_id": group_id} for name, each in values.items()}
    return workers.call_all(reduce_values_in, arguments, errors="return", timeout=60)


@pytest.mark.parametrize("lanes", broad(LANES))
def test_sums_are_exact(ring3, lanes):
    group_id = list(LANES).index(lanes)
    hosts, workers, names = open_segmented(ring3, group_id, lanes=lanes)
    sizes = [SIZE, 5, SEGMENT * 8 // LANES[lanes], SEGMENT * 8 // LANES[lanes] + 1, SIZE]
    before = workers.call_all(counters_in, {name: {"group_id": group_id} for name in names})
    check(all_reduce(workers, hosts, sizes, group_id), sizes, LANES[lanes])
    after = workers.call_all(counters_in, {name: {"group_id": group_id} for name in names})
    whole = -(-SIZE * LANES[lanes] // 8 // SEGMENT)
    # Each size agrees on a scale first, and a segment may be repeated with a better scale.
    least = 2 * whole + 1 + 1 + 2 + 4
    assert all(after[name]["seq"] - before[name]["seq"] >= least for name in names)


@pytest.mark.parametrize(("group_id", "seq"), broad([(2, NEWEST - 5), (6, (1 << 30) - 6)]))
def test_sequence_numbers_wrap_between_segments(ring3, group_id, seq):
    """All numbers wrap, or a quarter of them is over and old state has to be reset."""
    hosts, workers, names = open_segmented(ring3, group_id, lanes="int32")
    workers.call_all(set_seq_in, {name: {"seq": seq, "group_id": group_id} for name in names})
    check(all_reduce(workers, hosts, [SIZE, SIZE], group_id), [SIZE, SIZE], 32)


@pytest.mark.deep
def test_each_segment_has_a_scale(ring3):
    """Values whose magnitudes differ from segment to segment, and then change places."""
    _, workers, names = open_segmented(ring3, 3, lanes="int16")
    values = np.linspace(0.5, 1, 30_000, dtype=np.float32)  # four segments
    values[:15_000] *= np.float32(2**-20)
    for each in (values, values, values[::-1], values[::-1]):
        for answer in reduce_by_host(workers, dict.fromkeys(names, each), 3).values():
            assert np.abs(answer / (3 * each.astype(float)) - 1).max() < 2**-8


def test_an_error_in_a_segment_names_the_place_in_the_tensor(ring3):
    _, workers, names = open_segmented(ring3, 4, lanes="int32")
    values = np.linspace(-1, 1, SIZE, dtype=np.float32)
    broken, much = values.copy(), values.copy()
    broken[[SIZE - 7, SIZE - 3]] = np.nan, np.inf
    much[SIZE - 9] = 3e38
    for each, expected in (
        (
            {**dict.fromkeys(names, values), names[1]: broken},
            f"all-reduce: rank 1 (h2) has NaN at index {SIZE - 7} (2 values are not finite)",
        ),
        (dict.fromkeys(names, much), f"overflows float32 at index {SIZE - 9},"),
    ):
        for answer in reduce_by_host(workers, each, 4).values():
            assert isinstance(answer, CollectiveError)
            assert expected in str(answer)
        # The group is as good as before.
        for answer in reduce_by_host(workers, dict.fromkeys(names, values), 4).values():
            np.testing.assert_allclose(answer, 3 * values, atol=1e-6)


@pytest.mark.deep
def test_segments_saturate(ring3):
    _, workers, names = open_segmented(ring3, 5, lanes="int32", on_overflow="saturate")
    values = np.ones(SIZE, np.float32)
    values[SIZE - 1] = np.inf
    much = np.ones(SIZE, np.float32)
    much[SIZE - 2] = 3e38
    most = np.finfo(np.float32).max
    for each, place, expected in ((values, SIZE - 1, 3.0), (much, SIZE - 2, most)):
        for answer in reduce_by_host(workers, dict.fromkeys(names, each), 5).values():
            assert answer[place] == np.float32(expected)
            assert np.all(answer[: SIZE // 2] == 3)
