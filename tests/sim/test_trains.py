"""The ring in trains against the ring frame by frame."""

import numpy as np
import pytest

from testbed.comm.options import CollectiveOptions
from testbed.core.errors import SpecError
from testbed.plan import SimulatedFabricOptions, plan_fabric
from testbed.sim.hardware import Hardware, HostCosts, LinkModel
from testbed.sim.ring import SimulatedRing
from testbed.sim.train_ring import TrainRing
from tests.support.tiers import broad

SLOW = HostCosts(frame=1e-6, byte=0.2e-9, wakeup=3e-6, syscall=1e-6, prepare=0.2e-9)
FAST = HostCosts(frame=0.2e-6, byte=0.02e-9, wakeup=1e-6, syscall=1e-6, prepare=0.1e-9)
BOUND_BY = {
    "cpu": Hardware(SLOW, LinkModel(rate=10e9, delay=1e-6)),
    "link": Hardware(FAST, LinkModel(rate=1e9, delay=5e-6)),
    "latency": Hardware(FAST, LinkModel(rate=10e9, delay=100e-6)),
}
MANY = 10_000  # frames in flight


@pytest.mark.parametrize("bound", BOUND_BY)
@pytest.mark.parametrize("window", broad([8, 1, 24]))
@pytest.mark.parametrize(
    ("topology", "ranks", "size"),
    [("star", 2, 60_000), ("star", 5, 3000), ("fat-tree", 8, 60_000), ("leaf-spine", 4, 30_000)],
)
def test_trains_take_as_long_as_frames(
    topology: str, ranks: int, size: int, window: int, bound: str
) -> None:
    plan, hardware = plan_fabric(topology, ranks), BOUND_BY[bound]
    options = CollectiveOptions(lanes="int16", window=window)
    ring = SimulatedRing(plan, hardware, options, capacity=size, in_flight=MANY)
    tensors = [np.ones(size, np.float32)] * ranks
    ring.all_reduce(tensors)  # agrees on the scale
    ring.env.run(ring.env.now + 1.0)  # all CPUs are idle
    ring.all_reduce(tensors)
    exact = ring.seconds[1]
    single = TrainRing(plan, hardware, options, size, MANY, train=1)
    assert single.run() == pytest.approx(exact, rel=1e-6)
    trains = TrainRing(plan, hardware, options, size, MANY)
    assert trains.run() == pytest.approx(exact, rel=0.01)
    assert trains.voyages <= single.voyages
    for one in (single, trains):  # each frame makes 2 (N-1) hops
        sent = sum(host.nic.frames for host in one.wiring.hosts)
        assert sent == 2 * (ranks - 1) * one.layout.total


@pytest.mark.parametrize(
    ("mtu", "terms"), [(1500, {"chunk": 512}), (1500, {"slice": 4096}), (9000, {"tokens": 2})]
)
def test_trains_take_the_options_of_frames(mtu: int, terms: dict[str, int]) -> None:
    plan, size = plan_fabric(hosts=3, mtu=mtu), 60_000
    options = CollectiveOptions(lanes="int16", **terms)  # type: ignore[arg-type]
    ring = SimulatedRing(plan, BOUND_BY["link"], options, capacity=size, in_flight=MANY)
    tensors = [np.ones(size, np.float32)] * 3
    ring.all_reduce(tensors)  # agrees on the scale
    ring.env.run(ring.env.now + 1.0)  # all CPUs are idle
    ring.all_reduce(tensors)
    single = TrainRing(plan, BOUND_BY["link"], options, size, MANY, train=1)
    # Frames so long leave time for probes, which trains leave out.
    within = 1e-6 if mtu == 1500 else 1e-3
    assert single.run() == pytest.approx(ring.seconds[1], rel=within)


def test_many_hosts_take_the_time_of_their_bytes() -> None:
    """Where links limit, all carry 2 (N-1)/N of the tensor."""
    plan = SimulatedFabricOptions(topology="fat-tree", hosts=128, switch="bridge").plan()
    hardware = Hardware(link=LinkModel(rate=10e9))
    ring = TrainRing(plan, hardware, CollectiveOptions(window=256), 1 << 22, 1 << 20)
    frame = hardware.link.seconds(1408 + 88)
    assert ring.run() == pytest.approx(2 * 127 * ring.layout.total / 128 * frame, rel=0.01)


def test_bad_input_is_refused() -> None:
    with pytest.raises(SpecError, match="hosts: 1: must be at least 2 for an all-reduce"):
        TrainRing(plan_fabric(hosts=1), Hardware())
    with pytest.raises(SpecError, match="must be at most what"):
        TrainRing(plan_fabric(hosts=2), Hardware(), size=1 << 36)
