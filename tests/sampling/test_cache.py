"""Features of other ranks' vertices that stay: which ones, and what that saves."""

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.errors import SpecError
from testbed.gnn.graph import GraphData
from testbed.gnn.sampling import Sampler, addresses, key_of
from testbed.sampling.cache import FeatureCache, inclusion
from testbed.sampling.groups import Preparation
from testbed.scenario import parse_scenario
from tests.support.gnn.parts import owners_of, ranks

FANOUT = (4, 3)
N = 5
X = np.arange(N * 3, dtype=np.float32).reshape(N, 3)


def play(requests: list[list[int]], rows: int, horizon: int, fixed: list[int] | None = None) -> int:
    """Return how many rows have to be fetched; all that come out of the cache are right."""
    made = FeatureCache(rows, X, N, None if fixed is None else np.array(fixed, np.int32))
    every = [np.array(some, np.int32) for some in requests]
    missed = 0
    for turn, some in enumerate(every):
        here = made.has(some)
        np.testing.assert_array_equal(made.take(some[here]), X[some[here]])
        missed += int((~here).sum())
        made.keep(
            some,
            addresses(X)[some],
            np.ones(len(some), np.bool_),
            every[turn + 1 : turn + 1 + horizon],
        )
        assert made.has(np.arange(N)).sum() <= rows
    return missed


def least(requests: list[list[int]], rows: int) -> int:
    """The fewest rows that have to be fetched, whatever is kept: by trying everything."""
    costs: dict[frozenset[int], int] = {frozenset(): 0}
    for some in requests:
        after: dict[frozenset[int], int] = {}
        for here, cost in costs.items():
            missed = cost + len(set(some) - here)
            known = here | set(some)
            subsets = (combinations(sorted(known), k) for k in range(min(rows, len(known)) + 1))
            for kept in map(frozenset, chain.from_iterable(subsets)):
                after[kept] = min(after.get(kept, missed), missed)
        costs = after
    return min(costs.values())


REQUESTS = st.lists(
    st.lists(st.integers(0, N - 1), min_size=1, max_size=3, unique=True), min_size=1, max_size=7
)


@given(REQUESTS, st.integers(1, 3))
def test_with_all_that_comes_known_none_is_better(requests: list[list[int]], rows: int) -> None:
    assert play(requests, rows, len(requests)) == least(requests, rows)


@given(REQUESTS, st.integers(1, 3), st.integers(0, 3))
def test_any_horizon_gives_right_rows(requests: list[list[int]], rows: int, horizon: int) -> None:
    assert play(requests, rows, horizon) >= least(requests, rows)


def test_a_fixed_choice_keeps_only_its_own() -> None:
    requests = [[0, 1], [0, 1], [0, 2], [1, 2]]
    assert play(requests, 2, 0, fixed=[1, 3, 0]) == 2 + 1 + 2 + 1


def test_own_vertices_are_not_kept(graph: GraphData) -> None:
    with ranks(graph, owners_of(graph, 2), 2) as found:
        part = found[0].part
        made = FeatureCache(graph.num_vertices, part.x, graph.num_vertices)
        preparation = Preparation(part, found[0], FANOUT, made)
        (group,) = (preparation.sample([part.train[:9]], 1),)
        preparation.fetch(group)
        needed = np.concatenate(group.needed)
        np.testing.assert_array_equal(made.has(needed), part.owners[needed] != 0)
        before = preparation.asked.sampling_bytes, preparation.asked.relays
        (again,) = preparation.fetch(group)
        assert (preparation.asked.sampling_bytes, preparation.asked.relays) == before
        assert preparation.asked.cached_vertices == (part.owners[needed] != 0).sum()
        np.testing.assert_array_equal(preparation.gathered(again), graph.x[again.blocks[0].sources])


def test_inclusion_is_how_often_minibatches_need_a_vertex(graph: GraphData) -> None:
    batch, rounds = 8, 400
    expected = inclusion(graph.indptr, graph.indices, graph.train, batch, FANOUT)
    sampler, rng = Sampler(graph), np.random.default_rng(1)
    count = np.zeros(graph.num_vertices)
    for turn in range(rounds):
        seeds = rng.choice(graph.train, batch, replace=False)
        count[sampler.blocks(seeds, FANOUT, key_of(turn))[0].sources] += 1
    # Draws without replacement, and those of two layers, are not independent.
    assert np.abs(count / rounds - expected).max() < 0.12
    assert np.corrcoef(count, expected)[0, 1] > 0.99


def test_what_is_surely_drawn_is_surely_needed() -> None:
    """A path: 0 draws 1, and 1 draws 2; nobody draws 3."""
    indptr, indices = np.array([0, 1, 2, 2, 3]), np.array([1, 2, 2], np.int32)
    found = inclusion(indptr, indices, np.array([0], np.int32), 1, (1, 1))
    np.testing.assert_allclose(found, [1, 1, 1, 0], atol=1e-9)


def test_a_baseline_with_a_cache_needs_one() -> None:
    table = {
        "scenario": {"name": "tiny"},
        "fabric": {"hosts": 2},
        "sampling": {"backends": ["rpc-cached"]},
        "dataset": {"name": "debian"},
    }
    with pytest.raises(SpecError, match=r"sampling\.cache = 0: must be at least 1 with rpc-cached"):
        parse_scenario(table)
