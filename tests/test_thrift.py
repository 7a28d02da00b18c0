"""Thrift's compact protocol: what it is made of, and what is none of it."""

import pytest

from testbed.core.thrift import BrokenThrift, read_struct
from tests.support.damage import little_memory

NUMBER, TEXT, STRUCT, LIST, TRUTH, REAL = b"\x15", b"\x18", b"\x1c", b"\x19", b"\x11", b"\x17"


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"\0", {}),
        (NUMBER + b"\x02\0", {1: 1}),
        (NUMBER + b"\x01" + NUMBER + b"\xac\x02\0", {1: -1, 2: 150}),
        (b"\x05\x14" + b"\x06\0", {10: 3}),  # a field whose number is written out
        (TEXT + b"\x02hi\0", {1: b"hi"}),
        (STRUCT + NUMBER + b"\x04\0\0", {1: {1: 2}}),
        (LIST + b"\x25\x02\x04\0", {1: [1, 2]}),
        (LIST + b"\xf5\x10" + bytes(16) + b"\0", {1: [0] * 16}),
        (LIST + b"\x21\x01\x02\0", {1: [None, None]}),
        (TRUTH + REAL + bytes(8) + NUMBER + b"\x02\0", {1: None, 2: None, 3: 1}),
    ],
)
def test_structures_are_dictionaries(data: bytes, found: object) -> None:
    assert read_struct(data + b"more") == (found, len(data))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "end early"),
        (NUMBER, "end early"),
        (TEXT + b"\xff\xff\xff\xff\x7f", "end early"),
        (NUMBER + b"\xff" * 20, "a number that is too long"),
        (STRUCT * 100, "nested too deeply"),
        (LIST + b"\x19" * 100, "nested too deeply"),
        (LIST + b"\xf1\xff\xff\xff\xff\x7f" + bytes(1 << 20), "too many"),
        (b"\x1f", "a type that Parquet does not have"),
    ],
)
def test_what_is_none_is_refused(data: bytes, text: str) -> None:
    with little_memory(32 << 20), pytest.raises(BrokenThrift, match=text):
        read_struct(data)
