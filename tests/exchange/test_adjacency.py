"""Aggregation in user space against the definition: every kind, and dims around what is done in one
go.
"""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.exchange.adjacency import Adjacency
from testbed.exchange.interface import Aggregation
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
        infinite = np.isneginf(exact)  # a maximum over nothing
        assert np.array_equal(np.isneginf(out), infinite)
        assert (np.abs(out[~infinite] - exact[~infinite]) <= bound[~infinite]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 3, 63, 64, 65, 128, 511, 512])
def test_dims(kind: Aggregation, dim: int) -> None:
    check(draw_partitioned(0, 60, 300, 3), dim, kind)


@given(partitioned(), st.sampled_from(KINDS), st.integers(1, 70))
def test_any_graph(graph: Partitioned, kind: Aggregation, dim: int) -> None:
    check(graph, dim, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hub_of_twenty_thousand(kind: Aggregation) -> None:
    check(draw_partitioned(0, 5000, 100, 2, hub=40_000), 17, kind)


def test_without_weights() -> None:
    out = np.empty((2, 2), np.float32)
    rows = np.array([[1, 2], [3, 5]], np.float32)
    Adjacency(np.array([0, 2, 2]), np.array([0, 1], np.int32), None, 2, "sum").aggregate(rows, out)
    assert out.tolist() == [[4, 7], [0, 0]]
