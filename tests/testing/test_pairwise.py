"""Pairwise matrices: they contain every pair, have few cells, and are the same for the same
seed.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.testing import pairwise

factor_tables = st.dictionaries(
    st.text(min_size=1, max_size=3),
    st.lists(st.integers(), min_size=1, max_size=5, unique=True),
    min_size=2,
    max_size=6,
)


@given(factor_tables, st.integers())
def test_every_pair_of_values_occurs(factors, seed):
    cells = pairwise(factors, seed)
    for a, b in itertools.combinations(factors, 2):
        assert {(cell[a], cell[b]) for cell in cells} == set(
            itertools.product(factors[a], factors[b])
        )
    assert all(list(cell) == list(factors) for cell in cells)
    assert pairwise(factors, seed) == cells


def test_few_cells_suffice():
    cells = pairwise({name: range(3) for name in "abcdefghij"})
    assert 9 <= len(cells) <= 20  # of 59049
    cells = pairwise({"a": range(6), "b": range(5), **{name: range(2) for name in "cdefgh"}})
    assert 30 <= len(cells) <= 36  # 6 times 5: fewer are impossible


def test_equal_values_count_as_different_values():
    assert len(pairwise({"a": [1, 1], "b": [[], []]})) == 4


def test_few_factors():
    assert pairwise({}) == []
    assert pairwise({"a": "xyz"}) == [{"a": "x"}, {"a": "y"}, {"a": "z"}]
    with pytest.raises(ValueError, match="factor 'b' has no values: must be one or more"):
        pairwise({"a": [1], "b": []})
