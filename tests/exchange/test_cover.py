"""Covers: as small as any, and the ranks together still aggregate every edge once."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.exchange.adjacency import Adjacency
from testbed.exchange.cover import cover_halos, minimum_cover
from testbed.exchange.halo import Halo, make_halos
from testbed.exchange.interface import Aggregation
from testbed.gnn.full.part import transposed
from testbed.testing.graphs import Partitioned, draw_partitioned
from tests.support.exchange.graphs import partitioned
from tests.support.tiers import broad


@st.composite
def bipartite(draw: Any) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    edges = draw(st.lists(st.tuples(st.integers(0, rows - 1), st.integers(0, columns - 1))))
    sources, targets = np.array(edges, np.int64).reshape(-1, 2).T
    return sources, targets, (rows, columns)


@given(bipartite())
@settings(max_examples=300)
def test_no_cover_is_smaller(given: tuple[np.ndarray, np.ndarray, tuple[int, int]]) -> None:
    sources, targets, (rows, columns) = given
    left, right = minimum_cover(sources, targets, (rows, columns))
    assert (left[sources] | right[targets]).all()
    smallest = min(
        sum(chosen)
        for chosen in product((False, True), repeat=rows + columns)
        if all(chosen[s] or chosen[rows + t] for s, t in zip(sources, targets, strict=True))
    )
    assert left.sum() + right.sum() == smallest


def travel(halos: tuple[Halo, ...], x: list[np.ndarray], kind: Aggregation) -> list[np.ndarray]:
    """Each rank's aggregates, with all rows moved by hand."""
    dim = x[0].shape[1]
    rows = []
    for halo, mine in zip(halos, x, strict=True):
        sums = halo.sums
        assert sums is not None
        formed = np.empty((len(sums.numbers), dim), np.float32)
        Adjacency(sums.indptr, sums.indices, sums.weights, dim, kind).aggregate(mine, formed)
        rows.append(formed)
        placed, picked = sums.arranged(halo.sends)
        again = np.empty((len(placed.numbers), dim), np.float32)
        Adjacency(placed.indptr, placed.indices, placed.weights, dim, kind).aggregate(mine, again)
        for sent, chosen in zip(halo.sends, picked, strict=True):
            assert np.array_equal(again[chosen], formed[sent])
            assert np.array_equal(placed.numbers[chosen], sums.numbers[sent])
    found = []
    for halo in halos:
        for other in halos:
            assert np.array_equal(halo.positions[other.rank], other.sends[halo.rank])
            assert np.array_equal(halo.sources[other.rank], other.numbers[other.sends[halo.rank]])
            assert halo.sizes[other.rank] == len(other.numbers)
            assert (np.diff(halo.sources[other.rank]) > 0).all()
        received = np.concatenate([rows[rank][halo.positions[rank]] for rank in range(halo.world)])
        out = np.empty((halo.num_owned, dim), np.float32)
        Adjacency(halo.indptr, halo.indices, halo.weights, dim, kind).aggregate(received, out)
        found.append(out)
    return found


@pytest.mark.parametrize("kind", broad(["weighted", "sum", "max"]))
@given(graph=partitioned(), seed=st.integers(0, 999))
@settings(max_examples=100)
def test_every_edge_is_aggregated_once(kind: Aggregation, graph: Partitioned, seed: int) -> None:
    """Values are whole numbers and weights sixteenths: sums are exact in any order."""
    x = np.random.default_rng(seed).integers(-9, 10, (len(graph.owner), 3)).astype(np.float32)
    for found, wanted in zip(
        travel(graph.covers, graph.split(x), kind), graph.aggregates(x, kind), strict=True
    ):
        assert np.array_equal(found, wanted)


def test_a_gradient_goes_back_along_the_transposed_cover() -> None:
    """With A the adjacency between ranks, <g, A x> = <Aᵀ g, x>."""
    graph = draw_partitioned(0, 300, 3000, 4, hub=200)
    random = np.random.default_rng(0)
    x, g = random.integers(-9, 10, (2, 300, 4)).astype(np.float32)
    back = make_halos(*transposed(graph.indptr, graph.indices), graph.owner, 4)
    there = travel(cover_halos(graph.halos), graph.split(x), "sum")
    again = travel(cover_halos(back), graph.split(g), "sum")
    assert sum(float((a * b).sum()) for a, b in zip(there, graph.split(g), strict=True)) == sum(
        float((a * b).sum()) for a, b in zip(again, graph.split(x), strict=True)
    )


def test_a_star_needs_one_row() -> None:
    """Whether its centre sends or receives."""
    centre = np.array([0, 4, 4, 4, 4, 4]), np.arange(1, 5, dtype=np.int32)
    owner = np.array([0, 1, 1, 1, 1], np.int32)
    for adjacency in (centre, transposed(*centre)):
        halos = cover_halos(make_halos(*adjacency, owner, 2))
        assert sorted(halo.num_halo for halo in halos) == [0, 1]


def test_a_cover_is_never_larger_than_the_halo() -> None:
    graph = draw_partitioned(3, 500, 1500, 4)
    for cover, halo in zip(graph.covers, graph.halos, strict=True):
        for rank in range(4):
            assert len(cover.sends[rank]) <= len(halo.sends[rank])
    assert sum(cover.num_halo for cover in graph.covers) < sum(h.num_halo for h in graph.halos)
