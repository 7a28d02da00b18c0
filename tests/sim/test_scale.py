"""The formula of docs/scale.md, which extrapolates the ring to more ranks than are simulated."""

import pytest

from testbed.comm.options import CollectiveOptions
from testbed.plan import SimulatedFabricOptions
from testbed.protocol.wire import offset_of
from testbed.sim.presets import PRESETS
from testbed.sim.train_ring import TrainRing
from tests.support.tiers import broad

LATENCY = 5.6e-6
"""Seconds of a hop besides its frames' service, from 1,024 hosts with 25 Gb/s links."""


def seconds(ring: TrainRing, ranks: int) -> float:
    costs, layout = ring.hardware.host, ring.layout
    frame = costs.frame + layout.length * costs.byte
    wire = ring.hardware.link.seconds(offset_of(layout.length) + layout.length)
    service = max(frame, wire)
    finish = layout.total * layout.length * costs.prepare
    return finish + 2 * (ranks - 1) * (service * max(1, layout.total / ranks) + LATENCY)


@pytest.mark.parametrize("hardware", ["10g", "25g"])
@pytest.mark.parametrize("ranks", broad([8, 64]))
def test_the_formula_of_the_ring_s_time(ranks: int, hardware: str) -> None:
    plan = SimulatedFabricOptions(hosts=ranks).plan()
    options = CollectiveOptions(lanes="int32", window=64, segment=0)
    ring = TrainRing(plan, PRESETS[hardware], options, 16 << 20, 64 * ranks)
    assert seconds(ring, ranks) == pytest.approx(ring.run(), rel=0.02)
