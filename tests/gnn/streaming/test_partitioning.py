"""The streaming partitioner: every edge has one owner, C decides as the reference does, and neither
batches, files nor threads change anything.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.errors import SpecError
from testbed.gnn.graph import GraphData
from testbed.gnn.partition import measure
from testbed.gnn.streaming import memory_plan
from testbed.gnn.streaming.edge_files import CsvEdges, NpzEdges
from testbed.gnn.streaming.edges import Adjacency, Edges, Rmat
from testbed.gnn.streaming.options import PartitionOptions
from testbed.gnn.streaming.partition_folder import PartitionFolder
from testbed.gnn.streaming.partition_measures import Partitioned
from testbed.gnn.streaming.partitioning import partition
from testbed.gnn.streaming.policies import HUB
from testbed.gnn.streaming.registry import POLICIES
from tests.support.gnn.graphs import directed
from tests.support.gnn.streams import edges_of, global_edges, write_npz
from tests.support.tiers import broad

NAMES = sorted(set(POLICIES.own))
HERE = "tests.support.gnn.streams"
SKEWED = Rmat(13, seed=3)
"""8,192 vertices, of which some are hubs."""


def run(edges: Edges, out: Path, **options: Any) -> Partitioned:
    return partition(edges, PartitionOptions(**options), out)


def content(folder: Path) -> dict[str, bytes]:
    """The files of a partition but its manifest, which has times."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("part-*/*")}


@given(directed(least=6), st.sampled_from(NAMES), st.integers(1, 4))
@settings(max_examples=60)
def test_every_edge_and_every_vertex_has_one_place(graph: Any, name: str, parts: int) -> None:
    if name == "metis":
        parts = min(parts, 2)  # it may leave a part without vertices
    indptr, indices = graph
    n = len(indptr) - 1
    src = np.repeat(np.arange(n), np.diff(indptr))
    with tempfile.TemporaryDirectory() as place:
        npz = write_npz(Path(place) / "graph.npz", src, indices, y=np.arange(n))
        found = run(NpzEdges(npz), Path(place) / "out", policy=name, parts=parts)
        given_ = np.stack([src, indices], axis=1)
        ordered = given_[np.lexsort((given_[:, 1], given_[:, 0]))]
        assert np.array_equal(edges_of(Path(place) / "out"), ordered)
        folder = PartitionFolder(Path(place) / "out")
        parts_ = [folder.part(number) for number in range(parts)]
        own = np.concatenate([part.vertices[: part.num_masters] for part in parts_])
        assert sorted(own.tolist()) == list(range(n))
        for part in parts_:
            assert part.labels is not None
            assert part.labels.tolist() == part.vertices[: part.num_masters].tolist()
            mirrors = part.vertices[part.num_masters :]
            assert set(mirrors.tolist()) <= set(global_edges(part).ravel().tolist())
        assert found.replication_factor == pytest.approx(sum(len(p.vertices) for p in parts_) / n)
        assert found.edges == [len(part.src) for part in parts_]


@pytest.mark.parametrize(
    "name", sorted({*NAMES} - {"metis", "oec", "hovc", "fennel", "ginger", "sugar"})
)
def test_c_decides_as_the_reference_does(name: str, tmp_path: Path) -> None:
    """A policy that is named by its path is run in numpy, by its own methods."""
    run(SKEWED, tmp_path / "c", policy=name, parts=6, threads=1)
    path = f"testbed.gnn.streaming.policies:{name.capitalize()}"
    run(SKEWED, tmp_path / "numpy", policy=path, parts=6, threads=1)
    assert content(tmp_path / "c") == content(tmp_path / "numpy")


def test_the_graph_has_hubs_and_they_matter(tmp_path: Path) -> None:
    src = np.concatenate([batch()[0] for batch in SKEWED.batches(1 << 20)])
    assert np.bincount(src).max() > HUB
    for edge_cut, hybrid in (("eec", "hvc"), ("fec", "gvc"), ("iec", "hivc")):
        for name in (edge_cut, hybrid):
            run(SKEWED, tmp_path / name, policy=name, parts=6)
        assert content(tmp_path / edge_cut) != content(tmp_path / hybrid)


@pytest.mark.parametrize("name", broad(["svc", "hdrf", "eec", "hivc", "cvc", "fec", "dbh"], 3))
def test_batches_and_files_change_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(SKEWED, tmp_path / "whole", policy=name, threads=1)
    monkeypatch.setattr(memory_plan, "LARGEST", 3000)
    monkeypatch.setattr(
        memory_plan, "GROUPED", 1 << 12
    )  # bytes an edge: so that there are many files
    run(SKEWED, tmp_path / "pieces", policy=name, threads=1, memory=32)
    assert np.array_equal(edges_of(tmp_path / "whole"), edges_of(tmp_path / "pieces"))
    for number in range(4):
        whole, pieces = (
            PartitionFolder(tmp_path / each).part(number) for each in ("whole", "pieces")
        )
        assert np.array_equal(whole.vertices, pieces.vertices)
        assert np.array_equal(
            np.unique(global_edges(whole), axis=0), np.unique(global_edges(pieces), axis=0)
        )


@pytest.mark.parametrize("name", ["eec", "hvc", "cvc", "dbh", "hdrf"])
def test_threads_change_nothing_without_fennel(name: str, tmp_path: Path) -> None:
    for threads in (1, 5):
        run(SKEWED, tmp_path / str(threads), policy=name, threads=threads)
    assert content(tmp_path / "1") == content(tmp_path / "5")


def test_fennel_in_threads_is_repeatable_and_as_good(tmp_path: Path) -> None:
    alone = run(SKEWED, tmp_path / "alone", policy="fec", threads=1)
    found = [run(SKEWED, tmp_path / str(i), policy="fec", threads=4, rounds=1000) for i in (0, 1)]
    assert content(tmp_path / "0") == content(tmp_path / "1")
    assert found[0].cut_share < alone.cut_share + 0.02


def test_measures_agree_with_those_of_partitioners(graph: GraphData, tmp_path: Path) -> None:
    """On a symmetric graph an edge cut is what `measure` knows."""
    found = run(Adjacency("graph", graph), tmp_path / "out", policy="fec", parts=3)
    owners = np.zeros(graph.num_vertices, np.int32)
    folder = PartitionFolder(tmp_path / "out")
    for number in range(3):
        part = folder.part(number)
        own = part.vertices[: part.num_masters]
        owners[own] = number
        assert part.features is not None
        assert np.array_equal(part.features, graph.x[own])
    quality = measure(np.asarray(graph.indptr), np.asarray(graph.indices), owners, 3)
    assert found.cut_edges == 2 * quality.edge_cut
    assert found.replication_factor == pytest.approx(quality.replication_factor)
    assert found.vertex_balance == pytest.approx(quality.vertex_balance)
    assert found.edge_balance == pytest.approx(quality.edge_balance)


def test_ranges_have_the_same_number_of_edges(tmp_path: Path) -> None:
    assert run(SKEWED, tmp_path / "exact", policy="hvc", parts=8).vertex_balance < 1.5
    assert run(SKEWED, tmp_path / "sample", policy="eec", parts=8).edge_balance < 1.1
    assert run(SKEWED, tmp_path / "targets", policy="iec", parts=8).edge_balance < 1.1


@pytest.mark.parametrize(
    ("name", "passes"),
    [("eec", 1), ("iec", 1), ("cvc", 1), ("hvc", 2), ("hivc", 2), ("fec", 3), ("svc", 3)],
)
def test_as_few_passes_as_a_policy_needs(name: str, passes: int, tmp_path: Path) -> None:
    assert run(SKEWED, tmp_path / "out", policy=name).passes == passes


@pytest.mark.parametrize(("name", "passes"), [("eec", 1), ("hvc", 1), ("fec", 2)])
def test_an_adjacency_has_degrees_and_groups(
    name: str, passes: int, graph: GraphData, tmp_path: Path
) -> None:
    found = run(Adjacency("graph", graph), tmp_path / "out", policy=name, parts=2)
    assert found.passes == passes


def test_a_policy_of_ones_own(tmp_path: Path) -> None:
    npz = write_npz(tmp_path / "graph.npz", [0, 2, 1, 0, 5], [2, 4, 3, 3, 0])
    run(NpzEdges(npz), tmp_path / "out", policy=f"{HERE}:Parity", parts=3)
    folder = PartitionFolder(tmp_path / "out")
    parts = [folder.part(number) for number in range(3)]
    assert [global_edges(part).tolist() for part in parts] == [
        [[0, 2], [2, 4]],
        [[1, 3]],
        [[0, 3], [5, 0]],
    ]
    assert [part.vertices.tolist() for part in parts] == [[0, 2, 4], [1, 3, 5], [0, 3, 5]]
    assert parts[2].masters.tolist() == [0, 1, 1]
    assert parts[2].num_masters == 0


def test_a_policy_of_ones_own_sees_neighbours(tmp_path: Path) -> None:
    """Also those that enter a vertex."""
    npz = write_npz(tmp_path / "graph.npz", [5, 2, 1, 0, 5], [1, 4, 3, 3, 0])
    found = run(NpzEdges(npz), tmp_path / "out", policy=f"{HERE}:Greedy", parts=3)
    folder = PartitionFolder(tmp_path / "out")
    masters = np.zeros(6, int)
    for number in range(3):
        part = folder.part(number)
        masters[part.vertices[: part.num_masters]] = number
    assert masters.tolist() == [5 % 3, 5 % 3, 2, 1, 2, 5 % 3]
    assert found.passes == 3


def test_progress_reaches_the_end_of_each_pass(tmp_path: Path) -> None:
    seen: dict[str, float] = {}
    partition(SKEWED, PartitionOptions(policy="gvc"), tmp_path / "out", seen.__setitem__)
    assert seen == dict.fromkeys(("grouping", "masters", "edges", "vertices"), 1.0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"parts": 7}, "--parts: 7: {path} has 6 vertices: must be one per vertex at most"),
        (
            {"policy": f"{HERE}:Deaf", "parts": 2},
            f"policy {HERE}:Deaf: get_master returned parts 2 to 2: must be 6 parts, 0 to 1",
        ),
    ],
)
def test_refusals(options: dict[str, Any], text: str, tmp_path: Path) -> None:
    npz = write_npz(tmp_path / "graph.npz", [0, 5], [1, 2])
    with pytest.raises(SpecError) as caught:
        run(NpzEdges(npz), tmp_path / "out", **options)
    assert str(caught.value) == text.format(path=npz)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.npz"]  # nothing is left


def test_memory_that_is_too_small_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"--memory: 32: 16777216 vertices take 20 bytes each"):
        run(Rmat(24), tmp_path / "out", policy="eec", memory=32)


@pytest.mark.deep
def test_memory_is_bounded(tmp_path: Path) -> None:
    """A graph of 128 MiB in 64 MiB; in a process of its own, whose memory is its own."""
    code = (
        "import json; from pathlib import Path; from testbed.gnn.streaming.edges import Rmat;"
        "from testbed.gnn.streaming.options import PartitionOptions;"
        "from testbed.gnn.streaming.partitioning import partition;"
        f"place = Path({str(tmp_path)!r});"
        "partition(Rmat(10), PartitionOptions(), place / 'warm');"
        "[print(json.dumps(partition(Rmat(20), PartitionOptions(policy=p, memory=64), place / p)"
        ".to_dict())) for p in ('fec', 'cvc')]"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["num_edges"] for each in found] == [16 << 20] * 2
    assert [each["memory_bytes"] for each in found] == [64 << 20] * 2
    assert 16 << 20 < max(each["peak_memory_bytes"] for each in found) <= 64 << 20


@pytest.mark.parametrize("name", broad(["cvc", "hdrf", "hash", "svc"], 2))
def test_more_parts_than_bits_of_a_word(name: str, tmp_path: Path) -> None:
    found = run(Rmat(10), tmp_path / "out", policy=name, parts=130)
    assert len(edges_of(tmp_path / "out")) == 16 << 10
    sizes = [len(PartitionFolder(tmp_path / "out").part(h).vertices) for h in range(130)]
    assert found.replication_factor == pytest.approx(sum(sizes) / 1024)


@pytest.mark.parametrize("name", ["eec", "hivc", "cvc", "gvc", "dbh", "hdrf"])
def test_a_file_that_does_not_say_how_many_vertices_there_are(name: str, tmp_path: Path) -> None:
    """The largest is in the last line; all are in the parts, as if their number had been known."""
    src, dst = (
        np.concatenate(ends) for ends in zip(*(b() for b in SKEWED.batches(999)), strict=True)
    )
    src[-1], dst[-1] = 8191, 8190
    np.savetxt(tmp_path / "graph.csv", np.stack([src, dst], 1), "%d", ",")
    write_npz(tmp_path / "graph.npz", src, dst, y=np.arange(8192))
    run(CsvEdges(tmp_path / "graph.csv"), tmp_path / "csv", policy=name, threads=1)
    run(NpzEdges(tmp_path / "graph.npz"), tmp_path / "npz", policy=name, threads=1)
    assert PartitionFolder(tmp_path / "csv").num_vertices == 8192
    assert np.array_equal(edges_of(tmp_path / "csv"), edges_of(tmp_path / "npz"))


def test_a_graph_without_edges(tmp_path: Path) -> None:
    npz = write_npz(tmp_path / "graph.npz", [], [], y=np.arange(8))
    for name in ("eec", "hvc", "fec", "hdrf"):
        found = run(NpzEdges(npz), tmp_path / name, policy=name, parts=4)
        assert found.num_edges == 0
        assert sum(found.masters) == 8
