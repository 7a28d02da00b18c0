"""Arrays in files: what their headers say is compared with what is there."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.core.errors import SpecError
from testbed.core.npy import map_array
from tests.support.damage import little_memory, refusals
from tests.support.tiers import broad


def saved(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def header(text: str, version: int = 1) -> bytes:
    size = len(text).to_bytes(2 * version, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + text.encode()


@pytest.mark.parametrize(
    "array", [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.eye(3, 2)), np.zeros((0, 4))]
)
def test_an_array_is_mapped(tmp_path: Path, array: Any) -> None:
    (place := tmp_path / "a.npy").write_bytes(saved(array))
    np.testing.assert_array_equal(map_array(place, "a"), array)


REFUSED = {
    "objects": saved(np.array([{}], object), allow_pickle=True),
    "texts": saved(np.array(["a"])),
    "records": saved(np.zeros(2, "i4,f4")),
    "no file": b"",
    "more than is there": header("{'descr': '<f8', 'fortran_order': False, 'shape': (1<<9,)}"),
    "a huge shape": header("{'descr': '<f8', 'fortran_order': False, 'shape': (2**62, 4)}"),
    "petabytes": header(
        "{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 8)}"
    ),
    "negative": header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}"),
    "a long header": b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + bytes(1 << 16),
    "deep": header("(" * 5000),
    "no expression": header("{[]: 1}"),
    "half an expression": header("{'descr': '''"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_none_is_one_line(tmp_path: Path, name: str) -> None:
    (place := tmp_path / "a.npy").write_bytes(REFUSED[name])
    with little_memory(4 << 20), pytest.raises(SpecError) as caught:
        map_array(place, "a")
    assert str(caught.value).startswith("a: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", broad(range(20)))
def test_damaged_arrays_are_mapped_or_refused(tmp_path: Path, seed: int) -> None:
    place = tmp_path / "a.npy"

    def read(data: bytes) -> None:
        place.write_bytes(data)
        map_array(place, "a")

    data = saved(np.arange(12, dtype=np.int32).reshape(3, 4))
    assert refusals(read, [data], seed, 150, 16 << 20) > 50
