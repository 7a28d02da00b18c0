"""Predictions of the exponent: never too low for long, rarely too high, and equal on all ranks."""

from hypothesis import given
from hypothesis import strategies as st

from testbed.protocol.scale import PATIENCE, SLACK, ScaleGuess

EXPONENTS = st.integers(-126, 129)


def test_nothing_is_known_at_first() -> None:
    guess = ScaleGuess()
    assert guess.exponent is None
    assert not guess.holds(0)
    guess.learn(3)
    assert guess.exponent == 3


@given(EXPONENTS, EXPONENTS)
def test_holds_within_the_slack_and_never_below(exponent, seen) -> None:
    assert ScaleGuess(exponent).holds(seen) == (seen <= exponent <= seen + SLACK)


@given(st.lists(EXPONENTS, min_size=1, max_size=100))
def test_the_second_attempt_always_holds(history) -> None:
    """A collective is repeated at most once, with the exponent that the first attempt has shown."""
    guess = ScaleGuess()
    for seen in history:
        if not guess.holds(seen):
            guess.learn(seen)
        assert guess.holds(seen)
        guess.learn(seen)


@given(st.integers(-100, 100), st.integers(1, SLACK))
def test_jitter_below_costs_nothing_until_patience_ends(exponent, below) -> None:
    """The guess is lowered to the highest exponent of a whole run of smaller ones, not to the last
    one.
    """
    guess = ScaleGuess(exponent)
    for _ in range(PATIENCE - 1):
        guess.learn(exponent - below)
    assert guess.exponent == exponent
    guess.learn(exponent)  # an exponent that needs the guess restarts the run
    for turn in range(PATIENCE):
        assert guess.exponent == exponent
        guess.learn(exponent - SLACK if turn % 2 else exponent - 1)
    assert guess.exponent == exponent - 1
