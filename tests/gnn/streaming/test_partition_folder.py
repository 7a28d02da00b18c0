"""A partition's folder: other tools read it, and what is torn or foreign is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from testbed.core.errors import SpecError
from testbed.gnn.streaming.edge_files import NpzEdges
from testbed.gnn.streaming.options import PartitionOptions
from testbed.gnn.streaming.partition_folder import PartitionFolder
from testbed.gnn.streaming.partitioning import partition
from tests.support.gnn.streams import write_npz


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    x = np.arange(18, dtype=np.float32).reshape(6, 3)
    edges = NpzEdges(write_npz(tmp_path / "g.npz", [0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0], x=x))
    partition(edges, PartitionOptions(policy="eec", parts=2), tmp_path / "out")
    return tmp_path / "out"


def test_others_read_it(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"]) == ("testbed-partition", 1)
    assert (manifest["policy"], manifest["parts"], manifest["num_edges"]) == ("eec", 2, 6)
    assert manifest["features"] == {"dim": 3, "dtype": "float32"}
    edges = pd.read_parquet(folder / "part-1" / "edges.parquet")
    assert edges.to_dict("list") == {"src": [3, 4, 5], "dst": [4, 5, 0]}
    vertices = pd.read_parquet(folder / "part-1" / "vertices.parquet")
    assert vertices.to_dict("list") == {"vertex": [3, 4, 5, 0], "master": [1, 1, 1, 0]}
    assert np.load(folder / "part-1" / "features.npy").tolist() == [
        [9, 10, 11],
        [12, 13, 14],
        [15, 16, 17],
    ]


def test_a_part_has_its_own_numbers(folder: Path) -> None:
    part = PartitionFolder(folder).part(1)
    assert part.src.tolist() == [0, 1, 2]
    assert part.dst.tolist() == [1, 2, 3]
    assert part.num_masters == 3


def edit(key: str, value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    return change


def replace(name: str, other: str) -> Callable[[Path], None]:
    """A file by another, of which the manifest knows the size."""

    def change(folder: Path) -> None:
        (folder / name).write_bytes((folder / other).read_bytes())
        path = folder / "manifest.json"
        manifest = json.loads(path.read_text())
        part, file = name.split("/")
        size = (folder / name).stat().st_size
        manifest["part_files"][int(part[-1])]["files"][file] = size
        path.write_text(json.dumps(manifest))

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda f: (f / "manifest.json").unlink(), "manifest.json: cannot be read: No such file"),
        (lambda f: (f / "manifest.json").write_text("{"), "manifest.json: cannot be read: "),
        (edit("format", "dgl"), "manifest.json is not that of a partition"),
        (edit("version", 2), "has version 2 of the format: must be 1"),
        (edit("parts", 3), "manifest.json has 2 of 3 parts"),
        (edit("part_files", 3), "manifest.json is broken: "),
        (edit("num_vertices", -1), "manifest.json is broken: "),
        (edit("num_vertices", float("inf")), "manifest.json is broken: "),
        (edit("num_vertices", 3), "part-0/vertices.parquet: has vertex 3: must be less than 3"),
        (edit("num_vertices", 1 << 50), "num_vertices = 1125899906842624: needs about "),
        (lambda f: (f / "part-0/edges.parquet").unlink(), "part-0/edges.parquet: is missing"),
        (
            lambda f: (f / "part-0/edges.parquet").write_bytes(b"PAR1"),
            "part-0/edges.parquet: has 4 bytes: is torn or foreign: the manifest says ",
        ),
        (
            replace("part-0/edges.parquet", "part-0/features.npy"),
            "edges.parquet: is torn or foreign",
        ),
        (
            replace("part-0/edges.parquet", "part-0/vertices.parquet"),
            "has columns ['vertex', 'master']: must be ['src', 'dst'], unsigned",
        ),
        (
            replace("part-0/vertices.parquet", "part-1/vertices.parquet"),
            "vertices.parquet: masters must come before mirrors",
        ),
        (
            replace("part-0/features.npy", "part-0/edges.parquet"),
            "part-0/features.npy: is torn or foreign",
        ),
    ],
)
def test_what_is_torn_or_foreign_is_refused_by_name(
    change: Callable[[Path], None], text: str, folder: Path
) -> None:
    change(folder)
    with pytest.raises(SpecError) as caught:
        PartitionFolder(folder).part(0)
    assert text in str(caught.value)


def test_a_folder_with_something_in_it_is_left_alone(folder: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SpecError, match=r"--out: .*out: is not empty: must be a new folder"):
        partition(NpzEdges(tmp_path / "g.npz"), PartitionOptions(parts=2), folder)
    with pytest.raises(SpecError, match=r"--out: .*: must be a folder in an existing one"):
        partition(NpzEdges(tmp_path / "g.npz"), PartitionOptions(parts=2), tmp_path / "a" / "b")
    assert sorted(tmp_path.rglob("*")) == before
