"""Aggregation in user space against the definition: every kind, and dims around the size of a
block.
"""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.exchange.adjacency import Adjacency, RowFormat
from testbed.exchange.interface import Aggregation
from testbed.protocol.rows import pack_int16
from testbed.testing.graphs import Partitioned, draw_partitioned, embeddings
from tests.support.exchange.graphs import partitioned

KINDS = get_args(Aggregation)


def check(graph: Partitioned, dim: int, kind: Aggregation) -> None:
    x = embeddings(1, graph, dim)
    expected, bounds = graph.aggregates(x, kind), graph.float32_bounds(x, kind)
    for halo, exact, bound in zip(graph.halos, expected, bounds, strict=True):
        out = np.full((halo.num_owned, dim), np.nan, np.float32)
        Adjacency(halo.indptr, halo.indices, halo.weights, dim, kind).aggregate(
            x[np.concatenate(halo.sources)], out
        )
        infinite = np.isneginf(exact)  # a maximum over no elements
        assert np.array_equal(np.isneginf(out), infinite)
        assert (np.abs(out[~infinite] - exact[~infinite]) <= bound[~infinite]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 3, 63, 64, 65, 128, 511, 512])
def test_all_dims_are_aggregated(kind: Aggregation, dim: int) -> None:
    check(draw_partitioned(0, 60, 300, 3), dim, kind)


@given(partitioned(), st.sampled_from(KINDS), st.integers(1, 70))
def test_any_graph_is_aggregated(graph: Partitioned, kind: Aggregation, dim: int) -> None:
    check(graph, dim, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hub_with_twenty_thousand_neighbours_is_aggregated(kind: Aggregation) -> None:
    check(draw_partitioned(0, 5000, 100, 2, hub=40_000), 17, kind)


def test_aggregation_without_weights() -> None:
    out = np.empty((2, 2), np.float32)
    rows = np.array([[1, 2], [3, 5]], np.float32)
    Adjacency(np.array([0, 2, 2]), np.array([0, 1], np.int32), None, 2, "sum").aggregate(rows, out)
    assert out.tolist() == [[4, 7], [0, 0]]


@pytest.mark.parametrize(("row", "weight"), [(1e32, 1e11), (3e-38, 1e30), (1e-20, 1e-60)])
def test_products_of_steps_and_weights_need_not_be_float32(row: float, weight: float) -> None:
    """Lanes times steps times weights are, or 0; zeros stay zeros."""
    x = np.array([[row, 0]], np.float32)
    words, steps = pack_int16(x)
    memory, out = words.view(np.uint8).reshape(-1), np.empty((1, 2), np.float32)
    weights = np.array([weight], np.float32)
    Adjacency(
        *(np.array([0, 1]), np.zeros(1, np.int32), weights, 2, "weighted"),
        form=RowFormat("int16", 2, True),
        offsets=np.zeros(1, np.uint32),
        steps=steps,
    ).aggregate(memory, out)
    with np.errstate(over="ignore"):
        exact = (words.astype(np.float64) * float(steps[0]) * float(weights[0])).astype(np.float32)
    np.testing.assert_array_equal(out, exact)
    assert out[0, 1] == 0


def test_large_products_cancel_out() -> None:
    x = np.full((2, 1), 1e31, np.float32)
    weights, out = np.array([1e8, -1e8], np.float32), np.empty((1, 1), np.float32)
    Adjacency(
        *(np.array([0, 2]), np.arange(2, dtype=np.int32), weights, 1, "weighted"),
        form=RowFormat("float32", 1, False),
        offsets=np.arange(2, dtype=np.uint32),
    ).aggregate(x.view(np.uint8).reshape(-1), out)
    assert out == 0
