"""Files of edges from elsewhere, and partitions: read, or refused in little memory."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from testbed.core.errors import SpecError
from testbed.gnn.graph import GraphData
from testbed.gnn.streaming.edge_sources import open_edges
from testbed.gnn.streaming.options import PartitionOptions
from testbed.gnn.streaming.partition_folder import PartitionFolder
from testbed.gnn.streaming.partitioning import partition
from tests.support.damage import little_memory, refusals
from tests.support.tiers import broad

MIB = 1 << 20
SRC, DST = np.arange(40) % 13, np.arange(40) * 5 % 17


def npz(**members: bytes) -> bytes:
    """A compressed NPZ file of these members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


def array(text: str, size: int = 0) -> bytes:
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {text}}}"
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + bytes(size)


def packed(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def parquet(columns: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, **options)
    return file.getvalue()


BOMBS: dict[str, Callable[[], bytes]] = {
    "header.npz": lambda: npz(src=b"\x93NUMPY\2\0\0\0\0\x7f" + bytes(64 * MIB), dst=array("(1,)")),
    "rows.npz": lambda: npz(indptr=array("(8388608,)", 64 * MIB), indices=array("(0,)")),
    "features.npz": lambda: npz(
        src=array("(1,)", 8), dst=array("(1,)", 8), x=array("(8388608,)", 64 * MIB)
    ),
    "claimed.npz": lambda: npz(indptr=array(f"({1 << 60},)"), indices=array("(0,)")),
    "negative.npz": lambda: npz(src=array("(-1,)"), dst=array("(-1,)")),
    "objects.npz": lambda: packed(src=np.array([{}], object), dst=np.array([1])),
    "texts.parquet": lambda: parquet(
        {"src": pa.DictionaryArray.from_arrays(np.zeros(99, np.int8), ["x" * MIB]), "dst": [1] * 99}
    ),
    "twice.parquet": lambda: parquet(pa.table([[1], [2], [3]], ["src", "dst", "src"])),
    "page.parquet": lambda: parquet(
        {"src": np.zeros(4 * MIB, np.int64), "dst": np.zeros(4 * MIB, np.int64)},
        compression="zstd",
        use_dictionary=False,
        data_page_size=1 << 28,
        max_rows_per_page=1 << 28,
    ),
    "line.csv": lambda: b"1," + b"2" * 2 * MIB,
    "comment.csv": lambda: b"#" * 2 * MIB,
    "later.csv": lambda: b"1,2\n3,4\n" + bytes(64 * MIB),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_EXPAND_MIB", "8")
    (place := tmp_path / name).write_bytes(BOMBS[name]())

    def read() -> None:
        edges = open_edges(str(place))
        edges.sample()
        for batch in edges.batches(100):
            batch()

    with little_memory(16 * MIB), pytest.raises(SpecError) as caught:
        read()
    assert "\n" not in str(caught.value)


ARRAYS: dict[str, dict[str, Any]] = {
    "x has shape (3,)": {"src": [0], "dst": [1], "x": np.ones(3)},
    "x has shape ()": {"src": [0], "dst": [1], "x": np.float64(1)},
    "y has shape (2, 1)": {"src": [0], "dst": [1], "y": np.ones((2, 1))},
    "vertex 9: must be 0 to 2": {"src": [0, 9, 1], "dst": [1, 2, 0], "x": np.ones((3, 1))},
    "vertex 1999999999: must be 0 to 1": {"indptr": [0, 2, 3], "indices": [1, 1999999999, 1]},
    "must ascend from 0": {"indptr": [0, 3, 2], "indices": [1, 0]},
    "ends with 9 of 2 edges": {"indptr": [0, 2, 9], "indices": [1, 0]},
    "vertex -1: must be 0 to": {"indptr": [0, 1, 2], "indices": [-1, 0]},
}


@pytest.mark.parametrize("policy", ["cvc", "fec", "hivc", "hash"])
@pytest.mark.parametrize("text", ARRAYS)
def test_arrays_that_contradict_each_other_are_refused(
    text: str, policy: str, tmp_path: Path
) -> None:
    np.savez(place := tmp_path / "a.npz", **ARRAYS[text])
    with pytest.raises(SpecError) as caught:
        partition(open_edges(str(place)), PartitionOptions(policy=policy, parts=2), tmp_path / "o")
    assert text.removeprefix("x ").removeprefix("y ") in str(caught.value)
    assert [each.name for each in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("policy", ["cvc", "fec"])
@pytest.mark.parametrize(
    ("rows", "neighbours", "text"),
    [
        ([0, 1, 2], [1, 1_500_000_000], "vertex 1500000000: must be 0 to 1"),
        ([0, 1, 2], [1, -1], "vertex 4294967295: must be 0 to 1"),
        ([0, 3, 2], [1, 0], "indptr: must ascend from 0 to the number of edges"),
        ([0, 1, 1 << 40], [1, 0], "indptr: must ascend from 0 to the number of edges"),
    ],
)
def test_graphs_of_the_cache_that_contradict_themselves_are_refused(
    rows: list[int], neighbours: list[int], text: str, policy: str, tmp_path: Path
) -> None:
    two, x = np.array([0, 1]), np.ones((2, 2), np.float32)
    graph = GraphData("g", np.array(rows), np.array(neighbours, np.int32), x, two, two, two, two, 2)
    graph.save(tmp_path / "g")
    options = PartitionOptions(policy=policy, parts=2)
    with pytest.raises(SpecError) as caught:
        partition(open_edges(str(tmp_path / "g")), options, tmp_path / "o")
    assert text in str(caught.value)


FILES: dict[str, list[bytes]] = {
    "x.npz": [
        packed(src=SRC, dst=DST, x=np.ones((17, 2), np.float32)),
        packed(indptr=np.array([0, 2, 3]), indices=np.array([1, 0, 1]), y=np.array([0, 1])),
        packed(edge_index=np.stack([SRC, DST])),
    ],
    "x.parquet": [
        parquet({"src": SRC, "dst": DST}),
        parquet({"src": SRC, "w": SRC * 0.5, "dst": DST}, row_group_size=7, compression="gzip"),
    ],
    "x.csv": [
        b"src,dst\n" + b"".join(b"%d,%d\n" % each for each in zip(SRC, DST, strict=True)),
        b"# SNAP\n" + b"".join(b"%d\t%d\n" % each for each in zip(SRC, DST, strict=True)),
    ],
}


@pytest.mark.parametrize(
    ("name", "seed"), broad([(name, seed) for seed in range(10) for name in FILES], quick=3)
)
def test_damaged_files_are_read_or_refused(
    name: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTBED_EXPAND_MIB", "16")

    def read(data: bytes) -> None:
        (tmp_path / name).write_bytes(data)
        edges = open_edges(str(tmp_path / name))
        edges.sample()
        [batch() for batch in edges.batches(16)]

    assert refusals(read, FILES[name], seed, 150, 64 * MIB) > 10


@pytest.mark.parametrize("seed", broad(range(10)))
def test_damaged_partitions_are_read_or_refused(seed: int, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(FILES["x.npz"][0])
    out = tmp_path / "out"
    partition(open_edges(str(tmp_path / "x.npz")), PartitionOptions(parts=2), out)
    manifest = json.loads((out / "manifest.json").read_text())
    names = sorted(manifest["part_files"][0]["files"])
    for name in ("manifest.json", *(f"part-0/{each}" for each in names)):
        whole = (place := out / name).read_bytes()

        def read(data: bytes, place: Path = place) -> None:
            place.write_bytes(data)
            if place.name != "manifest.json":  # which says how large it is
                files = manifest["part_files"][0]["files"]
                changed = {**files, place.name: len(data)}
                manifest["part_files"][0]["files"] = changed
                (out / "manifest.json").write_text(json.dumps(manifest))
            PartitionFolder(out).part(0)

        refusals(read, [whole], seed, 40, 64 * MIB)
        read(whole)
