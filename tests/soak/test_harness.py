"""How long a scenario may take."""

from dataclasses import replace
from types import SimpleNamespace

from testbed.comm.options import CollectiveOptions
from testbed.soak.harness import PATIENCE, Phase
from testbed.soak.scenario import Group, Scenario, Shape, Summand

SHAPE = Shape(2, "star", None, "xdp", 1500)
GROUP = Group((0, 1), CollectiveOptions(), (Summand(10, 0), Summand(20, 0)))
SCENARIO = Scenario(1, 0, SHAPE, "xdp-ring", (GROUP,), faults=(), ending="whole", timeout=3.0)


class Clock:
    """Workers that record the time that they are given."""

    def call_all(self, function, arguments, *, patience, errors):
        self.patience = patience
        return {}


def patience(scenario: Scenario) -> float:
    clock = Clock()
    harness = SimpleNamespace(workers=clock, fabric=SimpleNamespace(plan=SHAPE.plan()))
    Phase(harness, scenario).work()
    return clock.patience


def test_the_time_for_a_collective_does_not_depend_on_how_many_there_are():
    many = replace(SCENARIO, groups=(replace(GROUP, times=30, rounds=5), GROUP))
    assert patience(SCENARIO) == patience(many) == PATIENCE
    assert patience(replace(many, ending="cut")) == 6.0
