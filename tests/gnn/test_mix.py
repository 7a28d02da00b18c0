"""Hashes of arrays against their scalar forms."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from testbed.faults import fate
from testbed.gnn.mix import mix, mix32


@given(st.lists(st.integers(0, 2**64 - 1), max_size=9))
def test_mix_is_the_faults_one(numbers: list[int]) -> None:
    assert mix(np.array(numbers, np.uint64)).tolist() == [fate.mix(number) for number in numbers]


def test_mix32_is_murmurs() -> None:
    """Known answers of MurmurHash3's fmix32."""
    numbers = np.array([0, 1, 2, 0xFFFFFFFF], np.uint32)
    mix32(numbers)
    assert numbers.tolist() == [0, 0x514E28B7, 0x30F4C306, 0x81F16F39]
