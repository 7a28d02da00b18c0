"""Sizes: what -b, -e and -f accept and refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bench.sizes import check_room, parse_size, size_series
from testbed.core.errors import SpecError
from testbed.core.numbers import format_size

ALLOWED = "must be a number of bytes, with K, M or G, such as 64K"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("64", 64),
        ("4k", 4096),
        ("64K", 65536),
        ("64KiB", 65536),
        ("16MB", 16 << 20),
        ("1G", 1 << 30),
    ],
)
def test_parse(text, size):
    assert parse_size(text, "-b") == size


@given(st.integers(0, 1 << 32).map(lambda n: n * 4))
def test_format_is_the_inverse(size):
    assert parse_size(format_size(size), "-b") == size


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: parse_size("64T", "-b"), "-b: '64T' is no size: " + ALLOWED),
        (lambda: parse_size("-4", "-e"), "-e: '-4' is no size: " + ALLOWED),
        (lambda: parse_size("6", "-b"), "-b: '6' is 6 bytes: must be a multiple of 4, a float32"),
        (lambda: size_series(4, 64, 1), "-f: 1: must be a factor of at least 2"),
        (lambda: size_series(64, 4, 2), "-b: 64 bytes: must be at most -e, 4 bytes"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(SpecError) as caught:
        call()
    assert str(caught.value) == text


def test_series():
    assert size_series(64 << 10, 64 << 20, 4) == [65536 * 4**i for i in range(6)]
    assert size_series(64, 100, 4) == [64]
    assert size_series(0, 64, 4) == [0, 4, 16, 64]
    assert size_series(0, 0, 4) == [0]


def test_tensors_that_exceed_the_memory_are_refused():
    check_room(1 << 20, 4, ["gloo", "mpi"], (1 << 20) * 26)
    with pytest.raises(SpecError) as caught:
        check_room(1 << 30, 4, ["gloo", "mpi"], (1 << 20) * 260)
    assert (
        str(caught.value)
        == "-e: 1G: must be at most 10M: 4 hosts with 2 backends hold a tensor 26 times, in 260 MiB"
        " of memory, 80% of what is available"
    )
