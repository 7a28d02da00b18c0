"""Rows: bandwidths and statistics against numbers computed by hand."""

import math

import pytest

from testbed.bench.observed import Observed, Overhead, windows_of
from testbed.bench.operations import OPERATIONS
from testbed.bench.row import Turn, algbw, make_row
from testbed.comm.collective import Counters
from testbed.telemetry.profile import Profile


def test_bandwidths():
    assert algbw(64 << 20, 0.05) == pytest.approx(1.34217728)
    busbw = OPERATIONS["allreduce"].busbw
    assert busbw(64 << 20, 0.05, 4) == pytest.approx(2.01326592)
    assert busbw(1000, 1e-6, 1) == 0
    assert busbw(1000, 1e-6, 2) == pytest.approx(1.0)
    assert OPERATIONS["bcast"].busbw(64 << 20, 0.05, 4) == pytest.approx(1.34217728)
    for half in ("reducescatter", "allgather"):
        assert OPERATIONS[half].busbw(64 << 20, 0.05, 4) == pytest.approx(1.00663296)


def make_turn(starts, ends, packets=0, wrong=0):
    return Turn(tuple(starts), tuple(ends), Counters(packets, 100 * packets, packets // 4), wrong)


def test_a_row_spans_all_ranks():
    turns = [
        # Two ranks, two iterations, then one more: from the first start to the last end.
        [make_turn([10.0, 20.0], [13.0, 24.0], 4, 1), make_turn([11.0, 19.5], [14.0, 23.0], 5)],
        [make_turn([30.0], [31.0], 3), make_turn([30.5], [32.0], 2, 7)],
    ]
    row = make_row("tcp-ring", 8000, turns, [10, 13])
    assert row.times == (4.0, 4.5, 2.0)
    assert row.median == 4.0
    assert row.p99 == pytest.approx(4.49)
    assert (row.hosts, row.wrong) == (2, 8)
    assert (row.packets, row.wire_bytes, row.retransmissions) == (5, 467, 2)
    assert row.syscalls_per_rank == 11.5

    result = row.to_dict({"lanes": "int16", "mtu": 1500})
    times = {
        "min": 2e6,
        "median": 4e6,
        "p99": pytest.approx(4.49e6),
        "low": 713529.464,
        "high": 7286470.536,
    }
    assert result["time_us"] == times
    assert result["count"] == 2000
    assert result["iterations"] == 3
    assert math.isclose(result["busbw_gbps"], result["algbw_gbps"])
    assert {
        "backend",
        "hosts",
        "size_bytes",
        "lanes",
        "mtu",
        "wrong",
        "packets",
        "wire_bytes",
    } <= result.keys()


def test_syscalls_may_be_unknown():
    assert make_row("mpi", 0, [[make_turn([1.0], [2.0])]], None).syscalls_per_rank is None


def test_iterations_must_match():
    with pytest.raises(ValueError, match="zip"):
        make_row("mpi", 4, [[make_turn([1.0], [2.0]), make_turn([1.0, 2.0], [2.0, 3.0])]], None)


def test_overhead_compares_turns_that_follow_each_other():
    """The machine is twice as slow in the second pair of turns, which is no overhead."""
    profile = Profile(seconds=1.0, inside=1.0, cpus=2, rate=997, lost=0, samples=())
    plain = [[make_turn([0.0, 1.0], [0.1, 1.1])], [make_turn([2.0], [2.2])]]
    watched = [[make_turn([0.0, 1.0], [0.105, 1.105])], [make_turn([2.0], [2.21])]]
    observed = Observed.of([(ranks, profile) for ranks in watched], counts=profile, counted=3)
    row = make_row("gloo", 4, plain, None, observed)
    assert row.overhead
    assert row.overhead.share == pytest.approx(0.05)
    assert row.overhead.pairs == 2
    assert row.times == pytest.approx((0.1, 0.1, 0.2))
    telemetry = row.to_dict({})["telemetry"]
    assert (telemetry["overhead"], telemetry["seconds"]) == (row.overhead.share, 2.0)
    assert telemetry["overhead_low"] <= telemetry["overhead"] <= telemetry["overhead_high"]
    assert make_row("gloo", 4, plain, None).overhead is None


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [
        (5, 1, 5),  # too few: all of them
        (16, 4, 13),  # as tables of the sign test have it
        (20, 6, 15),
        (100, 40, 61),
    ],
)
def test_an_overhead_has_the_interval_of_the_sign_test(count, low, high):
    found = Overhead.of([1 + number / 1000 for number in range(count, 0, -1)])
    assert (round(1000 * found.low), round(1000 * found.high)) == (low, high)
    assert found.pairs == count


def test_windows_last_from_the_first_start_to_the_last_end():
    ranks = [make_turn([1.0, 3.0], [2.0, 4.0]), make_turn([0.5, 3.5], [1.5, 4.5])]
    assert windows_of(ranks) == {"*": ([0.5, 3.0], [2.0, 4.5])}
