"""Fates have the statistics that rules specify. Seeds are fixed, and so are the outcomes; bounds
are four standard deviations.
"""

from itertools import groupby
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.faults.fate import FIRST_BYTE, Fired, Verdict, judge, mix
from testbed.faults.identity import Packet
from testbed.faults.quantiles import STEPS, quantiles
from testbed.faults.rule_table import Action, compile_rules
from testbed.plan import plan_fabric
from tests.support.rules import parse_rule
from tests.support.tiers import broad

PLAN = plan_fabric(hosts=4)
LENGTH = 1514


def table(*texts, seed=1):
    return compile_rules([parse_rule(text) for text in texts], PLAN, seed)


def stream(rules, count, **fields):
    return [judge(rules, Packet(0, 1, 1, chunk=chunk, **fields), LENGTH) for chunk in range(count)]


def near(value, p, count, deviations=4.0):
    return abs(value / count - p) <= deviations * sqrt(p * (1 - p) / count)


def test_mix_is_splitmix64s():
    """The first numbers of splitmix64 with seed 1234567, as in its authors' reference."""
    golden = 0x9E3779B97F4A7C15
    found = [mix((1234567 + golden * i) % 2**64) for i in (1, 2, 3)]
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("p", broad([0.01, 0.001, 0.1, 0.5, 0.99]))
def test_rules_fire_with_their_probability(p):
    rules = table(f"drop p={p}")
    assert near(sum(verdict.drop for verdict in stream(rules, 20_000)), p, 20_000)


def test_rules_may_fire_never_or_always():
    assert not any(verdict.fired for verdict in stream(table("drop p=0"), 2000))
    assert all(verdict.drop for verdict in stream(table("drop p=1"), 2000))


def test_every_field_and_the_seed_and_the_rule_matter():
    """Fates of frames that differ in a single field are practically independent."""
    rules, again = (
        table("corrupt p=0.5", "corrupt p=0.5"),
        table("corrupt p=0.5", "corrupt p=0.5", seed=2),
    )
    base = Packet(0, 1, 1)
    others = [
        base._replace(**{name: value})
        for name, value in zip(Packet._fields, (1, 2, 2, 1, 1, 1, 1, 1), strict=True)
    ]
    for first, second in [(base, other) for other in others]:
        both = [
            [
                bool(judge(rules, p._replace(chunk=p.chunk + 2 * i), LENGTH).fired)
                for i in range(2000)
            ]
            for p in (first, second)
        ]
        assert near(sum(a == b for a, b in zip(*both, strict=True)), 0.625, 2000)
    seeds = [[len(v.fired) for v in stream(one, 2000)] for one in (rules, again)]
    assert near(sum(a == b for a, b in zip(*seeds, strict=True)), 0.375, 2000)
    of_rule = [
        [any(f.rule == number for f in v.fired) for v in stream(rules, 2000)] for number in (0, 1)
    ]
    assert near(sum(a == b for a, b in zip(*of_rule, strict=True)), 0.5, 2000)


def test_a_drop_ends_the_judgement_and_other_faults_add_up():
    rules = table(
        "duplicate",
        "delay delay=1ms",
        "duplicate copies=2",
        "reorder behind=3",
        "reorder behind=2",
        "drop chunk=1",
        "drop",
    )
    assert judge(rules, Packet(0, 1, 1, chunk=1)).fired[-1] == Fired(5, Action.DROP, 0)
    rules = table(
        "duplicate",
        "delay delay=1ms",
        "delay delay=2ms",
        "duplicate copies=2",
        "reorder behind=3 within=1ms",
        "reorder",
    )
    assert judge(rules, Packet(0, 1, 1)) == Verdict(
        copies=3,
        delays_ns=(3_000_000,) * 4,
        behind=4,
        within_ns=101_000_000,
        fired=(
            Fired(0, Action.DUPLICATE, 1),
            Fired(1, Action.DELAY, 1_000_000),
            Fired(2, Action.DELAY, 2_000_000),
            Fired(3, Action.DUPLICATE, 2),
            Fired(4, Action.REORDER, 3),
            Fired(5, Action.REORDER, 1),
        ),
    )


def test_corrupted_bits_are_spread_over_all_that_may_be_corrupted():
    flips = np.array([verdict.corrupt for verdict in stream(table("corrupt bits=4"), 5000)])
    assert flips.shape == (5000, 4)
    assert flips.min() >= 8 * FIRST_BYTE
    assert flips.max() < 8 * LENGTH
    middle = 4 * (FIRST_BYTE + LENGTH)
    assert near(int((flips < middle).sum()), 0.5, flips.size)
    assert judge(table("corrupt"), Packet(0, 1, 1), FIRST_BYTE).corrupt == ()


MS = 1e6
DISTRIBUTIONS = {  # mean and standard deviation, ms
    "delay delay=5ms": (5.0, 0.0),
    "delay delay=5ms jitter=2ms": (5.0, 2 / sqrt(3)),
    "delay delay=50ms jitter=2ms distribution=normal": (50.0, 2.0),
    "delay delay=1ms jitter=2ms distribution=pareto": (3.0, 2 * sqrt(3)),
}


@pytest.mark.parametrize("text", DISTRIBUTIONS)
def test_delays_have_their_distribution(text):
    mean, deviation = DISTRIBUTIONS[text]
    rules = table(text, "duplicate copies=7")
    drawn = np.array([verdict.delays_ns for verdict in stream(rules, 3000)]) / MS
    assert abs(drawn.mean() - mean) <= 4 * deviation / sqrt(drawn.size) + 0.02 * deviation
    if "pareto" not in text:  # the table truncates its tail, and thereby its variance
        assert drawn.std() == pytest.approx(deviation, rel=0.03)
    correlation = np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1] if deviation else 0
    assert abs(correlation) < 4 / sqrt(len(drawn))  # each copy draws its own delay


def test_normal_delays_lie_on_the_normal_curve():
    drawn = np.sort(
        [
            verdict.delays_ns[0]
            for verdict in stream(table("delay delay=9ms jitter=1ms distribution=normal"), 5000)
        ]
    )
    share = np.searchsorted(drawn, np.array([7, 8, 9, 10, 11]) * MS) / drawn.size
    np.testing.assert_allclose(share, [0.0228, 0.1587, 0.5, 0.8413, 0.9772], atol=0.02)


@given(
    st.integers(0, 60_000),
    st.integers(0, 60_000),
    st.sampled_from(["uniform", "normal", "pareto"]),
)
def test_quantiles_ascend(delay, jitter, distribution):
    extra = f"jitter={jitter}ms distribution={distribution}" if jitter else ""
    found = quantiles(parse_rule(f"delay delay={delay}ms {extra}"))
    assert found.shape == (STEPS + 1,)
    assert (np.diff(found.astype(np.int64)) >= 0).all()
    assert int(np.diff(found).max()) < 2**40  # the limit of the kernel's interpolation


@pytest.mark.parametrize(
    ("enter", "leave", "p"),
    broad([(0.02, 0.2, 0.5), (0.05, 0.25, 1.0), (0.01, 0.1, 1.0), (0.5, 0.5, 1.0)]),
)
def test_bursts_are_gilbert_and_elliotts(enter, leave, p):
    """The share of losses and, for total loss, the mean length of bursts: 1 / leave."""
    count = 20_000
    losses = [
        verdict.drop for verdict in stream(table(f"burst enter={enter} leave={leave} p={p}"), count)
    ]
    share = enter / (enter + leave) * p
    correlated = (2 - enter - leave) / (
        enter + leave
    )  # the factor of the variance of a two-state chain's mean
    assert near(sum(losses), share, count, 4 * sqrt(correlated))
    if p == 1:
        bursts = [len(list(run)) for lost, run in groupby(losses) if lost]
        assert np.mean(bursts) == pytest.approx(
            1 / leave, abs=4 * sqrt(1 - leave) / leave / sqrt(len(bursts))
        )


def test_short_streams_lose_as_many_frames_as_long_ones():
    """A stream starts in its stationary distribution, so collectives of few chunks lose no fewer
    frames.
    """
    rules = table("burst enter=0.02 leave=0.18")
    losses = [verdict.drop for seq in range(3000) for verdict in stream(rules, 3, seq=seq)]
    assert sum(losses) / len(losses) == pytest.approx(0.1, abs=4 * sqrt(0.09 / 3000))


def test_a_streams_state_does_not_depend_on_the_hop():
    """The stream of a link consists of its chunks, whatever their hops."""
    rules = table("burst enter=0.3 leave=0.3")
    states = [
        [judge(rules, Packet(0, 1, 1, chunk=chunk, hop=hop)).drop for chunk in range(50)]
        for hop in (0, 3)
    ]
    assert states[0] == states[1]
