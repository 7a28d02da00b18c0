"""The ring on a simulated fabric: sums, faults and their replay, times against formulas, and who
waits for what.
"""

import re
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from testbed.collectives.ring.layout import CHECK_BYTES, chunk_bytes_for
from testbed.comm.options import CollectiveOptions
from testbed.core.errors import CollectiveError, SpecError
from testbed.faults.replay import check_replay
from testbed.faults.rule_table import compile_rules
from testbed.faults.spec import parse_fault, rules_of
from testbed.plan import SimulatedFabricOptions, plan_fabric
from testbed.protocol.status import status_bytes
from testbed.protocol.wire import FRAME_BYTES
from testbed.sim.hardware import Hardware, HostCosts, LinkModel, SwitchModel
from testbed.sim.ring import SimulatedRing
from testbed.testing.reference import exact_sum

HARDWARE = Hardware(
    host=HostCosts(frame=1e-6, byte=0.2e-9, wakeup=3e-6, syscall=1e-6, prepare=0.2e-9),
    link=LinkModel(rate=10e9, delay=1e-6),
    switch=SwitchModel(delay=1e-6),
)
FAULTS = [
    "drop p=0.04",
    "burst p=1 enter=0.01 leave=0.5",
    "duplicate p=0.1 copies=2",
    "corrupt p=0.03 bits=3",
    "reorder p=0.05 behind=3 within=1ms",
    "delay p=0.05 delay=300us jitter=100us",
]


def make(ranks: int, faults: Sequence[str] = (), seed: int = 7, **options: object) -> SimulatedRing:
    plan = plan_fabric("star", ranks)
    table = compile_rules(rules_of([parse_fault(text) for text in faults]), plan, seed)
    chosen = CollectiveOptions(**{"lanes": "int16", **options})
    return SimulatedRing(plan, HARDWARE, chosen, capacity=100_000, table=table)


def inputs(ranks: int, size: int) -> list[NDArray[np.float32]]:
    return [
        np.random.default_rng(rank).standard_normal(size).astype(np.float32)
        for rank in range(ranks)
    ]


def assert_exact(ring: SimulatedRing, size: int, times: int = 1) -> None:
    tensors = inputs(len(ring.hosts), size)
    expected = exact_sum(tensors, ring.options.lanes)
    for _ in range(times):
        for found in ring.all_reduce(tensors):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("ranks", "size", "lanes"),
    [
        (2, 1, "int16"),
        (2, 5000, "int16"),
        (3, 4321, "int32"),
        (8, 20_000, "int16"),
        (8, 20_000, "int32"),
    ],
)
def test_sums_are_exact_and_nothing_is_sent_again(ranks: int, size: int, lanes: str) -> None:
    ring = make(ranks, lanes=lanes)
    assert_exact(ring, size, times=2)
    assert ring.counters()["resent"] == 0


@pytest.mark.parametrize(("ranks", "recovery"), [(2, "upstream"), (4, "origin"), (7, "upstream")])
def test_faults_do_not_change_sums(ranks: int, recovery: str) -> None:
    ring = make(ranks, FAULTS, recovery=recovery)
    assert_exact(ring, 20_000, times=2)
    assert set(ring.faults.counts) == {rule.action for rule in ring.faults.table.rules}
    check_replay(ring.faults.table, ring.faults.log())


def test_a_run_repeats_itself() -> None:
    runs = [make(4, FAULTS), make(4, FAULTS), make(4, FAULTS, seed=8)]
    for ring in runs:
        assert_exact(ring, 10_000)
    first, same, other = runs
    assert first.seconds == same.seconds != other.seconds
    np.testing.assert_array_equal(first.faults.log(), same.faults.log())


@pytest.mark.parametrize("ranks", [2, 5, 16])
def test_a_frame_per_step_takes_alpha_and_beta(ranks: int) -> None:
    """2 (N-1) steps of a latency and a frame's time, besides what the process does."""
    ring = make(ranks, window=1)
    chunk = chunk_bytes_for(ring.plan.mtu)
    size = (ranks * (chunk - CHECK_BYTES) - status_bytes(ranks)) // 2 // 4 * 4  # N chunks
    assert_exact(ring, size, times=2)
    host, link, switch = HARDWARE.host, HARDWARE.link, HARDWARE.switch
    alpha = 2 * link.delay + switch.delay + host.wakeup + host.frame
    beta = 2 * link.seconds(FRAME_BYTES + chunk) + chunk * host.byte
    process = 2 * host.wakeup + host.syscall + 2 * ranks * chunk * host.prepare
    launch = host.wakeup + host.frame + chunk * host.byte
    assert ring.seconds[1] == pytest.approx(
        2 * (ranks - 1) * (alpha + beta) + process + launch, rel=0.01
    )


def test_a_ring_that_makes_no_progress_says_who_waits_for_whom() -> None:
    ring = make(3, ["drop p=1 link=h2->h3 kind=reduce,result"], timeout=0.5)
    with pytest.raises(CollectiveError) as caught:
        ring.all_reduce(inputs(3, 5000))
    text = str(caught.value)
    assert re.match(r"all-reduce 2: no progress for 0\.5 s of simulated time: rank \d", text)
    assert "rank 2 (h3) has 0 of 1 chunks and waits for h2 to send chunk 0 of h1" in text


def test_bad_input_is_refused() -> None:
    large = SimulatedFabricOptions(hosts=300, topology="fat-tree").plan()
    with pytest.raises(SpecError, match="hosts: 300: must be 2 to 255 where frames are simulated"):
        SimulatedRing(large, HARDWARE)
    plan = SimulatedFabricOptions(hosts=40).plan()
    table = compile_rules(rules_of([parse_fault("drop p=0.1")]), plan, 1)
    with pytest.raises(SpecError, match="more than 32 hosts"):
        SimulatedRing(plan, HARDWARE, capacity=1000, table=table)
