"""The neighbour sampler: only real edges, no repeats, at most the fanout, uniform, and the same for
the same seed.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.gnn.graph import GraphData, from_edges
from testbed.gnn.sampling import Block, Sampler, draw_neighbours, shares


def neighbours(graph: GraphData, vertex: int) -> set[int]:
    return set(graph.indices[graph.indptr[vertex] : graph.indptr[vertex + 1]].tolist())


def star(leaves: int) -> GraphData:
    indptr, indices = from_edges(np.zeros(leaves, np.int64), np.arange(1, leaves + 1), leaves + 1)
    n = leaves + 1
    nothing = np.empty(0, np.int64)
    return GraphData(
        "star",
        indptr,
        indices,
        np.zeros((n, 1), np.float32),
        np.zeros(n, np.int64),
        nothing,
        nothing,
        nothing,
        1,
    )


@pytest.mark.parametrize("fanout", [1, 3, 20, None])
def test_draws_are_distinct_neighbours(graph: GraphData, fanout: int | None) -> None:
    targets = np.arange(0, graph.num_vertices, 3)
    drawn, row = draw_neighbours(graph, targets, fanout, np.random.default_rng(0))
    for position, vertex in enumerate(targets):
        mine = drawn[row == position].tolist()
        assert len(mine) == len(set(mine))
        assert set(mine) <= neighbours(graph, vertex)
        degree = len(neighbours(graph, vertex))
        assert len(mine) == (degree if fanout is None else min(fanout, degree))


def test_draws_are_uniform() -> None:
    hub = star(10)
    rng = np.random.default_rng(1)
    counts = np.zeros(11)
    rounds = 4000
    for _ in range(rounds):
        drawn, _ = draw_neighbours(hub, np.array([0]), 3, rng)
        counts[drawn] += 1
    # Binomial(4000, 0.3) has a standard deviation of 29; five of them mean one false alarm in 10^5
    # for ten leaves.
    np.testing.assert_allclose(counts[1:], rounds * 0.3, atol=5 * 29)


def check(graph: GraphData, block: Block, targets: np.ndarray) -> None:
    assert np.array_equal(block.sources[: block.num_targets], targets)
    assert len(np.unique(block.sources)) == len(block.sources)
    senders, receivers = block.sources[block.edge_index[0]], block.sources[block.edge_index[1]]
    assert all(
        s in neighbours(graph, r) for s, r in zip(senders.tolist(), receivers.tolist(), strict=True)
    )
    assert set(block.sources.tolist()) == set(targets.tolist()) | set(senders.tolist())


def test_blocks_chain_from_seeds_outwards(graph: GraphData) -> None:
    sampler = Sampler(graph)
    seeds = graph.train[:16]
    inner, outer = reversed(sampler.blocks(seeds, (4, 2), np.random.default_rng(0)))
    check(graph, inner, seeds)
    check(graph, outer, inner.sources)
    assert np.bincount(inner.edge_index[1]).max() <= 4
    assert np.bincount(outer.edge_index[1]).max() <= 2


def test_same_seed_same_blocks_whatever_came_before(graph: GraphData) -> None:
    fresh, used = Sampler(graph), Sampler(graph)
    used.blocks(graph.val, (5, 5), np.random.default_rng(7))
    for a, b in zip(
        fresh.blocks(graph.train[:9], (3, 3), np.random.default_rng(5)),
        used.blocks(graph.train[:9], (3, 3), np.random.default_rng(5)),
        strict=True,
    ):
        assert np.array_equal(a.sources, b.sources)
        assert np.array_equal(a.edge_index, b.edge_index)


def test_vertices_without_neighbours() -> None:
    lonely = star(3)
    indptr = np.zeros(5, np.int64)
    alone = GraphData(
        "alone", indptr, lonely.indices[:0], lonely.x, lonely.y, *(lonely.train,) * 3, 1
    )
    block = Sampler(alone).block(np.array([2, 0]), 5, np.random.default_rng(0))
    assert block.sources.tolist() == [2, 0]
    assert block.edge_index.shape == (2, 0)


@given(st.integers(0, 200), st.integers(1, 9))
def test_shares_are_equal_and_disjoint(count: int, world: int) -> None:
    dealt = shares(np.arange(count) * 2, world, np.random.default_rng(0))
    assert {len(share) for share in dealt} == {count // world}
    together = np.concatenate(dealt)
    assert len(np.unique(together)) == len(together) > count - world
    assert set(together.tolist()) <= set(range(0, 2 * count, 2))
