"""Adjacencies, splits, the folder form, R-MAT and hashed features."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.errors import StorageError
from testbed.gnn.features import hash_features, words
from testbed.gnn.graph import ARRAYS, GraphData, cached, from_edges, random_split
from testbed.gnn.synthetic import SyntheticSpec, rmat_edges, synthetic_graph


@given(st.integers(1, 20), st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=60))
def test_adjacency_is_symmetric_simple_and_complete(n: int, pairs: list[tuple[int, int]]) -> None:
    pairs = [(a % n, b % n) for a, b in pairs]
    source, target = np.array([*zip(*pairs, strict=True)] or [[], []], np.int64)
    indptr, indices = from_edges(source, target, n)
    rows = np.repeat(np.arange(n), np.diff(indptr))
    expected = {(a, b) for x, y in pairs for a, b in ((x, y), (y, x)) if a != b}
    assert sorted(expected) == list(zip(rows.tolist(), indices.tolist(), strict=True))


@given(st.integers(10, 300), st.floats(0.1, 0.8), st.floats(0.05, 0.15), st.integers(0, 5))
def test_split_is_a_partition(n: int, train: float, val: float, seed: int) -> None:
    parts = random_split(n, train, val, seed)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))
    assert len(parts[0]) == round(n * train)
    assert all(
        np.array_equal(a, b) for a, b in zip(parts, random_split(n, train, val, seed), strict=True)
    )


def test_saved_graph_loads_equal(graph: GraphData, tmp_path: Path) -> None:
    graph.save(tmp_path / "g")
    graph.save(tmp_path / "g")  # as another process might do a moment later
    loaded = GraphData.load(tmp_path / "g")
    for name in ARRAYS:
        assert np.array_equal(getattr(graph, name), getattr(loaded, name))
        assert getattr(graph, name).dtype == getattr(loaded, name).dtype
    assert (loaded.name, loaded.num_classes, loaded.facts) == (graph.name, 4, graph.facts)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("cache")] == ["g"]


def test_cache_that_cannot_be_written(graph: GraphData, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot be written.*XDG_CACHE_HOME"):
        cached("g", lambda: graph, tmp_path / "file")


CLOSED = """
import os, sys
from pathlib import Path
from testbed.core.errors import StorageError
from testbed.gnn.graph import cached
if os.geteuid() == 0:  # after the imports: the checkout may be closed to others, too
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    cached("g", lambda: None, Path(sys.argv[1]))
except StorageError as error:
    print(error)
"""


def test_cache_of_another_user(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    command = [sys.executable, "-c", CLOSED, str(closed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith(
        f"graph cache {closed}/g-v1: cannot be read: Permission denied; set XDG_CACHE_HOME to"
    )


def test_an_incomplete_cache_is_an_error(graph: GraphData, tmp_path: Path) -> None:
    graph.save(tmp_path / "g")
    (tmp_path / "g" / "x.npy").write_bytes(b"")
    with pytest.raises(
        StorageError, match=r"g: cannot be read: .*; remove the folder to make it again"
    ):
        GraphData.load(tmp_path / "g")


@settings(max_examples=20)
@given(st.integers(4, 10), st.integers(1, 8), st.integers(0, 100))
def test_rmat_is_seeded_in_range_and_skewed(scale: int, factor: int, seed: int) -> None:
    edges = factor << scale
    source, target = rmat_edges(scale, edges, np.random.default_rng(seed))
    again = rmat_edges(scale, edges, np.random.default_rng(seed))
    assert np.array_equal(source, again[0])
    assert np.array_equal(target, again[1])
    for ends in (source, target):
        assert ends.shape == (edges,)
        assert 0 <= ends.min() <= ends.max() < 1 << scale


def test_rmat_quadrants_have_their_shares() -> None:
    source, target = rmat_edges(10, 100_000, np.random.default_rng(0))
    quadrant = (source >> 9) * 2 + (target >> 9)
    np.testing.assert_allclose(np.bincount(quadrant) / 100_000, [0.57, 0.19, 0.19, 0.05], atol=0.01)


def test_synthetic_labels_follow_edges_and_features() -> None:
    spec = SyntheticSpec(name="synthetic", scale=10, classes=4, feature_dim=32, noise=0.1)
    graph = synthetic_graph(spec)
    rows = np.repeat(np.arange(graph.num_vertices), np.diff(graph.indptr))
    agree = (graph.y[rows] == graph.y[graph.indices]).mean()
    shuffled = np.random.default_rng(0).permutation(graph.y)
    assert agree > (shuffled[rows] == shuffled[graph.indices]).mean() + 0.05
    centres = np.stack([graph.x[graph.y == label].mean(0) for label in range(4)])
    nearest = np.linalg.norm(graph.x[:, None] - centres, axis=2).argmin(1)
    assert np.array_equal(nearest, graph.y)


def test_hashed_features_are_signed_counts() -> None:
    x = hash_features(["red red blue", "blue", "", "7"], 64, 4)
    assert x.dtype == np.float32
    assert np.count_nonzero(x[1]) == 1
    assert not x[2:].any()
    column = np.flatnonzero(x[1])[0]
    other = next(index for index in np.flatnonzero(x[0]) if index != column)
    assert abs(x[0, other]) == pytest.approx(2 * abs(x[0, column]))
    assert words("C++ is GTK+3, a 7z") == ["c++", "is", "gtk+3"]
