"""The soak's expected results: exponents follow the group's guesses, and differences are
described.
"""

import numpy as np
import pytest

from testbed.protocol.scale import PATIENCE
from testbed.soak.reference import RingReference, describe_difference, float_reference
from testbed.testing.reference import exact_sum, exact_sums


def tensors(magnitude, ranks=3, size=100):
    return [
        np.random.default_rng(rank).uniform(0.5, 1, size).astype(np.float32) * magnitude
        for rank in range(ranks)
    ]


def test_a_guess_that_is_a_little_too_high_is_kept_for_a_while():
    reference = RingReference("int16")
    np.testing.assert_array_equal(reference.sum(tensors(8.0)), exact_sum(tensors(8.0), "int16"))
    for _ in range(PATIENCE):
        np.testing.assert_array_equal(
            reference.sum(tensors(2.0)), exact_sums(tensors(2.0), "int16")[2]
        )
    np.testing.assert_array_equal(reference.sum(tensors(2.0)), exact_sum(tensors(2.0), "int16"))


@pytest.mark.parametrize("magnitude", [0.25, 16.0])
def test_a_guess_that_does_not_hold_is_replaced(magnitude):
    reference = RingReference("int16")
    reference.sum(tensors(8.0))
    np.testing.assert_array_equal(
        reference.sum(tensors(magnitude)), exact_sum(tensors(magnitude), "int16")
    )


def test_each_segment_has_a_scale_of_its_own():
    """At first that of the whole tensor, where it holds."""
    reference = RingReference("int16", segment=100)
    whole = [np.concatenate([values, values / 2, values / 64]) for values in tensors(8.0, size=50)]
    exponents = reference.exponents(whole)
    assert exponents == (exponents[0], exponents[0], exponents[0] - 6)
    expected = [
        exact_sum([values[first : first + 50] for values in whole], "int16", exponent)
        for first, exponent in zip((0, 50, 100), exponents, strict=True)
    ]
    np.testing.assert_array_equal(reference.sum(whole), np.concatenate(expected))


def test_nothing_is_the_sum_of_nothing():
    assert RingReference("int32").sum(tensors(1.0, size=0)).size == 0


def test_differences_are_described():
    expected, bound = float_reference(tensors(1.0))
    assert 0 < bound < 1e-5
    assert describe_difference(expected, expected, bound) is None
    assert describe_difference(np.nextafter(expected, np.float32(9)), expected, bound) is None
    assert describe_difference(expected, expected, 0.0) is None
    off = expected.copy()
    off[[7, 9]] = np.nan, 0
    for allowed in (bound, 0.0):
        words = describe_difference(off, expected, allowed)
        assert words.startswith("2 of 100 elements, the first at 7: np.float32(nan) instead of ")
    assert describe_difference(off[:5], expected, 0.0) == "shape (5,) instead of (100,)"
