"""What programs and processes share: which rank owns which chunks, and how frames are named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.protocol.ring.memory import Stage, item_of, parts_of, slots_of


@given(st.integers(1, 32), st.integers(0, 200))
def test_every_chunk_belongs_to_one_slot(ranks, total) -> None:
    owned = [slots_of(rank, ranks, total) for rank in range(ranks)]
    assert sum(owned) == total
    assert owned == [len(range(rank, total, ranks)) for rank in range(ranks)]


@given(st.integers(0, (1 << 23) - 2), st.integers(0, 255), st.sampled_from(Stage))
def test_the_name_of_a_frame_contains_its_chunk_round_and_stage(index, round_, stage) -> None:
    item = item_of(index, round_, stage)
    assert (item >> 9, item >> 1 & 0xFF, item & 1) == parts_of(item) == (index, round_, stage)
    assert item < 1 << 32


def test_no_frame_has_the_name_that_means_none() -> None:
    with pytest.raises(AssertionError):
        item_of((1 << 23) - 1, 255, Stage.RESULT)
