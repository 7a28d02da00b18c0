"""Tables made from halos: every neighbour occurs once, and no accumulator can overflow."""

from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from testbed.core.errors import SpecError
from testbed.exchange.interface import Aggregation
from testbed.exchange.pinch.layout import HEADROOM, RowLayout
from testbed.exchange.pinch.vertex_tables import SLICE_WORDS, make_tables, weight_scale
from testbed.protocol.pinch.memory import Source
from testbed.testing.graphs import Partitioned, draw_partitioned
from tests.support.exchange.graphs import partitioned

KINDS = st.sampled_from(get_args(Aggregation))
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def star(leaves: int, weights: list[float] | np.ndarray | None = None) -> Partitioned:
    """Rank 0 has one vertex, which aggregates messages of all of rank 1's vertices."""
    indptr = np.concatenate([[0], np.full(leaves + 1, leaves)])
    drawn = np.ones(leaves, np.float32) if weights is None else np.asarray(weights, np.float32)
    owner = np.r_[0, np.ones(leaves)].astype(np.int32)
    return Partitioned(indptr, np.arange(1, leaves + 1, dtype=np.int32), drawn, owner, 2)


@given(partitioned(), st.sampled_from([(1, 16), (64, 16), (512, 16), (64, 32), (512, 32)]), KINDS)
def test_tables_represent_the_same_matrix_as_the_halo(graph, shape, kind) -> None:
    layout = RowLayout.plan(*shape, 1500)
    for halo in graph.halos:
        tables = make_tables(halo, layout, kind)
        scale = weight_scale(halo, layout.bits) if kind == "weighted" else 1.0
        assert tables.scale == scale
        dense = [np.zeros((halo.num_owned, size), np.int64) for size in halo.sizes]
        source = np.concatenate(
            [np.full(len(p), rank) for rank, p in enumerate(halo.positions)]
        ).astype(int)
        position = np.concatenate(halo.positions).astype(int)
        for v in range(halo.num_owned):
            for k in range(halo.indptr[v], halo.indptr[v + 1]):
                weight = np.rint(np.float64(halo.weights[k]) * scale) if kind == "weighted" else 1
                dense[source[halo.indices[k]]][v, position[halo.indices[k]]] += int(weight)
        np.testing.assert_array_equal(np.sort(tables.targets), np.flatnonzero(np.diff(halo.indptr)))
        covered = []
        for rank, size in enumerate(halo.sizes):
            entry = Source(*tables.sources[rank].item())
            found = np.zeros((halo.num_owned, size), np.int64)
            if rank == halo.rank or not size:
                assert entry.frames == 0
                continue
            assert (entry.vertices, entry.frames) == (size, size * layout.parts)
            covered += [(entry.first, entry.first + size)]
            for number, vertex in enumerate(tables.vertices[entry.first : entry.first + size]):
                for edge in tables.edges[vertex["first"] :][: vertex["count"]]:
                    found[tables.targets[edge["target"]], number] += (
                        edge["weight"] if kind == "weighted" else 1
                    )
            np.testing.assert_array_equal(found, dense[rank])
        assert sum(end - first for first, end in covered) == len(tables.vertices)
        assert all(a[1] == b[0] for a, b in pairwise(covered))
        assert len(tables.edges) == tables.vertices["count"].sum() == len(halo.indices)
        sources = [Source(*row) for row in tables.sources[: graph.world].tolist()]
        words = [range(s.seen, s.seen + -(-s.frames // 32)) for s in sources]
        assert sorted(word for each in words for word in each) == list(range(tables.seen))
        # What others need from this rank.
        for rank, sends in enumerate(halo.sends):
            needed = tables.outgoing[(tables.masks >> np.uint32(rank) & 1).astype(bool)]
            np.testing.assert_array_equal(needed, sends)
        assert (tables.masks > 0).all()


@pytest.mark.parametrize("most", [1, 1 << HEADROOM, (1 << HEADROOM) + 1, 3000])
def test_no_packed_sum_has_more_rows_than_fit(most) -> None:
    graph = draw_partitioned(2, 700, 3000, 3, hub=0) if most == 1 else star(most)
    wide, layout = (RowLayout.plan(8, 32, 1500, packed) for packed in (False, True))
    for halo in graph.halos:
        packed, plain = make_tables(halo, layout, "sum"), make_tables(halo, wide, "sum")
        summands = np.bincount(packed.edges["target"], minlength=len(packed.targets))
        assert (summands > 0).all()
        assert int(summands.max(initial=0)) * layout.largest < 1 << 31
        found = packed.targets[packed.edges["target"]]
        np.testing.assert_array_equal(found, plain.targets[plain.edges["target"]])
        # The accumulators of a vertex follow each other, and there are no more than it needs.
        reached, count = np.unique(packed.targets, return_counts=True)
        degree = np.diff(halo.indptr)[reached]
        np.testing.assert_array_equal(count, -(-degree // (1 << HEADROOM)))
        assert np.count_nonzero(np.diff(packed.targets)) == max(len(reached) - 1, 0)


def test_vertices_with_many_neighbours_have_a_slot_for_each_part() -> None:
    layout = RowLayout.plan(512, 32, 1500)
    each = SLICE_WORDS // (2 * layout.words)
    assert layout.parts == 2
    for count, hubs in ((each, 0), (each + 1, 2)):
        # Rank 1's only vertex is in the neighbourhood of `count` of rank 0's vertices.
        indptr = np.concatenate([np.arange(count + 1), [count]])
        graph = Partitioned(
            indptr,
            np.full(count, count, np.int32),
            np.ones(count, np.float32),
            np.r_[np.zeros(count), 1].astype(np.int32),
            2,
        )
        tables = make_tables(graph.halos[0], layout, "sum")
        assert (tables.slice, tables.hubs) == (each, hubs)
        assert tables.vertices["hub"].tolist() == [int(hubs > 0)]


@given(
    hnp.arrays(np.float32, st.integers(1, 60), elements=FINITE),
    st.sampled_from([16, 32]),
)
def test_weights_never_let_an_accumulator_overflow(weights, bits) -> None:
    halo = star(len(weights), weights).halos[0]
    scale = weight_scale(halo, bits)
    integers = [round(float(w) * scale) for w in weights.astype(np.float64)]
    assert max(map(abs, integers)) < 1 << 31
    most = (1 << (bits - 1)) - 1
    assert most * sum(map(abs, integers)) < 1 << (2 * bits - 1)
    # And the scale is no smaller than necessary.
    if scale == 1.0:
        assert not (weights % 1).any()
    elif np.abs(weights).any():
        assert (
            max(map(abs, integers)) >= (1 << 31) - 2
            or sum(map(abs, integers)) >= (1 << bits) - len(weights) - 1
        )


def test_the_largest_number_of_weights_that_fits_an_accumulator() -> None:
    most = (2 << 16) - 1
    halo = star(most).halos[0]
    scale = weight_scale(halo, 16)
    assert scale > 0
    assert round(scale) * most * ((1 << 15) - 1) < 1 << 31
    text = rf"^exchange: a vertex has {most + 1} weighted neighbours: must be at most {most}$"
    with pytest.raises(SpecError, match=text):
        weight_scale(star(most + 1).halos[0], 16)


def test_a_vertex_with_too_many_neighbours_for_an_accumulator_is_refused() -> None:
    layout = RowLayout.plan(1, 16, 1500)
    most = 65538
    assert most * ((1 << 15) - 1) < 1 << 31 <= (most + 1) * ((1 << 15) - 1)
    assert make_tables(star(most).halos[0], layout, "sum").edges.size == most
    text = (
        f"a vertex has {most + 1} neighbours on other ranks: must be at most {most} with lanes ="
        " int16; use int32"
    )
    with pytest.raises(SpecError, match=f"^exchange: {text}$"):
        make_tables(star(most + 1).halos[0], layout, "sum")
    make_tables(star(most + 1).halos[0], layout, "max")
    make_tables(star(most + 1).halos[0], RowLayout.plan(1, 32, 1500), "sum")


def test_whole_weights_stay_exact_while_they_fit() -> None:
    for bits in (16, 32):
        assert weight_scale(star(3, [1, -64, 1024]).halos[0], bits) == 1.0
    assert weight_scale(star(2, [1, 1 << 17]).halos[0], 16) < 1
    assert weight_scale(star(2, [1, 1 << 17]).halos[0], 32) == 1.0


def test_weights_may_be_zero() -> None:
    assert weight_scale(star(3, [0, 0, 0]).halos[0], 16) == 1.0
    graph = draw_partitioned(0, 20, 100, 2)  # all weights of some vertices are 0
    graph.weights[: len(graph.weights) // 2] = 0
    assert all(weight_scale(halo, 16) > 1 for halo in graph.halos)
    empty = star(0).halos[0]
    assert weight_scale(empty, 16) == 1.0
    assert make_tables(empty, RowLayout.plan(4, 16, 1500), "weighted").edges.size == 0
