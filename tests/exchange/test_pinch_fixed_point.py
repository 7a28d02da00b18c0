"""Embeddings as integers: C against numpy, and every error within its bound."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.exchange.interface import Aggregation
from testbed.exchange.pinch.fixed_point import LEAST_EXPONENT, Numbers, exponent_of
from testbed.exchange.pinch.layout import HEADROOM, Bundles, RowLayout, bundle
from testbed.exchange.pinch.vertex_tables import weight_scale
from testbed.kernel.abi import dtype
from testbed.protocol.wire import weigh
from testbed.testing.aggregates import (
    Format,
    Travelling,
    exact_aggregates,
    magnitude,
    sent,
)
from testbed.testing.graphs import Partitioned, draw_partitioned, embeddings
from tests.support.exchange import pinch_reference as reference
from tests.support.exchange.graphs import partitioned
from tests.support.tiers import broad

KINDS = get_args(Aggregation)
BITS = pytest.mark.parametrize("bits", [16, 32])
DIMS = (1, 2, 3, 4, 5, 7, 8, 31, 64, 100, 256, 511, 512)
EXPONENTS = (-149, -126, -40, 0, 3, 60, 128)


def numbers(
    dim: int,
    bits: int,
    kind: Aggregation = "sum",
    scale: float = 1.0,
    *,
    halved=False,
    mtu: int = 1500,
) -> Numbers:
    return Numbers(RowLayout.plan(dim, bits, mtu), kind, scale, halved)


def draw(shape: tuple[int, int], exponent: int, seed: int = 0) -> np.ndarray:
    """Embeddings of magnitudes below ``2**exponent``, including the largest ones and 0."""
    random = np.random.default_rng([seed, *shape])
    with np.errstate(under="ignore"):
        x = np.ldexp(random.uniform(-1, 1, shape).astype(np.float32), exponent).astype(np.float32)
    largest = (
        np.nextafter(np.float32(np.inf), np.float32(0))
        if exponent == 128
        else np.nextafter(np.float32(2.0**exponent), np.float32(0))
    )
    x.flat[:3] = np.array([largest, -largest, 0], np.float32)[: x.size]
    return x


def fill(
    made: Numbers,
    x: np.ndarray,
    bundles: Bundles,
    exponent: int,
    last: np.ndarray | None = None,
    cuts: int = 1,
):
    """Payloads of all frames, written in one or several calls, and records of frames."""
    count = len(bundles.to)
    payloads = np.full((count * made.layout.parts, made.layout.payload), 0xAA, np.uint8)
    frames = np.zeros(len(payloads), dtype("pinch_frame"))
    for part in range(cuts):
        first, end = (count * edge // cuts * made.layout.parts for edge in (part, part + 1))
        made.fill(x, bundles, first, end, payloads, frames, exponent, last)
    return payloads, frames


def assert_payloads(
    made: Numbers, bundles: Bundles, lanes: np.ndarray, payloads: np.ndarray, frames: np.ndarray
) -> None:
    expected = reference.payloads(made.layout, bundles, lanes)
    assert len(expected) == len(payloads)
    for words, payload, frame in zip(expected, payloads, frames, strict=True):
        assert frame["length"] == words.nbytes
        np.testing.assert_array_equal(payload[: words.nbytes].view(np.uint64), words)
        assert int(frame["check"]) == weigh(words)


@BITS
@pytest.mark.parametrize("dim", DIMS)
def test_payloads_equal_the_references(bits, dim) -> None:
    random = np.random.default_rng(dim)
    for exponent in EXPONENTS:
        x = draw((40, dim), exponent)
        positions = np.flatnonzero(random.random(40) < 0.8)
        for mtu in (576, 1500, 3506):
            made = numbers(dim, bits, mtu=mtu)
            bundles = bundle(
                positions, random.integers(1, 8, len(positions)).astype(np.uint32), made.layout.rows
            )
            lanes = Format(bits).quantize(x, exponent)
            assert np.abs(lanes).max() <= Format(bits).limit == made.limit
            assert_payloads(made, bundles, lanes, *fill(made, x, bundles, exponent, cuts=3))


@BITS
@pytest.mark.parametrize("dim", [1, 3, 64, 512])
def test_payloads_of_changes_equal_the_references(bits, dim) -> None:
    """The cache remembers what others have received: only the vertices that were sent."""
    made, form = numbers(dim, bits, halved=True), Format(bits, halved=True)
    last = np.zeros((30, dim), np.int32)
    for turn in range(4):
        x = draw((30, dim), 3, turn) * np.float32(-1) ** turn
        positions = np.arange(turn, 30, turn + 1)
        bundles = bundle(positions, np.ones(len(positions), np.uint32), made.layout.rows)
        lanes, before = form.quantize(x, 3), last.copy()
        assert_payloads(made, bundles, lanes - before, *fill(made, x, bundles, 3, last))
        before[positions] = lanes[positions]
        np.testing.assert_array_equal(last, before)
    assert np.abs(last).max() <= form.limit


@BITS
def test_the_largest_change_fits_a_lane(bits) -> None:
    made = numbers(2, bits, halved=True)
    last = np.zeros((1, 2), np.int32)
    bundles = bundle(np.zeros(1, int), np.ones(1, np.uint32), 1)
    x = draw((1, 2), 0)
    fill(made, x, bundles, 0, last)
    payloads, _ = fill(made, -x, bundles, 0, last)
    lanes = payloads[0, 8:].view(f"<i{bits // 8}")
    largest = Format(bits, halved=True).quantize(x, 0)[0]
    assert lanes[:2].tolist() == (-2 * largest).tolist()
    assert largest[0] >= made.limit * (1 - 2.0**-24)


@BITS
@given(
    st.integers(1, 9), st.integers(0, 30), st.floats(0, 2), st.integers(1, 4), st.integers(0, 99)
)
def test_changed_vertices_are_those_of_the_reference(
    bits, dim, count, bound, staleness, seed
) -> None:
    made, form, random = (
        numbers(dim, bits, halved=True),
        Format(bits, halved=True),
        np.random.default_rng(seed),
    )
    positions = np.sort(random.permutation(30)[:count]).astype(np.int32)
    last, age = np.zeros((30, dim), np.int32), np.zeros(30, np.uint32)
    for turn in range(5):
        x = draw((30, dim), 1, seed) + np.float32(0.1) * draw((30, dim), 0, turn) * (
            random.random((30, 1)) < 0.5
        )
        lanes = form.quantize(x.astype(np.float32), 2)
        most = int(min(bound * form.factor(2), 2**32))
        expected = reference.changed(
            lanes[positions], last[positions], most, age[positions].astype(int), staleness
        )
        ages = age.copy()
        ages[positions] = np.where(expected, 0, ages[positions] + 1)
        found = made.changed(x.astype(np.float32), positions, 2, last, bound, age, staleness)
        np.testing.assert_array_equal(found, expected)
        age[:] = ages
        last[positions[found]] = lanes[positions[found]]


def accumulate(layout: RowLayout, kind: Aggregation, sums: np.ndarray) -> np.ndarray:
    """Accumulators that hold sums: shape (targets, words); the inverse of collect."""
    lanes = np.zeros((len(sums), layout.wide * 64 // (2 * layout.bits)), np.int64)
    if kind == "max":
        lanes[:] = -(1 << (2 * layout.bits - 1))
    lanes[:, : layout.dim] = sums
    if layout.bits == 32:
        return lanes.view(np.uint64)
    pairs = lanes.reshape(len(sums), -1, 2, 2)  # 4i, 4i + 1 | 4i + 2, 4i + 3
    low, high = pairs[:, :, 0], pairs[:, :, 1]
    both = (high << 32 | low & 0xFFFFFFFF) if kind == "max" else (high << 32) + low
    return np.ascontiguousarray(both.reshape(len(sums), -1)).view(np.uint64)


@BITS
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("banks", [1, 2, 3])
def test_aggregates_equal_the_references(bits, kind, banks) -> None:
    most = (1 << (2 * bits - 1)) - 1
    for dim in DIMS:
        random = np.random.default_rng([dim, banks])
        made = numbers(dim, bits, kind, scale=0.75)
        sums = random.integers(-most // banks, most // banks, (banks, 9, dim))
        sums[:, 0, 0], sums[:, 1, -1] = most // banks, -(most // banks)
        accumulators = np.ascontiguousarray(
            np.stack([accumulate(made.layout, kind, bank) for bank in sums])
        )
        total = sums.max(axis=0) if kind == "max" else sums.sum(axis=0)
        targets = random.permutation(9).astype(np.int32)
        expected = np.empty((9, dim), np.float32)
        expected[targets] = Format(bits).dequantize(total, 1.0 / (made.factor(5) * 0.75), kind)
        for clear in (False, True):
            out = np.full((9, dim), np.nan, np.float32)
            if kind == "max":
                made.reset(again := accumulators.copy())
                made.collect(copy := accumulators.copy(), targets, banks, out, 5, clear)
                np.testing.assert_array_equal(copy, again)
            else:
                made.collect(accumulators, targets, banks, out, 5, clear)
                assert bool(accumulators.any()) != clear
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("banks", [1, 3])
def test_packed_sums_of_a_vertex_are_added_up(banks) -> None:
    for dim in DIMS:
        random = np.random.default_rng([dim, banks])
        layout = RowLayout.plan(dim, 32, 1500, packed=True)
        made = Numbers(layout, "sum", 1.0)
        assert made.limit == Format(32, packed=True).limit == layout.largest
        most = made.limit << HEADROOM
        targets = np.array([2, 0, 0, 0, 3, 1, 1], np.int32)
        sums = random.integers(-most, most, (banks, len(targets), 2 * layout.wide))
        sums[:, 1:4, 0], sums[:, 1:4, -1] = most, -most
        words = (sums[..., ::2] + (sums[..., 1::2] << 32)).view(np.uint64)
        total = np.zeros((5, dim), np.int64)
        np.add.at(total, targets, sums.sum(axis=0)[:, :dim])
        expected = Format(32, packed=True).dequantize(total, 1.0 / made.factor(5), "sum")
        for clear in (False, True):
            out = np.full((5, dim), np.nan, np.float32)
            made.collect(words, targets, banks, out, 5, clear)
            assert bool(words.any()) != clear
            np.testing.assert_array_equal(out, expected)


@BITS
def test_a_maximum_over_no_neighbours_is_minus_infinity(bits) -> None:
    made = numbers(5, bits, "max")
    accumulators = np.zeros((2, 3, made.layout.wide), np.uint64)
    made.reset(accumulators.reshape(-1))
    out = np.zeros((3, 5), np.float32)
    made.collect(accumulators, np.arange(3, dtype=np.int32), 2, out, 0, False)
    assert (out == -np.inf).all()


def test_the_largest_magnitude_of_some_rows_is_found() -> None:
    made, x = (
        numbers(3, 16),
        np.array([[1, -7, 3], [0, 9, 0], [1, -np.inf, 3], [1, np.nan, np.inf]], np.float32),
    )
    for rows, most in (([], 0), ([0], 7), ([0, 1], 9), ([1, 2], np.inf), ([2, 3], np.nan)):
        np.testing.assert_equal(made.absmax(x, np.array(rows, np.int32)), most)


def check_bounds(graph: Partitioned, x: np.ndarray, kind: Aggregation, bits: int) -> None:
    absmax = float(np.abs(x).max(initial=0))
    found, wanted = exact_aggregates(graph, x, kind, bits), graph.aggregates(x, kind)
    for halo, got, exact in zip(graph.halos, found, wanted, strict=True):
        scale = weight_scale(halo, bits) if kind == "weighted" else 1.0
        bound = numbers(x.shape[1], bits, kind, scale=scale).error_bound(halo, absmax)
        assert bound.shape == (halo.num_owned, 1)
        other = got != exact  # infinities are equal
        assert (np.abs(got[other] - exact[other]) <= np.broadcast_to(bound, got.shape)[other]).all()


@BITS
@pytest.mark.parametrize("kind", broad(KINDS[::-1]))
@settings(max_examples=60)
@given(partitioned(), st.integers(-110, 120), st.integers(0, 999))
def test_every_error_is_within_its_bound(bits, kind, graph, exponent, seed) -> None:
    check_bounds(graph, draw((len(graph.owner), 3), exponent, seed), kind, bits)


@BITS
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("magnitude", [0.0, 1e-45, 1e-40, 1e-38, 1e-36, 1e-30, 1e30])
def test_every_error_is_within_its_bound_at_any_magnitude(bits, kind, magnitude) -> None:
    graph = draw_partitioned(1, 60, 2000, 3, hub=1000)
    x = (embeddings(1, graph, 4) / np.float32(4096) * np.float32(magnitude)).astype(np.float32)
    check_bounds(graph, x, kind, bits)


@BITS
@pytest.mark.parametrize("kind", broad(KINDS))
@settings(max_examples=60)
@given(partitioned(), st.integers(-110, 110), st.integers(0, 999))
def test_every_error_with_partial_sums_is_within_its_bound(
    bits, kind, graph, exponent, seed
) -> None:
    check_sums(graph, draw((len(graph.owner), 3), exponent, seed), kind, bits)


@BITS
@pytest.mark.parametrize("kind", KINDS)
def test_the_error_of_large_partial_sums_is_within_its_bound(bits, kind) -> None:
    graph = draw_partitioned(1, 200, 4000, 3, hub=20_000)
    x = embeddings(1, graph, 4)
    check_sums(graph, x, kind, bits)
    check_sums(graph, np.abs(x), kind, bits)
    check_sums(graph, np.full_like(x, np.nextafter(np.float32(4), np.float32(0))), kind, bits)


def check_sums(graph: Partitioned, x: np.ndarray, kind: Aggregation, bits: int) -> None:
    absmax = float(np.abs(x).max(initial=0))
    found = exact_aggregates(graph, x, kind, bits, choice="cover")
    wanted, travels = graph.aggregates(x, kind), Travelling.of(graph, kind)
    rows = travels.rows(graph, x, kind)[sent(travels)]
    assert np.abs(rows).max(initial=0) <= 2.0 ** magnitude(x)
    for halo, got, exact in zip(travels.halos, found, wanted, strict=True):
        scale = weight_scale(halo, bits) if travels.aggregation == "weighted" else 1.0
        bound = numbers(x.shape[1], bits, travels.aggregation, scale=scale).error_bound(
            halo, absmax
        )
        other = got != exact  # infinities are equal
        assert (np.abs(got[other] - exact[other]) <= np.broadcast_to(bound, got.shape)[other]).all()


@given(st.floats(0, width=32, allow_infinity=False))
def test_a_magnitude_has_the_smallest_exponent_above_it(absmax) -> None:
    exponent = exponent_of(absmax)
    assert absmax < 2.0**exponent
    assert exponent == LEAST_EXPONENT or absmax >= 2.0 ** (exponent - 1)


def test_exponents_at_the_ends_of_the_range() -> None:
    finfo = np.finfo(np.float32)
    values = [0.0, float(finfo.smallest_subnormal), 1.0, float(finfo.max)]
    assert [exponent_of(value) for value in values] == [LEAST_EXPONENT, -148, 1, 128]
