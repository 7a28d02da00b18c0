"""Planetoid graphs: small ones in the same format as the published ones, and Cora, from a folder
next to the checkout or the one named by TESTBED_PLANETOID.
"""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from testbed.core.errors import SpecError
from testbed.gnn.planetoid import PlanetoidSpec, planetoid_graph
from tests.support.command import call_testbed
from tests.support.gnn import python2
from tests.support.gnn.planetoid_files import FEATURES, GRAPH, LABELS, TESTED, write

FOLDER = Path(
    os.environ.get("TESTBED_PLANETOID", Path(__file__).parents[3] / "shared" / "data" / "planetoid")
)


def test_a_small_graph(tmp_path: Path) -> None:
    graph = planetoid_graph(write(tmp_path))
    assert (graph.num_vertices, graph.num_classes, graph.feature_dim) == (8, 2, 3)
    neighbours = [
        graph.indices[a:b].tolist() for a, b in zip(graph.indptr, graph.indptr[1:], strict=False)
    ]
    assert neighbours == [[1, 7], [0], [3], [2, 5], [], [3], [], [0]]
    x = np.zeros((8, 3), np.float32)
    x[:5], x[7], x[5] = FEATURES, TESTED[0], TESTED[1]
    np.testing.assert_array_equal(graph.x, x / np.maximum(x.sum(1, keepdims=True), 1))
    assert graph.y.tolist() == [1, 0, 1, 0, 0, 1, 0, 1]
    assert [graph.train.tolist(), graph.val.tolist(), graph.test.tolist()] == [
        [0, 1],
        [2, 3, 4],
        [5, 7],
    ]


def test_missing_files_are_named(tmp_path: Path) -> None:
    raw = tmp_path / "Cora" / "raw"
    raw.mkdir(parents=True)
    (raw / "ind.cora.x").write_bytes(b"")
    with pytest.raises(
        SpecError, match=r"lacks ind\.cora\.tx, .*ind\.cora\.test\.index: .*nothing is downloaded"
    ):
        planetoid_graph(PlanetoidSpec(name="planetoid", path=str(tmp_path)))


@pytest.mark.parametrize(
    ("part", "value", "text"),
    [
        ("x", b"", "is no pickle, or a broken one: pickle exhausted before seeing STOP"),
        ("allx", python2.dumps(csr_matrix(FEATURES))[:-40], "is no pickle, or a broken one: "),
        (
            "tx",
            TESTED,
            "holds no CSR matrix: must be one with a row per vertex and a column per feature",
        ),
        (
            "tx",
            csr_matrix(TESTED[:, :2]),
            "has 2 features: must be as many as ind.citeseer.allx has, 3",
        ),
        (
            "tx",
            csr_matrix(TESTED * np.nan),
            "has features that are negative or not finite: must be at least 0",
        ),
        (
            "tx",
            csr_matrix(-TESTED),
            "has features that are negative or not finite: must be at least 0",
        ),
        ("y", LABELS[:3], "has 3 rows: must be as many as ind.citeseer.x has, 2"),
        (
            "y",
            LABELS[:2].astype(float),
            "holds no matrix of whole numbers: must be one with a row per vertex",
        ),
        ("ty", LABELS[0], "holds no matrix of whole numbers: "),
        (
            "ty",
            np.eye(3, dtype=np.int32)[:2],
            "has 3 labels: must be as many as ind.citeseer.ally has, 2",
        ),
        ("graph", [1, 2], "holds no dictionary of lists: must be one of each vertex's neighbours"),
        ("graph", {0: 1}, "holds no dictionary of lists: "),
        (
            "graph",
            {**GRAPH, 7: [0, 9]},
            "has a vertex 9: must be all numbers from 0 up to the last",
        ),
        ("graph", {**GRAPH, 7: [-1]}, "has a vertex -1: "),
        ("graph", {**GRAPH, 7: [0.5]}, "has a vertex 0.5: "),
        ("graph", {**GRAPH, 7: [()]}, "has a vertex tuple: "),
        ("graph", {**GRAPH, "a\nb": []}, r"has a vertex 'a\nb': "),
        ("graph", {0: GRAPH[0], 1: GRAPH[0]}, "names one list several times: "),
        ("graph", {0: [1, 2, 3]}, "has 4 vertices: must be at least those of ind.citeseer.ally, 5"),
        ("test.index", b"7\n", "has 1 rows: must be as many as ind.citeseer.tx has, 2"),
        (
            "test.index",
            b"7\n7\n",
            "must name each vertex once, of 5 to 7, as ind.citeseer.graph has 8",
        ),
        (
            "test.index",
            b"7\n4\n",
            "must name each vertex once, of 5 to 7, as ind.citeseer.graph has 8",
        ),
        (
            "test.index",
            b"7\n8\n",
            "must name each vertex once, of 5 to 7, as ind.citeseer.graph has 8",
        ),
        ("test.index", b"7\n\xff\n", "must be numbers of vertices, one per line"),
        ("test.index", b"7\n" + b"9" * 5000, "must be numbers of vertices, one per line"),
        ("test.index", b"7\n" * (1 << 21) + b"7", "must have at most 4096 KiB"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, part: str, value: Any, text: str) -> None:
    with pytest.raises(SpecError) as refused:
        planetoid_graph(write(tmp_path, **{part: value}))
    said = str(refused.value)
    assert said.startswith(f"{tmp_path}/CiteSeer/raw/ind.citeseer.{part}: ")
    assert text in said
    assert "\n" not in said


def test_files_that_need_one_another_are_checked_before_they_are_used(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"\.y: has 6 rows: must be at most as many as ind\.citeseer\.ally has, 5"
    ):
        planetoid_graph(
            write(tmp_path, x=csr_matrix((6, 3), dtype=np.float32), y=np.tile(LABELS[:2], (3, 1)))
        )


@pytest.mark.parametrize(("features", "labels"), [(1 << 40, 2), (3, 1 << 40)])
def test_memory_for_dense_features_is_estimated_first(
    tmp_path: Path, features: int, labels: int
) -> None:
    """Files without a row specify the width of the rows of eight vertices."""
    parts: dict[str, Any] = dict.fromkeys(
        ("x", "tx", "allx"), csr_matrix((0, features), dtype=np.float32)
    )
    parts |= dict.fromkeys(("y", "ty", "ally"), np.zeros((0, labels), np.int32))
    with pytest.raises(SpecError, match=f"8 vertices, {features} features, {labels} labels"):
        planetoid_graph(write(tmp_path, **parts, **{"test.index": b""}))


class Intruder:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("part", ["x", "tx", "allx", "y", "ty", "ally", "graph"])
def test_code_in_files_is_not_executed(tmp_path: Path, part: str) -> None:
    spec = write(tmp_path, **{part: pickle.dumps(Intruder(f"touch {tmp_path}/ran"), 2)})
    with pytest.raises(
        SpecError,
        match=rf"ind\.citeseer\.{part}: names 'posix\.system': must be arrays, CSR matrices, ",
    ):
        planetoid_graph(spec)
    assert not (tmp_path / "ran").exists()


@pytest.mark.timeout(30)
def test_files_that_are_none(tmp_path: Path) -> None:
    spec = write(tmp_path)
    path = tmp_path / "CiteSeer" / "raw" / "ind.citeseer.graph"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SpecError, match=r"ind\.citeseer\.graph: is a FIFO: must be a regular file"):
        planetoid_graph(spec)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(
        SpecError, match=r"ind\.citeseer\.graph: is a character device: must be a regular file"
    ):
        planetoid_graph(spec)


def test_the_command_says_it_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, allx=b"cos\nsystem\n.")
    scenario = tmp_path / "s.toml"
    scenario.write_text(
        f'[scenario]\nname = "s"\n[dataset]\nname = "planetoid"\npath = "{tmp_path}"\ngraph ='
        ' "CiteSeer"\n'
    )
    # who reads a graph needs no rights
    monkeypatch.setattr("testbed.host.rights.require_root", lambda: None)
    done = call_testbed("run", str(scenario), "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert (
        done.stderr.splitlines()[-1]
        == f"error: {tmp_path}/CiteSeer/raw/ind.citeseer.allx: names 'os.system': must be arrays,"
        " CSR matrices, dictionaries and lists"
    )
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(
    not (FOLDER / "Cora" / "raw").is_dir(),
    reason=f"no Cora in {FOLDER}: set TESTBED_PLANETOID to a folder in torch-geometric's layout",
)
def test_cora_has_its_published_shape() -> None:
    graph = planetoid_graph(PlanetoidSpec(name="planetoid", path=str(FOLDER)))
    assert (graph.num_vertices, graph.num_classes, graph.feature_dim) == (2708, 7, 1433)
    assert graph.num_edges == 10556
    assert [len(part) for part in (graph.train, graph.val, graph.test)] == [140, 500, 1000]
    assert np.bincount(graph.y[graph.train]).tolist() == [20] * 7
    np.testing.assert_allclose(graph.x.sum(1), 1, rtol=1e-5)
