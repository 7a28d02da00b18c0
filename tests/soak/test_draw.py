"""Scenarios are functions of seed and number, and every one can be run."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.faults.events import check_events
from testbed.faults.limits import each_limited
from testbed.faults.rule_table import compile_rules
from testbed.faults.spec import MODELS, events_of, hosts_of, limits_of, parse_fault, rules_of
from testbed.soak.draw import MOST_ELEMENTS, SHARING, draw, draw_shape
from testbed.soak.scenario import make_graph, make_input, replay_command

numbers = st.integers(0, 1 << 20)


@given(seed=numbers, number=numbers)
def test_a_scenario_depends_on_seed_and_number_alone(seed, number):
    scenario = draw(seed, number)
    draw(seed, number + 1)
    assert draw(seed, number) == scenario
    assert scenario.shape == draw_shape(seed, number // SHARING * SHARING)
    assert scenario != draw(seed + 1, number)


@given(seed=numbers, number=numbers)
def test_every_drawn_scenario_can_be_played(seed, number):
    scenario = draw(seed, number)
    plan = scenario.shape.plan()
    faults = [parse_fault(fault) for fault in scenario.faults]
    check_events(events_of(faults), plan)
    compile_rules(rules_of(faults), plan)
    names = {host.name for host in plan.hosts}
    assert all(set(hosts_of(fault)[1]) <= names for fault in faults)
    list(each_limited(limits_of(faults), plan))
    assert scenario.tasks
    everyone = list(range(len(plan.hosts)))
    members = [member for group in scenario.groups for member in group.members]
    assert not members or sorted(members) == everyone
    for group in scenario.groups:
        assert len(group.members) >= 2
        assert group.capacity <= MOST_ELEMENTS
    for exchange in scenario.exchanges:
        assert len(set(exchange.members)) == len(exchange.members) >= 2
        assert set(exchange.members) <= set(everyone)
        make_graph(scenario, scenario.exchanges.index(exchange))
    lasting = [fault for fault in events_of(faults) if fault.end is None]
    assert bool(lasting) == (scenario.ending != "whole")
    assert scenario.killed_after is None or scenario.ending == "whole"
    assert not scenario.strays or scenario.backend == "xdp-ring"


@pytest.mark.deep
def test_the_whole_space_is_drawn():
    scenarios = [draw(1, number) for number in range(2000)]
    assert {
        fault.split()[0] for scenario in scenarios for fault in scenario.faults
    } == MODELS.keys()
    for values in (
        Counter(scenario.shape.topology for scenario in scenarios),
        Counter(scenario.shape.switch for scenario in scenarios),
        Counter(scenario.system for scenario in scenarios),
        Counter(scenario.ending for scenario in scenarios),
        Counter(scenario.killed_after is None for scenario in scenarios),
        Counter(len(scenario.groups) for scenario in scenarios),
        Counter(scenario.strays > 0 for scenario in scenarios),
        Counter(max(task.rounds for task in scenario.tasks) > 1 for scenario in scenarios),
        Counter(max(task.turns for task in scenario.tasks) >= 1000 for scenario in scenarios),
        Counter(scenario.shape.hosts > 16 for scenario in scenarios),
    ):
        assert len(values) > 1
        assert min(values.values()) > 20
    assert {scenario.shape.hosts for scenario in scenarios} >= set(range(2, 13))
    assert {len(scenario.faults) for scenario in scenarios} >= set(range(5))
    rates = {
        action: [
            float(p)
            for s in scenarios
            for fault in s.faults
            if s.backend == "xdp-ring"
            for p in re.findall(rf"^{action} p=([\d.]+)", fault)
        ]
        for action in ("drop", "corrupt")
    }
    assert 0.25 < max(rates["drop"]) <= 0.3
    assert max(p for p in rates["corrupt"] if p < 0.3) > 0.19, (
        "besides scenarios in which most results are damaged"
    )


@pytest.mark.deep
def test_floods_occur_with_both_systems_on_both_switches():
    met = Counter(
        (scenario.system, scenario.shape.switch)
        for scenario in (draw(1, number) for number in range(2000))
        if any(fault.startswith("flood") for fault in scenario.faults)
    )
    for system in ("xdp-ring", "pinch", "xdp-ring and pinch"):
        assert min(met[system, "xdp"], met[system, "bridge"]) > 5


def test_inputs_are_repeatable_and_differ():
    scenario = next(
        s
        for s in (draw(3, n) for n in range(100))
        if s.groups and s.groups[0].summands[0].elements > 10
    )
    first = make_input(scenario, 0, 0, 0)
    assert first.dtype == "float32"
    assert (first == make_input(scenario, 0, 0, 0)).all()
    assert (first != make_input(scenario, 0, 0, 1)).any()


@pytest.mark.parametrize("number", [0, 42])
def test_a_scenario_names_the_command_that_plays_it_again(number):
    assert replay_command(7, number) == f"testbed soak --seed 7 --only {number}"
