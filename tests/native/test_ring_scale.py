"""Predicted exponents in C (ring_learn of testbed/native/ring.c), compared with ScaleGuess."""

import ctypes

from hypothesis import given
from hypothesis import strategies as st

from testbed.kernel.abi import Struct
from testbed.native import load
from testbed.protocol.scale import PATIENCE, SLACK, ScaleGuess

NEAR = st.integers(-SLACK - 1, 1)  # below the last prediction by so much


@given(
    st.lists(
        st.tuples(NEAR, st.integers(1, PATIENCE + 2)),  # the same difference, several times
        min_size=1,
        max_size=12,
    ),
    st.sampled_from((-149, 0, 100)),
)
def test_predictions_are_those_of_the_model(runs, start) -> None:
    learn = load("ring").ring_learn
    learn.argtypes, learn.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32], None
    ring = Struct("ring", slack=SLACK, calm_most=PATIENCE)
    segment, model = Struct("ring_segment"), ScaleGuess()
    for difference, times in runs:
        for _ in range(times):
            seen = (start if model.exponent is None else model.exponent) + difference
            model.learn(seen)
            learn(ring.address, segment.address, seen)
            assert segment.known
            assert segment.exponent == model.exponent
