"""Partitioners, the quality of their partitions, and owners cached with their graph."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from testbed.core.errors import SpecError, StorageError
from testbed.exchange.halo import make_halos
from testbed.gnn.graph import GraphData, from_edges
from testbed.gnn.partition import PARTITIONERS, Owners, cached_owners, make_owners, measure
from testbed.gnn.partition.hash import Hash
from testbed.gnn.partition.metis import Metis
from testbed.gnn.streaming.edges import Adjacency as Stream
from testbed.gnn.streaming.options import PartitionOptions
from testbed.gnn.streaming.partition_folder import PartitionFolder
from testbed.gnn.streaming.partitioning import partition
from tests.support.gnn.graphs import Adjacency, adjacencies

RING = from_edges(np.arange(12), (np.arange(12) + 1) % 12, 12)
"""A ring of 12 vertices: two neighbours each."""


@given(
    adjacencies(least=6),
    st.sampled_from(sorted(PARTITIONERS)),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_every_vertex_has_an_owner_and_it_is_always_the_same(
    graph: Adjacency, name: str, parts: int, seed: int
) -> None:
    try:
        owners = make_owners(name, *graph, parts, seed)
    except SpecError:
        reject()  # in a small graph, a part may by chance get no vertex
    assert owners.dtype == np.int32
    assert set(owners.tolist()) == set(range(parts))
    assert np.array_equal(owners, make_owners(name, *graph, parts, seed))


@given(adjacencies(least=8), st.sampled_from(["hash", "range"]), st.integers(1, 8))
def test_streams_decide_alike_however_many_come_at_a_time(
    graph: Adjacency, name: str, batch: int
) -> None:
    n = len(graph[0]) - 1
    partitioner = PARTITIONERS[name](n, 3, 1)
    whole = partitioner.assign(np.arange(n), *graph)
    parts = [partitioner.assign(np.arange(n)[i : i + batch], *graph) for i in range(0, n, batch)]
    assert np.array_equal(whole, np.concatenate(parts))


def test_range_is_contiguous_and_balanced() -> None:
    assert make_owners("range", *RING, 5).tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4]


def test_hash_is_fixed() -> None:
    """Owners must not change between versions, because runs would no longer be comparable."""
    assert Hash(12, 4, 1).assign(np.arange(12), *RING).tolist() == [
        0,
        3,
        2,
        1,
        0,
        0,
        1,
        0,
        1,
        2,
        2,
        1,
    ]


def test_metis_cuts_a_ring_in_two_places() -> None:
    owners = make_owners("metis", *RING, 2)
    assert measure(*RING, owners, 2).edge_cut == 2
    assert np.bincount(owners).tolist() == [6, 6]


def test_metis_balances_edges_and_training_vertices_too() -> None:
    """A graph whose edges and training vertices are all in one corner of it."""
    rng, n = np.random.default_rng(1), 2000
    near = rng.integers(0, n // 4, (2, 8000))
    ring = np.stack([np.arange(n), (np.arange(n) + 1) % n])
    src, dst = np.concatenate([near, ring], axis=1)
    graph = from_edges(src, dst, n)
    training = np.arange(n // 8)

    def largest(name: str) -> list[float]:
        owners = make_owners(name, *graph, 4, 1, training=training)
        weights = np.ones(n), np.diff(graph[0]), np.bincount(training, minlength=n)
        parts = [np.bincount(owners, weight, minlength=4) for weight in weights]
        return [float(part.max() / part.mean()) for part in parts]

    assert max(largest("metis-balanced")) < 1.1
    assert max(largest("metis")) > 1.5


@given(adjacencies(least=4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_measures_agree_with_halos(graph: Adjacency, parts: int, random: object) -> None:
    n = len(graph[0]) - 1
    owners: Owners = np.array([random.randrange(parts) for _ in range(n)], np.int32)  # type: ignore[attr-defined]
    quality = measure(*graph, owners, parts)
    halos = make_halos(*graph, owners, parts)
    assert quality.edge_cut * 2 == sum(len(halo.indices) for halo in halos)
    assert quality.edge_cut_share == pytest.approx(
        quality.edge_cut * 2 / len(graph[1]) if len(graph[1]) else 0
    )
    assert quality.replication_factor == pytest.approx(
        sum(halo.num_owned + halo.num_halo for halo in halos) / n
    )
    assert quality.vertex_balance == pytest.approx(
        max(halo.num_owned for halo in halos) * parts / n
    )
    assert quality.edge_balance >= 1


def test_measures_of_a_ring_in_halves() -> None:
    quality = measure(*RING, np.repeat(np.array([0, 1], np.int32), 6), 2)
    assert vars(quality) == {
        "edge_cut": 2,
        "edge_cut_share": pytest.approx(2 / 12),
        "replication_factor": pytest.approx((12 + 4) / 12),
        "vertex_balance": 1.0,
        "edge_balance": 1.0,
    }


@pytest.mark.parametrize(
    ("name", "parts", "text"),
    [
        (
            "metros",
            2,
            "partitioner 'metros' does not exist: must be one of hash, range, metis,"
            " metis-balanced, fennel, or module:Class",
        ),
        ("range", 13, "partitioner range: 13 parts of 12 vertices: must be 1 to one per vertex"),
        ("hash", 0, "partitioner hash: 0 parts of 12 vertices: must be 1 to one per vertex"),
        (
            "hash",
            12,
            "partitioner hash: part 3 of 12 has no vertex of 12: use fewer parts, or range",
        ),
    ],
)
def test_errors_say_what_is_allowed(name: str, parts: int, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_owners(name, *RING, parts, 1)
    assert str(caught.value) == text


def test_fennel_cuts_a_ring_as_little_as_the_parts_allow() -> None:
    owners = make_owners("fennel", *RING, 2)
    quality = measure(*RING, owners, 2)
    assert quality.edge_cut < measure(*RING, make_owners("hash", *RING, 2, 1), 2).edge_cut
    assert quality.vertex_balance < 1.4


def test_fennel_has_the_masters_of_the_streaming_policies(graph: GraphData, tmp_path: Path) -> None:
    partition(
        Stream("graph", graph), PartitionOptions(policy="fec", parts=3, threads=1), tmp_path / "out"
    )
    owners = make_owners("fennel", graph.indptr, graph.indices, 3)
    folder = PartitionFolder(tmp_path / "out")
    for number in range(3):
        part = folder.part(number)
        assert (
            np.flatnonzero(owners == number).tolist() == part.vertices[: part.num_masters].tolist()
        )


def test_metis_needs_all_vertices_at_once() -> None:
    with pytest.raises(
        SpecError, match="metis: 3 vertices of 12 came: must come all at once, ascending"
    ):
        Metis(12, 2).assign(np.arange(3), RING[0][:4], RING[1])


def test_owners_are_cached_with_the_graph(graph: GraphData, tmp_path: Path) -> None:
    folder = tmp_path / "g"
    graph.save(folder)
    before = {path.name for path in folder.iterdir()}
    owners = cached_owners(folder, "metis", 3, 5)
    (kept,) = {path.name for path in folder.iterdir()} - before
    assert kept == "owners-metis-3-seed5-v1.npy"
    assert np.array_equal(owners, make_owners("metis", graph.indptr, graph.indices, 3, 5))
    np.save(folder / kept, owners[::-1])
    assert np.array_equal(
        cached_owners(folder, "metis", 3, 5), owners[::-1]
    )  # read from the cache, not computed again
    (folder / kept).write_bytes(b"half")
    with pytest.raises(
        StorageError,
        match=r"owners-metis-3-seed5-v1\.npy: cannot be read.*remove the file to make it again",
    ):
        cached_owners(folder, "metis", 3, 5)
