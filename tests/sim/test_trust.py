"""The same seed and scenario in both engines: the same frames meet the same faults, the same frames
are sent again, and the sums are the same.
"""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from testbed.comm.options import CollectiveOptions
from testbed.datapath import set_datapath
from testbed.fabric import Fabric
from testbed.faults.injector import Injector
from testbed.faults.rule_table import compile_rules
from testbed.faults.spec import parse_fault, rules_of
from testbed.plan import FabricPlan, plan_fabric
from testbed.protocol.wire import Kind
from testbed.sim.hardware import Hardware, HostCosts, LinkModel
from testbed.sim.ring import SimulatedRing
from testbed.testing.group import Group
from testbed.worker import Workers
from tests.support.tiers import broad

SIZE, SEED = 30_000, 5
RULES = rules_of(
    [parse_fault("drop p=0.04 kind=reduce,result"), parse_fault("drop p=0.2 kind=nack")]
)
HARDWARE = Hardware(
    host=HostCosts(frame=2e-6, byte=0.5e-9, wakeup=5e-6, syscall=2e-6), link=LinkModel(rate=10e9)
)
FRAME = ["sender", "receiver", "kind", "seq", "chunk", "hop", "attempt"]

Tensors = list[NDArray[np.float32]]
Trace = tuple[Counter[tuple[int, ...]], Counter[tuple[int, ...]]]


def inputs(ranks: int) -> Tensors:
    return [
        np.random.default_rng(rank).standard_normal(SIZE).astype(np.float32)
        for rank in range(ranks)
    ]


def split(records: NDArray[Any]) -> Trace:
    """The frames with data that were lost, and those that were sent again."""
    data = records[np.isin(records["kind"], (Kind.REDUCE, Kind.RESULT))]
    lost, again = data[data["fired"] > 0], data[data["attempt"] > 0]
    return Counter(lost[FRAME].tolist()), Counter(again[FRAME].tolist())


def simulated(
    plan: FabricPlan, options: CollectiveOptions, hardware: Hardware = HARDWARE
) -> tuple[Tensors, Trace]:
    table = compile_rules(RULES, plan, SEED)
    ring = SimulatedRing(plan, hardware, options, capacity=SIZE, table=table, trace=True)
    sums = ring.all_reduce(inputs(len(plan.hosts)))
    return sums, split(ring.faults.log())


def emulated(plan: FabricPlan, options: CollectiveOptions) -> tuple[Tensors, Trace]:
    with Fabric(plan) as fabric, Workers(fabric, modules=["testbed.testing.calls"]):
        set_datapath(fabric, "xdp")
        with Injector(fabric, RULES, SEED, trace=True) as injector:
            with Group(fabric, "xdp-ring", capacity=SIZE, **options.model_dump()) as group:
                sums = group.all_reduce(inputs(len(plan.hosts)))
            injector.check_replay()
        return sums, split(injector.log())


def options_of(recovery: str) -> CollectiveOptions:
    return CollectiveOptions(
        lanes="int16",
        window=1,
        recovery=recovery,  # type: ignore[arg-type]
        timeout=30.0,
        reproducible=True,
    )


@pytest.mark.net
@pytest.mark.parametrize("recovery", broad(["upstream", "origin"]))
@pytest.mark.parametrize(("topology", "ranks"), broad([("star", 4), ("star", 2), ("fat-tree", 6)]))
def test_both_engines_lose_and_repeat_the_same_frames(
    topology: str, ranks: int, recovery: str
) -> None:
    plan, options = plan_fabric(topology, ranks), options_of(recovery)
    sums, (lost, again) = simulated(plan, options)
    found, (seen_lost, seen_again) = emulated(plan, options)
    assert lost
    assert again
    assert lost == seen_lost
    assert again == seen_again
    for mine, other in zip(sums, found, strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("recovery", broad(["upstream", "origin"]))
@pytest.mark.parametrize("ranks", broad([3, 2, 6]))
def test_no_speed_of_hosts_and_links_changes_them(ranks: int, recovery: str) -> None:
    plan, options = plan_fabric("star", ranks), options_of(recovery)
    traces = [
        simulated(plan, options, hardware)[1]
        for hardware in (
            HARDWARE,
            Hardware(HostCosts(frame=20e-6, wakeup=1e-3), LinkModel(rate=1e8)),
            Hardware(HostCosts(frame=1e-6, cores=1, shared=True), LinkModel(rate=1e10)),
            Hardware(HostCosts(wakeup=5e-6), LinkModel(rate=1e9, delay=1e-4)),
        )
    ]
    assert traces[0][0]
    assert traces[1:] == traces[:1] * 3
