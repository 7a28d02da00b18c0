"""The neighbour sampler: draws are those of the rule, uniform, and a vertex's own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.gnn.graph import GraphData, from_edges
from testbed.gnn.mix import GOLDEN, mix
from testbed.gnn.sampling import Block, Numbering, Sampler, draw_neighbours, key_of, shares


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


def drawn_by_hand(degree: int, fanout: int, state: int) -> list[int]:
    """The places of a vertex's neighbours that it draws: Floyd's algorithm, by its rules."""
    places: list[int] = []
    for slot in range(fanout):
        last = degree - fanout + slot
        word = int(mix(np.array([(state + (slot + 1) * GOLDEN) % 2**64], np.uint64))[0])
        found = word * (last + 1) >> 64
        places.append(last if found in places else found)
    return places


@pytest.mark.parametrize("fanout", [1, 3, 20, 64, None])
def test_draws_are_those_of_the_rule(graph: GraphData, fanout: int | None) -> None:
    targets, key = np.arange(0, graph.num_vertices, 3, dtype=np.int32), key_of(1, 2, 3)
    drawn = draw_neighbours(graph.indptr, graph.indices, targets, fanout, key)
    for i, vertex in enumerate(targets.tolist()):
        mine = drawn.neighbours[drawn.indptr[i] : drawn.indptr[i + 1]].tolist()
        row = graph.indices[graph.indptr[vertex] : graph.indptr[vertex + 1]].tolist()
        assert len(mine) == len(set(mine))
        if fanout is None or len(row) <= fanout:
            assert mine == row
        else:
            state = int(mix(np.array([(key + vertex * GOLDEN) % 2**64], np.uint64))[0])
            assert mine == [row[place] for place in drawn_by_hand(len(row), fanout, state)]


def test_draws_are_uniform() -> None:
    hub, rounds = star(10), 4000
    counts = np.zeros(11)
    targets = np.zeros(1, np.int32)
    for key in range(rounds):
        counts[draw_neighbours(hub.indptr, hub.indices, targets, 3, key_of(key)).neighbours] += 1
    # Binomial(4000, 0.3) has a standard deviation of 29; five of them mean one false alarm in 10^5
    # for ten leaves.
    np.testing.assert_allclose(counts[1:], rounds * 0.3, atol=5 * 29)


def test_a_vertex_draws_the_same_in_every_minibatch(graph: GraphData) -> None:
    """Whatever its row is called."""
    targets = graph.train[:40].astype(np.int32)
    whole = draw_neighbours(graph.indptr, graph.indices, targets, 4, 7)
    order = np.random.default_rng(0).permutation(40).astype(np.int32)[:17]
    some = draw_neighbours(graph.indptr, graph.indices, targets[order], 4, 7)
    chosen = whole.select(order)
    assert np.array_equal(some.indptr, chosen.indptr)
    assert np.array_equal(some.neighbours, chosen.neighbours)
    starts = graph.indptr[targets[order]]
    rows = [
        graph.indices[s : s + d]
        for s, d in zip(starts, np.diff(graph.indptr)[targets[order]], strict=True)
    ]
    indptr = np.cumsum([0, *map(len, rows)])
    part = draw_neighbours(
        *(indptr, np.concatenate(rows), np.arange(17, dtype=np.int32), 4, 7), targets[order]
    )
    assert np.array_equal(part.neighbours, some.neighbours)


def test_keys_tell_draws_apart() -> None:
    keys = [
        key_of(seed, purpose, epoch)
        for seed in range(5)
        for purpose in range(5)
        for epoch in range(5)
    ]
    assert len(set(keys)) == len(keys)
    assert key_of(0, 1) != key_of(1, 0)


@given(
    st.lists(st.integers(0, 49), max_size=60),
    st.lists(st.integers(0, 49), max_size=20, unique=True),
)
def test_vertices_are_numbered_as_they_occur(found: list[int], before: list[int]) -> None:
    numbering = Numbering(50)
    vertices, first = np.array(found, np.int32), np.array(before, np.int32)
    for _ in range(2):  # nothing is left of the first time
        distinct, numbers = numbering.number(vertices, first)
        assert distinct.tolist() == list(dict.fromkeys([*before, *found]))
        assert distinct[numbers].tolist() == found


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
    inner, outer = reversed(sampler.blocks(seeds, (4, 2), 0))
    check(graph, inner, seeds)
    check(graph, outer, inner.sources)
    assert np.bincount(inner.edge_index[1]).max() <= 4
    assert np.bincount(outer.edge_index[1]).max() <= 2


def test_same_seed_same_blocks_whatever_came_before(graph: GraphData) -> None:
    fresh, used = Sampler(graph), Sampler(graph)
    used.blocks(graph.val, (5, 5), 7)
    for a, b in zip(
        fresh.blocks(graph.train[:9], (3, 3), 5),
        used.blocks(graph.train[:9], (3, 3), 5),
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
    block = Sampler(alone).block(np.array([2, 0]), 5, 0)
    assert block.sources.tolist() == [2, 0]
    assert block.edge_index.shape == (2, 0)


@given(st.integers(0, 200), st.integers(1, 9))
def test_shares_are_equal_and_disjoint(count: int, world: int) -> None:
    dealt = shares(np.arange(count) * 2, world, np.random.default_rng(0))
    assert {len(share) for share in dealt} == {count // world}
    together = np.concatenate(dealt)
    assert len(np.unique(together)) == len(together) > count - world
    assert set(together.tolist()) <= set(range(0, 2 * count, 2))
