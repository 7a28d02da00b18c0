"""Arrays that collectives accept, and the errors for others."""

import numpy as np
import pytest

from testbed.comm.arrays import check_array
from testbed.core.errors import SpecError

BYTES = bytearray(68)
READ_ONLY = np.zeros(4, np.float32)
READ_ONLY.flags.writeable = False


def test_arrays_that_can_be_used() -> None:
    for array in (
        np.zeros(4, np.float32),
        np.zeros((2, 2), np.float32)[1:],
        np.zeros((0, 3), np.float32),
        READ_ONLY,
    ):
        check_array("f", "x", array)
    check_array("f", "x", np.zeros((2, 3), np.float32), (2, 3), written=True)


ALLOWED = "must be float32 of shape (4,), C-contiguous"


@pytest.mark.parametrize(
    ("array", "text"),
    [
        ([1.0, 2.0], "list: must be a numpy array of float32 of shape (4,), C-contiguous"),
        (np.zeros(4), f"float64 of shape (4,) with strides (8,): {ALLOWED}"),
        (np.zeros(4, ">f4"), f">f4 of shape (4,) with strides (4,): {ALLOWED}"),
        (np.zeros(8, np.float32)[::2], f"float32 of shape (4,) with strides (8,): {ALLOWED}"),
        (np.broadcast_to(np.float32(1), 4), f"float32 of shape (4,) with strides (0,): {ALLOWED}"),
        (np.zeros((2, 2), np.float32), f"float32 of shape (2, 2) with strides (8, 4): {ALLOWED}"),
        (READ_ONLY, "read-only: must be an array that can be written"),
    ],
)
def test_arrays_that_cannot(array, text: str) -> None:
    with pytest.raises(SpecError) as refused:
        check_array("f", "x", array, (4,), written=True)
    assert str(refused.value) == f"f: x is {text}"


def test_arrays_whose_elements_are_not_aligned() -> None:
    with pytest.raises(
        SpecError, match=r"f: x begins at 0x[0-9a-f]*[^048c]: must be a multiple of 4 bytes"
    ):
        check_array("f", "x", np.frombuffer(BYTES, np.float32, 16, offset=1))
