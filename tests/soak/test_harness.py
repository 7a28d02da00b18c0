"""How long a scenario may take."""

from dataclasses import replace
from types import SimpleNamespace

from testbed.comm.options import CollectiveOptions
from testbed.soak.harness import DEADLINE, DEADLINE_EACH, Phase
from testbed.soak.scenario import Group, Scenario, Shape, Summand

SHAPE = Shape(2, "star", None, "xdp", 1500)
GROUP = Group((0, 1), CollectiveOptions(), (Summand(10, 0), Summand(20, 0)))
SCENARIO = Scenario(1, 0, SHAPE, "xdp-ring", (GROUP,), faults=(), ending="whole", timeout=3.0)


class Clock:
    """Workers that note the time they are given."""

    def call_all(self, function, arguments, *, timeout, errors):
        self.timeout = timeout
        return {}


def deadline(scenario: Scenario) -> float:
    clock = Clock()
    harness = SimpleNamespace(workers=clock, fabric=SimpleNamespace(plan=SHAPE.plan()))
    Phase(harness, scenario).work()
    return clock.timeout


def test_the_deadline_grows_with_the_collectives():
    many = replace(SCENARIO, groups=(replace(GROUP, times=30, rounds=5), GROUP))
    assert deadline(SCENARIO) == DEADLINE + 2 * DEADLINE_EACH
    assert deadline(many) == DEADLINE + 302 * DEADLINE_EACH
    assert deadline(replace(many, ending="cut")) == 6.0
