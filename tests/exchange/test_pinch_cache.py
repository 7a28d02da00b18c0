"""The sender's memory: what is sent, when a scale is given up, what is counted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.comm.group import make_groups
from testbed.exchange.interface import ExchangeSpec
from testbed.exchange.pinch.cache import SLACK, Cache
from testbed.exchange.pinch.layout import RowLayout, bundle
from testbed.exchange.pinch.numbers import Numbers
from testbed.exchange.pinch.tables import make_tables
from testbed.kernel.abi import dtype
from testbed.plan import plan_fabric
from testbed.protocol.scale import ScaleGuess
from testbed.testing.aggregates import Format
from testbed.testing.graphs import draw_partitioned
from tests.support.exchange.pinch_reference import changed

GRAPH = draw_partitioned(3, 80, 200, 3)
GROUPS = make_groups(plan_fabric(hosts=3).hosts)
DIM = 5


class Sender:
    """Rank 0's cache, and its vertices as frames would carry them."""

    def __init__(self, bits: int = 16, **options) -> None:
        self.halo = GRAPH.halos[0]
        layout = RowLayout.plan(DIM, bits, 1500)
        self.tables = make_tables(self.halo, layout, "sum")
        self.numbers = Numbers(layout, "sum", 1.0, halved=True)
        self.cache = Cache(
            self.numbers, ExchangeSpec(GROUPS[0], self.halo, DIM, **options), self.tables.outgoing
        )
        self.form = Format(bits, halved=True)
        self.scale = ScaleGuess(slack=SLACK, patience=None)

    def send(self, x: np.ndarray, exponent: int) -> np.ndarray:
        """An exchange at an exponent that all agree on; positions that are sent."""
        if self.scale.exponent is not None:
            chosen = self.cache.choose(x, self.scale.exponent)
        if not self.scale.holds(exponent):
            self.scale.learn(exponent)
            self.cache.forget()
            chosen = self.cache.choose(x, exponent)
        self.cache.commit()
        sent = self.tables.outgoing[chosen]
        bundles = bundle(sent, self.tables.masks[chosen], self.numbers.layout.rows)
        count = len(bundles.to)
        payloads, frames = (
            np.zeros((count, self.numbers.layout.payload), np.uint8),
            np.zeros(count, dtype("pinch_frame")),
        )
        self.numbers.fill(
            x, bundles, 0, count, payloads, frames, self.scale.exponent, self.cache.last
        )
        return sent


def draw(seed: int) -> np.ndarray:
    return (
        np.random.default_rng(seed)
        .uniform(-1, 1, (GRAPH.halos[0].num_owned, DIM))
        .astype(np.float32)
    )


def test_what_has_not_changed_is_not_sent_again() -> None:
    sender = Sender(bound=0.0)
    x = draw(0)
    np.testing.assert_array_equal(sender.send(x, 0), sender.tables.outgoing)
    assert sender.send(x, 0).size == 0
    moved = sender.tables.outgoing[[1, 4]]
    x[moved, 2] += np.float32(0.25)
    np.testing.assert_array_equal(sender.send(x, 0), moved)
    cache, outgoing = sender.cache, len(sender.tables.outgoing)
    assert (cache.lookups, cache.hits) == (3 * outgoing, 2 * outgoing - 2)
    copies = np.bitwise_count(sender.tables.masks).astype(int)
    assert cache.copies_saved == 2 * copies.sum() - copies[[1, 4]].sum()


@pytest.mark.parametrize("staleness", [1, 2, 5])
def test_a_small_change_waits_no_longer_than_staleness_says(staleness) -> None:
    sender = Sender(bound=0.5, staleness=staleness)
    x = draw(0)
    x[:, 0] = 0.75  # so that all are sent the first time
    sender.send(x, 0)
    x[sender.tables.outgoing] *= np.float32(0.9)
    sent = [len(sender.send(x, 0)) for _ in range(2 * staleness)]
    assert sent == [
        len(sender.tables.outgoing) if turn == staleness - 1 else 0 for turn in range(2 * staleness)
    ]


@settings(max_examples=40)
@given(
    st.sampled_from([16, 32]),
    st.floats(0, 0.5),
    st.integers(1, 4),
    st.lists(st.integers(-9, 3), min_size=1, max_size=8),
)
def test_others_never_differ_by_more_than_the_bound(bits, bound, staleness, exponents) -> None:
    """Whatever the magnitudes: lanes that others hold are those of now, but for the bound; and none
    is older than allowed.
    """
    sender = Sender(bits, bound=bound, staleness=staleness)
    outgoing = sender.tables.outgoing
    scale: int | None = None
    ages = np.zeros(len(outgoing), int)
    x = draw(0)
    for turn, exponent in enumerate(exponents):
        x = (0.9 * x + 0.1 * draw(turn) * (np.arange(len(x)) % 2)[:, None]).astype(np.float32)
        x *= np.float32(2.0**exponent * 0.999 / np.abs(x).max())
        before = sender.cache.last[outgoing].copy()
        sent = np.isin(outgoing, sender.send(x, exponent))
        if scale is None or not scale - 3 <= exponent <= scale:
            scale, before[:], ages[:] = exponent, 0, 0
        assert sender.scale.exponent == scale
        lanes = sender.form.quantize(x, scale)[outgoing]
        most = int(bound * sender.form.factor(scale))
        np.testing.assert_array_equal(sent, changed(lanes, before, most, ages, staleness))
        ages = np.where(sent, 0, ages + 1)
        held = sender.cache.last[outgoing]
        np.testing.assert_array_equal(held[sent], lanes[sent])
        np.testing.assert_array_equal(held[~sent], before[~sent])
        assert np.abs(held - lanes).max() <= most
        assert (ages < staleness)[(held != lanes).any(axis=1)].all()


@pytest.mark.parametrize("then", [4, 3, 2, 1, 0, -1, -149])
def test_a_scale_holds_for_three_powers_of_two_below_it(then) -> None:
    fresh = then not in range(4)
    sender = Sender(bound=0.0)
    outgoing, x = sender.tables.outgoing, draw(0)
    sender.send(x, 3)
    np.testing.assert_array_equal(sender.send(x, then), outgoing if fresh else outgoing[:0])
    # What was chosen by a scale that did not hold does not count.
    assert (sender.cache.hits, sender.cache.lookups) == (
        0 if fresh else len(outgoing),
        2 * len(outgoing),
    )
