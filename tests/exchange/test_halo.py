"""Halos: together they are the graph, and what one rank sends is what the other expects."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from testbed.core.errors import SpecError
from testbed.exchange.halo import Halo, make_halos
from tests.support.gnn.graphs import Adjacency, directed


@st.composite
def halves(draw: Any) -> tuple[Adjacency, np.ndarray, int]:
    """A graph, owners, and the number of ranks, some of which may own nothing."""
    graph = draw(directed())
    world = draw(st.integers(1, 5))
    n = len(graph[0]) - 1
    owner = draw(st.lists(st.integers(0, world - 1), min_size=n, max_size=n))
    return graph, np.array(owner, np.int32), world


def entries(halo: Halo) -> list[tuple[int, int]]:
    """A halo's adjacency entries as pairs of the graph's vertices: who takes in, and whose."""
    numbers = np.concatenate(halo.sources)
    pairs = []
    for indptr, indices, vertices in (
        (halo.indptr, halo.indices, numbers),
        (halo.local_indptr, halo.local_indices, halo.owned),
    ):
        rows = np.repeat(halo.owned, np.diff(indptr))
        pairs += list(zip(rows.tolist(), vertices[indices].tolist(), strict=True))
    return pairs


@given(halves())
def test_halos_hold_every_entry_once(given: tuple[Adjacency, np.ndarray, int]) -> None:
    (indptr, indices), owner, world = given
    halos = make_halos(indptr, indices, owner, world)
    rows = np.repeat(np.arange(len(owner)), np.diff(indptr))
    assert sorted(pair for halo in halos for pair in entries(halo)) == sorted(
        zip(rows.tolist(), indices.tolist(), strict=True)
    )
    assert np.array_equal(
        np.sort(np.concatenate([halo.owned for halo in halos])), np.arange(len(owner))
    )


@given(halves())
def test_what_is_sent_is_what_is_expected(given: tuple[Adjacency, np.ndarray, int]) -> None:
    graph, owner, world = given
    halos = make_halos(*graph, owner, world)
    for halo in halos:
        assert len(halo.sends[halo.rank]) == len(halo.sources[halo.rank]) == 0
        assert halo.num_owned == (owner == halo.rank).sum()
        for other in halos:
            assert np.array_equal(halo.owned[halo.sends[other.rank]], other.sources[halo.rank])
            assert np.array_equal(halo.positions[other.rank], other.sends[halo.rank])
            assert halo.sizes[other.rank] == other.num_owned
        # Each halo vertex is needed by someone here, and is another's.
        assert np.array_equal(np.unique(halo.indices), np.arange(halo.num_halo))
        for rank, vertices in enumerate(halo.sources):
            assert np.array_equal(np.unique(vertices), vertices)
            assert (owner[vertices] == rank).all()


@given(halves(), st.booleans(), st.integers(0, 2**32 - 1))
def test_local_and_remote_sums_make_the_whole(
    given: tuple[Adjacency, np.ndarray, int], weighted: bool, seed: int
) -> None:
    (indptr, indices), owner, world = given
    n = len(owner)
    rng = np.random.default_rng(seed)
    x = rng.integers(-9, 10, (n, 3)).astype(
        np.float32
    )  # whole numbers: sums are exact in any order
    weights = rng.integers(1, 5, len(indices)).astype(np.float32) if weighted else None
    whole = sums(weights, indices, indptr, x, n)
    for halo in make_halos(indptr, indices, owner, world, weights):
        received = x[np.concatenate(halo.sources)]
        remote = sums(halo.weights, halo.indices, halo.indptr, received, halo.num_owned)
        local = sums(
            halo.local_weights, halo.local_indices, halo.local_indptr, x[halo.owned], halo.num_owned
        )
        assert np.array_equal(local + remote, whole[halo.owned])


def sums(
    weights: np.ndarray | None, indices: np.ndarray, indptr: np.ndarray, x: np.ndarray, rows: int
) -> np.ndarray:
    values = np.ones(len(indices), np.float32) if weights is None else weights
    return np.asarray(csr_array((values, indices, indptr), shape=(rows, len(x))) @ x)


@given(halves())
def test_types_are_those_of_maps_and_views(given: tuple[Adjacency, np.ndarray, int]) -> None:
    graph, owner, world = given
    for halo in make_halos(*graph, owner, world, np.ones(len(graph[1]), np.float32)):
        wide = (halo.owned, halo.indptr, halo.local_indptr, *halo.sends, *halo.sources)
        assert {array.dtype for array in wide} == {np.dtype(np.int64)}
        assert halo.indices.dtype == halo.local_indices.dtype == np.int32
        assert halo.weights is not None
        assert halo.weights.dtype == np.float32


@pytest.mark.parametrize("owner", [[0, 1], [0, 1, 2], [0, -1, 1]])
def test_owners_that_are_no_ranks(owner: list[int]) -> None:
    graph = np.array([0, 1, 2, 2]), np.array([1, 0], np.int32)
    text = (
        rf"^halo: owner has {len(owner)} entries: must be one for each of 3 vertices, each 0\.\.1$"
    )
    with pytest.raises(SpecError, match=text):
        make_halos(*graph, np.array(owner, np.int32), 2)
