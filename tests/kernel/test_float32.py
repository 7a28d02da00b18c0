"""Addition of float32 in integer arithmetic (``bpf/lib/float32.h``), compared bit by bit with the
CPU's: the header compiled for user space, and the same header in a program.
"""

import ctypes
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from testbed.bench.additions import OFFSET, WORDS
from testbed.kernel import XDP_TX, BpfObject
from testbed.native import load

Bits = NDArray[np.uint32]

SIGN, INFINITY, QUIET = 0x80000000, 0x7F800000, 0x400000
PAIRS = 10_000_000
BATCH = 1 << 20

# Zeros, the smallest and largest subnormal and normal numbers, 1 and its neighbours, what is half a
# unit of 1 and of the largest number, infinity, NaN of both kinds; with both signs.
SIZES = [
    *(0, 1, 2, 3, 0x7FFFFE, 0x7FFFFF, 0x800000, 0x800001, 0xFFFFFF, 0x1000000),
    *(0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x33000000, 0x33800000, 0x33800001, 0x34000000),
    *(0x72FFFFFF, 0x73000000, 0x73000001, 0x7F000000, 0x7F7FFFFE, 0x7F7FFFFF),
    *(INFINITY, INFINITY + 1, INFINITY + QUIET - 1, INFINITY + QUIET, 0x7FFFFFFF),
]
SPECIAL = np.array(list(product([*SIZES, *(SIGN | size for size in SIZES)], repeat=2)), np.uint32).T


def add_native(a: Bits, b: Bits) -> Bits:
    sums = np.empty_like(a)
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    add = load("float32").float32_add_each
    add.argtypes = [*[np.ctypeslib.ndpointer(np.uint32, flags="C")] * 3, ctypes.c_size_t]
    add.restype = None
    add(a, b, sums, sums.size)
    return sums


def is_nan(bits: Bits) -> NDArray[np.bool_]:
    return bits & 0x7FFFFFFF > INFINITY


def check(a: Bits, b: Bits, sums: Bits) -> None:
    """Compare sums with the CPU's. IEEE 754 does not say which NaN a sum is, only that it is a
    quiet one.
    """
    with np.errstate(all="ignore"):
        expected = (a.view(np.float32) + b.view(np.float32)).view(np.uint32)
    nan = is_nan(expected)
    assert np.array_equal(is_nan(sums), nan)
    assert (sums[nan] & QUIET).all()
    wrong = np.flatnonzero((sums != expected) & ~nan)
    assert not wrong.size, [
        f"{int(a[i]):08x} + {int(b[i]):08x} = {int(sums[i]):08x}, not {int(expected[i]):08x}"
        for i in wrong[:5]
    ]


def random_pairs(seed: int, count: int) -> tuple[Bits, Bits]:
    """Pairs of all bits at random; and, because most of those are too far apart to interact, pairs
    with exponents at most 31 apart, pairs that almost cancel out, and pairs of subnormal numbers.
    """
    random = np.random.default_rng(seed)
    a, b = random.integers(0, 1 << 32, (2, count), np.uint32)
    close, cancel, tiny = (slice(k, None, 4) for k in (1, 2, 3))
    exponent = (a[close] >> 23 & 255).astype(np.int64) + random.integers(-31, 32, a[close].size)
    b[close] = b[close] & 0x807FFFFF | (exponent.clip(0, 254).astype(np.uint32) << 23)
    near = random.integers(-64, 65, a[cancel].size)
    b[cancel] = ((a[cancel] ^ SIGN).astype(np.int64) + near).astype(np.uint32)
    a[tiny] &= 0x81FFFFFF
    b[tiny] &= 0x80FFFFFF
    return a, b


def test_special_values() -> None:
    a, b = SPECIAL
    check(a, b, add_native(a, b))


def test_which_nan() -> None:
    """The first operand's, made quiet; and x86's own for infinities that cancel out."""
    a = np.array([INFINITY + 1, 0, INFINITY + 1, INFINITY, SIGN | INFINITY], np.uint32)
    b = np.array([0, SIGN | INFINITY + 2, INFINITY + 2, SIGN | INFINITY, INFINITY], np.uint32)
    assert [hex(each) for each in add_native(a, b)] == [
        *("0x7fc00001", "0xffc00002", "0x7fc00001", "0xffc00000", "0xffc00000")
    ]


def test_random_pairs() -> None:
    for seed in range(-(-PAIRS // BATCH)):
        a, b = random_pairs(seed, BATCH)
        check(a, b, add_native(a, b))


@pytest.mark.kernel
def test_in_a_program() -> None:
    pairs = random_pairs(99, 1 << 15)
    a, b = (np.concatenate(each) for each in zip(SPECIAL, pairs, strict=True))
    count = 2 * WORDS
    with BpfObject("additions") as programs:
        add, maps = programs.programs["add_float32"], programs.maps
        for start in range(0, a.size - count + 1, count):
            part = slice(start, start + count)
            maps["input"].view(np.uint32)[:] = b[part]
            assert add.test_run(bytes(OFFSET) + a[part].tobytes()).retval == XDP_TX
            sums = maps["sums"].view(np.uint32).ravel()
            check(a[part], b[part], sums)
            assert np.array_equal(sums, add_native(a[part], b[part]))


@pytest.mark.kernel
@pytest.mark.parametrize(("program", "kind"), [("add_packed", np.uint64), ("add_int32", np.uint32)])
def test_integers_in_a_program(program: str, kind: type) -> None:
    a, b = np.random.default_rng(1).integers(0, 1 << 64, (2, WORDS), np.uint64)
    with BpfObject("additions") as programs:
        programs.maps["input"].view(np.uint64)[:] = b
        programs.programs[program].test_run(bytes(OFFSET) + a.tobytes())
        assert np.array_equal(programs.maps["sums"].view(kind).ravel(), a.view(kind) + b.view(kind))
