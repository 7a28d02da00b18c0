"""Rows as they travel: native code against the reference model, and what they add up to."""

import ctypes
from typing import Literal, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from testbed.exchange.adjacency import LARGE, Adjacency, RowFormat, RowLanes, row_source
from testbed.exchange.halo import Sums
from testbed.exchange.interface import Aggregation
from testbed.native import load
from testbed.protocol.rows import ERRORS, fixed_lanes, fixed_step, pack_bfloat16, pack_int16

LANES: tuple[RowLanes, ...] = ("float32", "bfloat16", "int16")
FIXED: tuple[Literal["fixed16", "fixed32"], ...] = ("fixed16", "fixed32")
MAX = np.finfo(np.float32).max
Packed = tuple[float, NDArray[np.uint8], NDArray[np.float32]]


def pack(
    form: RowFormat,
    x: NDArray[np.float32],
    rows: NDArray[np.int64],
    sums: Sums | None = None,
    kind: Aggregation = "sum",
    step: float = 1.0,
) -> Packed:
    """The largest magnitude, the rows of a message, and their steps.

    :param step: Of fixed lanes.
    """
    source = row_source(form, sums, kind)
    source.step = step
    packed = np.full((len(rows), form.row_bytes), 0xEE, np.uint8)
    steps = np.full(len(rows), 0 if form.is_fixed else np.nan, np.float32)
    call = load("aggregate").pack
    call.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_uint64] + [ctypes.c_void_p] * 2
    call.restype = ctypes.c_uint32
    addresses = [source.address, x.ctypes.data, rows.ctypes.data]
    bits = call(*addresses, len(rows), packed.ctypes.data, steps.ctypes.data)
    return float(np.uint32(bits).view(np.float32)), packed, steps


def values(dim: int, seed: int, low: int = -40, high: int = 38) -> NDArray[np.float32]:
    """Rows of all magnitudes, one of them 0, one with the largest values of all."""
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((40, dim)) * 10.0 ** draw.integers(low, high, (40, 1))
    x[0], x[1] = 0, draw.choice([-MAX, MAX], dim)
    return np.clip(x, -MAX, MAX).astype(np.float32)


@pytest.mark.parametrize("dim", [1, 2, 15, 16, 17, 64, 100, 256, 511, 512])
def test_native_rows_are_those_of_the_reference(dim: int) -> None:
    x = values(dim, dim)
    rows = np.random.default_rng(1).permutation(40)[:33].astype(np.int64)
    for lanes in LANES:
        most, packed, steps = pack(RowFormat(lanes, dim, True), x, rows)
        assert most == np.abs(x[rows]).max()
        found = packed[:, : dim * (4 if lanes == "float32" else 2)]
        if lanes == "float32":
            expected, unit = x[rows].view(np.uint8), np.ones(33)
        elif lanes == "bfloat16":
            expected, unit = pack_bfloat16(x[rows]).view(np.uint8), np.ones(33)
        else:
            words, unit = pack_int16(x[rows])
            expected = words.view(np.uint8)
        assert np.array_equal(found, expected.reshape(33, -1))
        assert np.array_equal(steps, unit)


@pytest.mark.parametrize("dim", [1, 3, 64, 100, 512])
@pytest.mark.parametrize("lanes", FIXED)
def test_fixed_lanes_are_those_of_the_reference(lanes: RowLanes, dim: int) -> None:
    form = RowFormat(lanes, dim, False)
    draw = np.random.default_rng(1)
    for low, high in ((-40, 38), (-2, 2), (-45, -40)):
        x, rows = values(dim, dim, low, high)[2:], draw.permutation(38)[:33].astype(np.int64)
        step = fixed_step(x[rows], form.lane_bits)
        most, _, needed = pack(form, x, rows, step=2.0**-20)
        assert (most, needed[0]) == (np.abs(x[rows]).max(), step)
        _, packed, needed = pack(form, x, rows, step=step)
        assert needed[0] == step
        found = packed.view(np.uint16 if lanes == "fixed16" else np.uint32)[:, :dim]
        half = 1 << (form.lane_bits - 1)
        assert np.array_equal(found - float(half), fixed_lanes(x[rows], step, form.lane_bits))
        error = np.abs((found.astype(np.float64) - half) * step - x[rows])
        assert error.max() <= max(step, np.abs(x).max() * 2.0**-24)


@pytest.mark.parametrize("lanes", FIXED)
def test_fixed_sums_too_large_for_a_float32_have_a_step_of_their_own(lanes: RowLanes) -> None:
    form, x = RowFormat(lanes, 2, False), np.array([[MAX, -MAX], [MAX, 1]], np.float32)
    sums = make_sums("sum", [0, 1], [0, 2])
    exact = x.astype(np.float64).sum(axis=0)
    _, _, needed = pack(form, x, np.array([0]), sums)
    _, packed, again = pack(form, x, np.array([0]), sums, step=needed[0])
    assert needed[0] == again[0] == 2.0 ** (129 - form.lane_bits + 1)
    found = packed.view(np.uint16 if lanes == "fixed16" else np.uint32)[0, :2]
    error = np.abs((found - float(1 << (form.lane_bits - 1))) * needed[0] - exact)
    assert error.max() <= max(needed[0], MAX * 2.0**-22)


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40)
)
def test_the_error_of_an_element_is_bounded_by_its_row(row: list[float]) -> None:
    x = np.array([row], np.float32)
    lanes, steps = pack_int16(x)
    assert np.abs(lanes.astype(np.int64)).max() <= 1 << 15
    error = np.abs(lanes * steps[:, None].astype(np.float64) - x)
    most = np.abs(x).max()
    assert error.max() <= max(most * ERRORS["int16"], 2.0**-125)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("lanes", get_args(RowLanes))
def test_values_that_are_not_finite_are_noticed(lanes: RowLanes, value: float) -> None:
    for dim in (1, 17, 64):
        x = values(dim, 3)
        x[7, dim // 2] = value
        form = RowFormat(lanes, dim, True)
        assert np.isfinite(pack(form, x, np.array([0, 5, 8]))[0])
        assert not np.isfinite(pack(form, x, np.array([0, 7, 8]))[0])
        for kind in get_args(Aggregation):
            sums = make_sums(kind, [2, 3, 2, 7, 5], [0, 2, 5])
            assert np.isfinite(pack(form, x, np.array([0]), sums, kind)[0])
            assert not np.isfinite(pack(form, x, np.array([0, 1]), sums, kind)[0])


def make_sums(kind: Aggregation, indices: list[int], indptr: list[int]) -> Sums:
    count = len(indptr) - 1
    weights = np.linspace(-1.5, 1.0, len(indices)).astype(np.float32)
    nothing = np.zeros(0)
    return Sums(
        np.array(indptr, np.int64),
        np.array(indices, np.int32),
        weights if kind == "weighted" else None,
        np.arange(count),
        nothing,
        np.zeros(0, np.int64),
        nothing,
    )


@pytest.mark.parametrize("kind", get_args(Aggregation))
@pytest.mark.parametrize("lanes", LANES)
def test_sums_are_formed_as_they_are_packed(lanes: RowLanes, kind: Aggregation) -> None:
    for dim in (1, 17, 64):
        x = values(dim, 5, -3, 3)[2:]
        sums = make_sums(kind, [0, 3, 3, 9, 1, 2, 30], [0, 1, 4, 4, 7])
        rows = np.array([1, 3, 0])
        most, packed, steps = pack(RowFormat(lanes, dim, True), x, rows, sums, kind)
        formed = np.empty((4, dim), np.float32)
        Adjacency(sums.indptr, sums.indices, sums.weights, dim, kind).aggregate(x, formed)
        expected = pack(RowFormat(lanes, dim, True), formed, rows)
        assert most == expected[0]
        assert np.array_equal(steps, expected[2])
        used = dim * (4 if lanes == "float32" else 2)
        assert np.array_equal(packed[:, :used], expected[1][:, :used])


@pytest.mark.parametrize("lanes", LANES)
def test_partial_sums_beyond_float32_keep_their_value(lanes: RowLanes) -> None:
    x = np.array([[MAX, 1.0], [MAX, 2.0], [-MAX, 0.5], [3.0, 4.0]], np.float32)
    sums = make_sums("sum", [0, 1, 0, 0, 1, 2, 3], [0, 3, 6, 7])  # 3 MAX, MAX and 3
    form = RowFormat(lanes, 2, True)
    most, packed, steps = pack(form, x, np.arange(3), sums)
    assert LARGE <= most < np.inf  # the receiver has to use doubles
    assert np.isfinite(steps).all()
    # The first target's sum is a float32, the second's is too large in truth.
    adjacency = Adjacency(
        *(np.array([0, 2, 3]), np.array([0, 1, 0], np.int32), np.array([1, -2.5, 1], np.float32)),
        *(2, "weighted"),
        form=form,
        offsets=np.arange(3, dtype=np.uint32) * np.uint32(form.row_bytes // 4),
        steps=steps,
    )
    out = np.empty((2, 2), np.float32)
    adjacency.aggregate(packed, out, large=True)
    assert out[0, 0] / MAX == pytest.approx(0.5, abs=6 * ERRORS[lanes] + 1e-6)
    assert np.isposinf(out[1, 0])


@pytest.mark.parametrize("kind", get_args(Aggregation))
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dim", [1, 15, 16, 17, 63, 64, 65, 100, 256, 512])
def test_rows_of_all_formats_are_aggregated(lanes: RowLanes, kind: Aggregation, dim: int) -> None:
    draw = np.random.default_rng(dim)
    x, rows = values(dim, dim, -20, 20)[2:], draw.permutation(38).astype(np.int64)
    degrees = draw.integers(0, 9, 30)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    indices = draw.integers(0, 38, indptr[-1]).astype(np.int32)
    weights = draw.standard_normal(len(indices)).astype(np.float32)
    form = RowFormat(lanes, dim, True)
    _, packed, steps = pack(form, x, rows)
    adjacency = Adjacency(
        *(indptr, indices, weights if kind == "weighted" else None, dim, kind),
        form=form,
        offsets=np.arange(38, dtype=np.uint32) * np.uint32(form.row_bytes // 4),
        steps=steps,
    )
    factors = weights if kind == "weighted" else np.ones(len(indices))
    received = x[rows].astype(np.float64)
    for large in (False, True):
        out = np.full((30, dim), np.nan, np.float32)
        adjacency.aggregate(packed, out, large)
        for target in range(30):
            edges = slice(indptr[target], indptr[target + 1])
            taken = received[indices[edges]]
            most = np.abs(taken).max(axis=1, initial=0)
            share = ERRORS[lanes] + (len(taken) + 2) * 2.0**-23
            if kind == "max":
                exact, bound = taken.max(axis=0, initial=-np.inf), most.max(initial=0) * share
            else:
                exact = (factors[edges, None] * taken).sum(axis=0)
                bound = (np.abs(factors[edges]) * most).sum() * share
            same = out[target] == exact
            assert (np.abs(out[target][~same] - exact[~same]) <= bound).all()
