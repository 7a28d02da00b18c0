"""The timer against RFC 6298, section 2, and its two bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.protocol.rto import RetransmissionTimer

RTTS = st.floats(1e-6, 10)


def unbounded() -> RetransmissionTimer:
    return RetransmissionTimer(floor=0.0, ceiling=1e9)


def test_first_sample() -> None:
    """(2.2) SRTT <- R, RTTVAR <- R/2, RTO <- SRTT + 4 * RTTVAR."""
    timer = unbounded()
    assert timer.timeout == timer.initial
    timer.sample(0.1)
    assert timer.timeout == pytest.approx(0.3)


def test_later_samples() -> None:
    """(2.3) RTTVAR is updated with a quarter of the new deviation, before SRTT with an eighth of
    the new sample.
    """
    timer = unbounded()
    timer.sample(0.1)
    timer.sample(0.2)
    assert timer.variation == pytest.approx(0.75 * 0.05 + 0.25 * 0.1)
    assert timer.smoothed == pytest.approx(0.875 * 0.1 + 0.125 * 0.2)
    assert timer.timeout == pytest.approx(timer.smoothed + 4 * timer.variation)


def test_the_timer_backs_off_until_something_arrives() -> None:
    """(5.5) The timer doubles when it expires."""
    timer = unbounded()
    timer.sample(0.1)
    first = timer.timeout
    waits = []
    for _ in range(3):
        timer.expired()
        waits.append(timer.timeout / first)
    assert waits == pytest.approx([2, 4, 8])
    timer.progressed()
    assert timer.timeout == pytest.approx(first)


def test_the_timer_covers_the_spread_of_round_trips() -> None:
    """A sample that represents many round trips must not hide the slowest of them."""
    timer = unbounded()
    timer.sample(0.1, spread=2.0)
    assert timer.timeout >= 0.1 + 2.0


@given(st.lists(RTTS, min_size=1), st.integers(0, 2000))
def test_bounds_hold(rtts, expiries) -> None:
    timer = RetransmissionTimer()
    for rtt in rtts:
        timer.sample(rtt)
    for _ in range(expiries):
        timer.expired()
    assert timer.floor <= timer.timeout <= timer.ceiling


@given(RTTS)
def test_with_steady_round_trips_the_timer_converges(rtt) -> None:
    timer = unbounded()
    for _ in range(200):
        timer.sample(rtt)
    assert timer.timeout == pytest.approx(rtt, rel=0.01)
