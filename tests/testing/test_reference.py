"""The reference of exact sums: integers at the group's exponent, or at any exponent that a guess
may have.
"""

import numpy as np
import pytest

from testbed.protocol.lanes import Lanes
from testbed.protocol.scale import SLACK
from testbed.testing import assert_exact, exact_sum
from testbed.testing.assertions import WrongSum
from testbed.testing.reference import exact_sums


def inputs(ranks, size=1000):
    return [np.random.default_rng(rank).standard_normal(size, np.float32) for rank in range(ranks)]


@pytest.mark.parametrize("lanes", ["int16", "int32"])
@pytest.mark.parametrize("ranks", [1, 2, 5, 32])
def test_sums_are_within_the_bound(ranks, lanes):
    tensors = inputs(ranks)
    format_ = Lanes(16 if lanes == "int16" else 32, ranks)
    most = max(float(np.abs(tensor).max()) for tensor in tensors)
    error = np.abs(exact_sum(tensors, lanes) - np.sum(tensors, axis=0, dtype=np.float64)).max()
    assert error <= (0 if ranks == 1 else format_.error_bound(format_.exponent_for(most), most))


def test_any_exponent_of_a_guess_is_exact_but_the_same_on_all_ranks():
    tensors = inputs(3)
    sums = exact_sums(tensors, "int16")
    assert len(sums) == SLACK + 1
    for one in sums:
        assert_exact([one, one, one], tensors, "int16")
    with pytest.raises(WrongSum, match="of 1000 elements each"):
        assert_exact([sums[0], sums[0], sums[1]], tensors, "int16")
    with pytest.raises(WrongSum):
        assert_exact([exact_sum(tensors, "int16", exponent=9)] * 3, tensors, "int16")


def test_nothing_and_zeros():
    empty = [np.zeros(0, np.float32)] * 2
    assert_exact(empty, empty, "int32")
    zeros = [np.zeros((3, 2), np.float32)] * 2
    assert_exact(zeros, zeros, "int32")
    with pytest.raises(WrongSum, match=r"rank 0 has np\.float32\(-0\.0\)"):
        assert_exact([-zeros[0], zeros[0]], zeros, "int32")
