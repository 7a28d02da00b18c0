"""Late is not lost: frames that are delayed by different times overtake each other, and are not
sent again for that. Time is simulated, so each count repeats itself.
"""

import numpy as np
import pytest

from testbed.comm.options import CollectiveOptions
from testbed.faults.rule_table import RuleTable, compile_rules
from testbed.faults.spec import parse_fault, rules_of
from testbed.plan import plan_fabric
from testbed.sim.presets import PRESETS
from testbed.sim.ring import SimulatedRing
from tests.support.tiers import broad

LEARN, STEADY = 3, 4
"""All-reduces: the ranks learn how late frames may be, and then know it."""
LEARN_FRAMES = 1000
"""So many frames are needed as well: few of them are as late as any."""


def table(*faults: str) -> RuleTable:
    return compile_rules(
        rules_of([parse_fault(text) for text in faults]), plan_fabric("star", 8), 1
    )


def ring_of(ranks: int, size: int, window: int, faults: RuleTable) -> SimulatedRing:
    terms = CollectiveOptions(lanes="int16", window=window, timeout=60.0)
    plan = plan_fabric("star", ranks)
    return SimulatedRing(plan, PRESETS["10g"], terms, capacity=size, table=faults)


def sent_and_again(ring: SimulatedRing, times: int, frames: int = 0) -> list[tuple[int, int]]:
    """Run so many all-reduces, or more until so many frames have been sent; return the frames that
    each took, and how many of them were nacks or sent again.
    """
    random = np.random.default_rng(1)
    tensors = [random.standard_normal(ring.capacity).astype(np.float32) for _ in ring.hosts]
    found = []
    while len(found) < times or sum(sent for sent, _ in found) < frames:
        before = ring.counters()
        ring.all_reduce(tensors)
        after = ring.counters()
        found.append((after["sent"] - before["sent"], after["resent"] - before["resent"]))
    return found


SHAPES = [(4, 20_000, 8), (4, 20_000, 1), (2, 60_000, 64), (8, 50_000, 64), (2, 1000, 1)]
DELAYS = [
    (300_000, 250_000),
    (20_000, 10_000),
    (5000, 4000),
    (1000, 900),
    (20_000, 1000),
    (20_000, 20_000),
    (300_000, 300_000),
]


@pytest.mark.parametrize(("ranks", "size", "window"), broad(SHAPES, 3))
@pytest.mark.parametrize(("delay_us", "jitter_us"), broad(DELAYS, 3))
def test_frames_that_overtake_each_other_are_not_sent_again(
    ranks, size, window, delay_us, jitter_us, record_property
) -> None:
    late = table(f"delay p=1 delay={delay_us}us jitter={jitter_us}us")
    ring = ring_of(ranks, size, window, late)
    total, learnt = (
        sum(part) for part in zip(*sent_and_again(ring, LEARN, LEARN_FRAMES), strict=True)
    )
    sent, again = (sum(part) for part in zip(*sent_and_again(ring, STEADY), strict=True))
    record_property("again", f"{learnt} of {total}, then {again} of {sent}")
    assert learnt <= 0.2 * total
    assert again <= 0.03 * sent + 4


@pytest.mark.parametrize("delay_us", [20, 300, 20_000, 300_000])
def test_frames_that_are_only_delayed_are_not_sent_again(delay_us) -> None:
    found = sent_and_again(ring_of(4, 20_000, 8, table(f"delay p=1 delay={delay_us}us")), 3)
    assert [again for _, again in found] == [0, 0, 0]


@pytest.mark.parametrize("jitter", ["", " jitter=15ms"])
def test_losses_on_long_paths_cost_about_a_nack_and_an_answer(jitter) -> None:
    faults = table(f"delay p=1 delay=20ms{jitter}", "drop p=0.1")
    found = sent_and_again(ring_of(4, 20_000, 8, faults), LEARN + STEADY)
    sent, again = (sum(part) for part in zip(*found[LEARN:], strict=True))
    assert again <= 0.2 * sent


@pytest.mark.parametrize("jitter", ["", " jitter=250ms"])
def test_paths_that_become_longer_cause_no_storm(jitter) -> None:
    """The round trips that were measured are a thousandth of the new ones, and nothing was known of
    late frames. Each missing frame is nacked a few times until the first answer comes.
    """
    ring = ring_of(4, 20_000, 8, table("delay p=1 delay=1us"))
    usual = sent_and_again(ring, 2)[-1][0]
    ring.faults.table = table(f"delay p=1 delay=300ms{jitter}")
    (_, surprised), (_, learnt), *_ = sent_and_again(ring, 2)
    assert surprised <= 5 * usual
    assert learnt <= 0.02 * usual
    ring.faults.table = table("delay p=1 delay=1us")
    assert sent_and_again(ring, 2)[-1] == (usual, 0)
