"""The model's predictions for faults; drawn scenarios stay within the time that it allows."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.comm.options import CollectiveOptions
from testbed.soak.draw import BUDGET, PINCH, draw
from testbed.soak.odds import LEAST_PHASE, Odds
from testbed.soak.scenario import Group

DATA = ("reduce", "result")
GROUP = Group((0, 1, 2, 3), CollectiveOptions(window=16, reorder_threshold=4), ())


@pytest.mark.parametrize(
    ("faults", "passes", "once"),
    [
        ((), 1.0, 1.0),
        (("drop p=0.2",), 0.8, 1.0),
        (("drop p=0.2", "corrupt p=0.1 bits=1"), 0.72, 1.0),
        (("drop p=0.2 link=h1->h2",), 1.0, 0.8),
        (("drop p=0.2 kind=probe",), 1.0, 1.0),
        (("drop p=0.2 kind=probe,result",), 0.8, 1.0),
        (("drop p=0.2 attempt=0",), 1.0, 1.0),
        (("burst p=0.9 enter=0.01 leave=0.09",), 0.91, 1.0),
        (("pause hosts=h1 for=10ms", "duplicate p=0.5"), 1.0, 1.0),
    ],
)
def test_odds_are_the_shares_of_frames_that_get_through(faults, passes, once):
    odds = Odds.of(faults, DATA)
    assert (odds.passes, odds.once) == (pytest.approx(passes), pytest.approx(once))


def test_delayed_frames_are_not_lost():
    odds = Odds.of(("delay p=0.5 delay=2ms", "reorder p=0.1 behind=4 within=10ms"), DATA)
    assert (odds.passes, odds.waits) == (1.0, pytest.approx(0.5 * 2e-3 + 0.1 * 10e-3))


def test_a_rule_for_all_links_applies_to_each_hop_of_a_phase():
    assert Odds(0.9, 0.5).phase(5) == pytest.approx(0.9**4 * 0.5)


@given(elements=st.integers(0, 1 << 20), loss=st.floats(0.0, 0.5))
def test_losses_and_ranks_take_time(elements, loss):
    def seconds(group: Group, passes: float) -> float:
        return Odds(passes).all_reduce(group, elements, 1500)

    many = replace(GROUP, members=tuple(range(8)))
    assert seconds(GROUP, 1 - loss) >= seconds(GROUP, 1.0) > 0
    assert seconds(many, 1 - loss) > seconds(GROUP, 1 - loss)


@given(seed=st.integers(0, 1 << 20), number=st.integers(0, 1 << 20))
def test_drawn_scenarios_stay_within_the_budget(seed, number):
    """Except for a single collective of a few elements, which is tried under any faults."""
    scenario = draw(seed, number)
    odds = Odds.of(scenario.faults, DATA)
    for group in scenario.groups:
        seconds = group.times * sum(
            odds.all_reduce(group, s.elements, scenario.shape.mtu) for s in group.summands
        )
        assert group.rounds * seconds <= BUDGET * 1.001 or group.turns == 1
        assert group.terms.recovery == "upstream" or odds.phase(len(group.members)) >= LEAST_PHASE
    odds = Odds.of(scenario.faults, PINCH)
    for exchange in scenario.exchanges:
        assert exchange.times == 1 or exchange.turns * odds.aggregation(exchange) <= BUDGET * 1.001
