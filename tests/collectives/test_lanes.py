"""Lanes: exact as integers, within their bound as floats, without carries, and the same in C and in
numpy.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from testbed.comm.lanes import NativeLanes
from testbed.protocol.lanes import EXPONENTS, Lanes
from testbed.protocol.wire import weigh

RECORD_WORDS = 8  # struct record
FORMATS = st.builds(Lanes, st.sampled_from((16, 32)), st.integers(1, 32))
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
VALUES = hnp.arrays(np.float32, st.integers(0, 300), elements=FINITE)
ANYTHING = hnp.arrays(np.float32, st.integers(0, 300), elements=st.floats(width=32))
ALL = [Lanes(bits, ranks) for bits in (16, 32) for ranks in range(1, 33)]


def word_sum(summands, dtype):
    """Add as the ring does: 64-bit words, regardless of lanes."""
    words = [np.ascontiguousarray(lanes).view(np.uint64) for lanes in summands]
    return np.sum(words, axis=0, dtype=np.uint64).view(dtype)


@pytest.mark.parametrize("lanes", ALL, ids=str)
def test_no_lane_carries_into_its_neighbour(lanes) -> None:
    """With both extremes and values in between, next to each other in a word."""
    huge, exponent = np.float32(3e38), 0
    pattern = np.resize(np.array([huge, -huge, -huge, 0, huge, huge, 0, -huge], np.float32), 64)
    one = lanes.quantize(pattern, exponent)
    assert one.min() > 0
    assert int(one.max()) < 2 * lanes.bias
    summed = word_sum([one] * lanes.ranks, lanes.dtype)
    np.testing.assert_array_equal(summed.astype(np.int64), one.astype(np.int64) * lanes.ranks)


@pytest.mark.parametrize("lanes", ALL, ids=str)
def test_error_stays_within_its_bound(lanes) -> None:
    """For all numbers of ranks and both widths, at the least exponent and with slack, over many
    magnitudes.
    """
    random = np.random.default_rng(lanes.ranks)
    for magnitude in (1e-30, 3e-7, 1.0, 12345.6, 1e30):
        values = (random.standard_normal((lanes.ranks, 512)) * magnitude).astype(np.float32)
        values[:, :8] = np.float32(magnitude) * np.array(
            [1, -1, 4, -4, 0.5, -0.5, 0, 1e-5], np.float32
        )
        absmax = float(np.abs(values).max())
        for slack in (0, 1, 2):
            exponent = lanes.exponent_for(absmax) + slack
            sums = word_sum([lanes.quantize(row, exponent) for row in values], lanes.dtype)
            error = np.abs(lanes.dequantize(sums, exponent) - values.astype(np.float64).sum(axis=0))
            assert error.max() <= lanes.error_bound(exponent, absmax)


@given(FORMATS, FINITE.map(abs))
def test_exponent_is_that_of_the_magnitude_unless_it_would_be_clamped(lanes, absmax) -> None:
    exponent = lanes.exponent_for(absmax)
    assert exponent in EXPONENTS
    assert exponent >= lanes.least_exponent
    assert round(absmax * lanes.scale(exponent)) <= lanes.limit
    clamped_below = round(math.ldexp(absmax, lanes.fraction_bits - exponent + 1)) > lanes.limit
    assert (
        exponent == lanes.least_exponent or absmax >= math.ldexp(1.0, exponent - 1) or clamped_below
    )


@given(
    st.sampled_from((16, 32)),
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=8),
    st.integers(0, 3),
)
def test_multiples_of_a_step_come_back_exactly(bits, values, slack) -> None:
    lanes = Lanes(bits, 1)
    exponent = lanes.exponent_for(max(abs(value) for value in values)) + slack
    once = lanes.dequantize(lanes.quantize(np.array(values, np.float32), exponent), exponent)
    np.testing.assert_array_equal(lanes.dequantize(lanes.quantize(once, exponent), exponent), once)


@given(FORMATS, FINITE.map(abs))
def test_native_exponent(lanes, absmax) -> None:
    assert NativeLanes(lanes).exponent_for(absmax) == lanes.exponent_for(absmax)


@given(ANYTHING)
def test_native_magnitude_and_search(values) -> None:
    native = NativeLanes(Lanes(32, 2))
    bad = np.flatnonzero(~np.isfinite(values))
    assert native.find_nonfinite(values.ctypes.data, values.size) == (
        bad[0] if bad.size else values.size
    )
    absmax = native.absmax(values.ctypes.data, values.size)
    if bad.size:
        assert not math.isfinite(absmax)
    else:
        assert absmax == float(np.max(np.abs(values), initial=0.0))


@given(FORMATS, ANYTHING, st.integers(-60, 120), st.sampled_from((32, 96)))
def test_native_quantize(lanes, values, exponent, per_chunk) -> None:
    """Bit for bit, including clamped values; whole chunks have their check, and the sum of all
    their words is returned.
    """
    exponent = max(exponent, lanes.least_exponent)
    expected = lanes.quantize(values, exponent)
    whole, row = values.size // per_chunk, per_chunk + 8 // lanes.bytes
    out = np.zeros((whole + 1, row), lanes.dtype)
    records = np.full((whole + 1, RECORD_WORDS), 7, np.uint64)
    absmax = NativeLanes(lanes).quantize(
        values.ctypes.data,
        values.size,
        out.ctypes.data,
        out.strides[0],
        per_chunk,
        records.ctypes.data,
        exponent,
    )
    np.testing.assert_array_equal(out[:, :per_chunk].reshape(-1)[: values.size], expected)
    if np.isfinite(values).all():
        assert absmax == float(np.max(np.abs(values), initial=0.0))
    else:
        assert not math.isfinite(absmax)
    chunks = out[:whole].view(np.uint64)
    assert [int(chunk[-1]) for chunk in chunks] == [weigh(chunk[:-1]) for chunk in chunks]
    np.testing.assert_array_equal(records[:whole, 0], chunks.sum(axis=1, dtype=np.uint64))
    assert (records[:, 1:] == 7).all()
    assert (records[whole:, 0] == 7).all()


@given(FORMATS, st.integers(0, 2**32 - 1), st.integers(0, 300), st.integers(-60, 100))
def test_native_dequantize(lanes, seed, count, exponent) -> None:
    exponent = max(exponent, lanes.least_exponent)
    random = np.random.default_rng(seed)
    sums = random.integers(
        lanes.ranks, 2 * lanes.bias * lanes.ranks - lanes.ranks, count, np.uint64
    ).astype(lanes.dtype)
    chunks = in_chunks(sums, 32)
    with np.errstate(over="ignore"):
        expected = lanes.dequantize(sums, exponent)
    out = np.full(count + 1, 5, np.float32)
    good = NativeLanes(lanes).dequantize(
        chunks.ctypes.data, count, chunks.strides[0], 32, out.ctypes.data, exponent
    )
    assert good == len(chunks)
    np.testing.assert_array_equal(out[:count], expected)
    assert out[count] == 5
    if whole := count // 32:
        bad = seed % whole
        chunks[bad, seed % 32] ^= 1
        assert (
            NativeLanes(lanes).dequantize(
                chunks.ctypes.data, count, chunks.strides[0], 32, out.ctypes.data, exponent
            )
            == bad
        )


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("shift", [0, 1, 7])
def test_native_dequantize_of_large_arrays(bits, shift) -> None:
    """Another loop writes large arrays past the cache; it has to find an aligned start and handle
    the rest.
    """
    lanes = Lanes(bits, 3)
    count = (1 << 20) + 13
    sums = (
        np.random.default_rng(1)
        .integers(3, 6 * lanes.bias - 3, count, np.uint64)
        .astype(lanes.dtype)
    )
    out = np.zeros(count + shift, np.float32)
    chunks = in_chunks(sums, 700)
    assert dequantize(lanes, chunks, count, 700, out[shift:], 4) == len(chunks)
    np.testing.assert_array_equal(out[shift:], lanes.dequantize(sums, 4))


@given(st.sampled_from((64, 128, 3456, 3520, 64_832)), st.integers(0, 2**32 - 1))
def test_native_seal(length, seed) -> None:
    words = np.random.default_rng(seed).integers(0, 1 << 64, length // 8, np.uint64)
    record = np.zeros(RECORD_WORDS, np.uint64)
    NativeLanes(Lanes(32, 2)).seal(words.ctypes.data, length, record.ctypes.data)
    assert int(words[-1]) == weigh(words[:-1])
    assert int(record[0]) == int(words.sum(dtype=np.uint64))
    assert not record[1:].any()


@given(
    st.integers(2, 32),
    st.integers(0, 2**32 - 1),
    st.integers(0, 423),
    st.integers(0, 423),
    st.integers(0, 63),
)
def test_checks_add_up_and_see_what_sums_do_not(ranks, seed, one, other, bit) -> None:
    """Two errors that cancel out: the same bit set in one word and cleared in another."""
    halves = np.random.default_rng(seed).integers(
        0, (1 << 32) // ranks, (ranks, 848), dtype=np.uint32
    )
    parts = halves.view(np.uint64)
    total = parts.sum(axis=0, dtype=np.uint64)
    assert weigh(total) == sum(weigh(part) for part in parts) % (1 << 64)
    mask = np.uint64(1 << bit)
    if bool(total[one] & mask) != bool(total[other] & mask):
        wrong = total.copy()
        wrong[[one, other]] ^= mask
        assert int(wrong.sum(dtype=np.uint64)) == int(total.sum(dtype=np.uint64))
        assert weigh(wrong) != weigh(total)


def dequantize(lanes, chunks, count, per_chunk, out, exponent) -> int:
    return NativeLanes(lanes).dequantize(
        chunks.ctypes.data, count, chunks.strides[0], per_chunk, out.ctypes.data, exponent
    )


def in_chunks(sums: np.ndarray, per_chunk: int) -> np.ndarray:
    """Lanes as chunks contain them, each chunk with its check at the end."""
    rows = -(-sums.size // per_chunk)
    out = np.zeros((rows, per_chunk + 8 // sums.itemsize), sums.dtype)
    for row in range(rows):
        part = sums[row * per_chunk : (row + 1) * per_chunk]
        out[row, : part.size] = part
        words = out[row].view(np.uint64)
        words[-1] = weigh(words[:-1])
    return out


@pytest.mark.parametrize("ranks", [3, 5, 31])
@pytest.mark.parametrize("bits", [16, 32])
def test_rounding_alone_is_no_overflow(ranks, bits) -> None:
    """If +max and -max alternate, one is left over, which float32 can represent; it cannot
    represent one more.
    """
    lanes, most = Lanes(bits, ranks), np.float32(np.finfo(np.float32).max)
    exponent = lanes.exponent_for(float(most))
    turns = np.array([most if rank % 2 == 0 else -most for rank in range(ranks)], np.float32)

    def total(values):
        return np.array(
            [sum(int(lanes.quantize(value[None], exponent)[0]) for value in values)], lanes.dtype
        )

    assert not lanes.surely_overflows(total(turns), exponent)[0]
    assert lanes.surely_overflows(total(np.abs(turns[:2]).repeat(2)[:ranks]), exponent)[0]
