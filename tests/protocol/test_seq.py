"""Sequence numbers: their order, and when to reset old state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.protocol.sequence import NEWEST, is_before, must_forget, seq_after

QUARTER = 1 << 30


def test_neighbours_differ_in_their_lowest_bit() -> None:
    for seq in (1, 2, QUARTER - 1, QUARTER, NEWEST - 1, NEWEST):
        assert (seq ^ seq_after(seq)) & 1
    assert seq_after(NEWEST) == 2


@given(st.integers(2, NEWEST), st.integers(1, (1 << 31) - 3))
def test_the_order_of_sequence_numbers(seq, steps) -> None:
    later = seq + steps if seq + steps <= NEWEST else seq + steps - NEWEST + 1
    assert is_before(seq, later)
    assert not is_before(later, seq)


@pytest.mark.parametrize("quarter", range(4))
def test_forgetting_comes_at_each_quarter(quarter) -> None:
    first = quarter * QUARTER
    before = first - 1 if quarter else NEWEST
    assert must_forget(before, seq_after(before))
    assert not must_forget(max(first, 1) + 1, max(first, 1) + 2)


@given(st.integers(0, NEWEST), st.integers(0, NEWEST))
def test_nothing_that_is_kept_is_half_the_range_old(kept, now) -> None:
    """State last used in `kept` is scanned before it is half the range old: at the next quarter."""
    if not must_forget(kept, now):
        assert abs(now - kept) < QUARTER
