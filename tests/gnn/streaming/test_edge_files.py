"""Files of edges: what is read is what was written, in each format; samples are from everywhere;
torn and foreign files are refused by name.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from testbed.core.errors import SpecError
from testbed.gnn.streaming.edge_sources import open_edges
from testbed.gnn.streaming.edges import SAMPLE, Edges, Rmat

RNG = np.random.default_rng(7)
SRC, DST = np.sort(RNG.integers(0, 900, 5000)), RNG.integers(0, 900, 5000)
SRC[-1] = 899
INDPTR = np.concatenate([[0], np.cumsum(np.bincount(SRC, minlength=900))])


def parquet(path: Path, names: tuple[str, ...] = ("src", "dst"), **more: Any) -> Path:
    table = pa.table(dict(zip(names, (SRC, DST), strict=True)) | more)
    pq.write_table(table, path, row_group_size=700)
    return path


def csv(path: Path) -> Path:
    pacsv.write_csv(pa.table({"source": SRC, "weight": SRC * 0.5, "target": DST}), path)
    return path


def snap(path: Path) -> Path:
    return text(path, "# Directed graph\n# FromNodeId\tToNodeId\n" + lines_of("\t"))


def lines_of(mark: str) -> str:
    return "".join(f"{s}{mark}{d}\n" for s, d in zip(SRC, DST, strict=True))


def text(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def npz(path: Path, **arrays: Any) -> Path:
    np.savez_compressed(path, **(arrays or {"src": SRC, "dst": DST.astype(np.int32)}))
    return path


WRITERS: dict[str, Callable[[Path], Path]] = {
    "a.parquet": parquet,
    "named.parquet": lambda path: parquet(path, ("u", "v"), w=SRC * 0.5),
    "a.csv": csv,
    "dgl.csv": lambda path: text(path, "src_id,dst_id\n" + lines_of(",")),
    "a.txt": snap,
    "a.npz": npz,
    "stored.npz": lambda path: (np.savez(path, src=SRC, dst=DST), path)[1],
    "pyg.npz": lambda path: npz(path, edge_index=np.stack([SRC, DST])),
    "stored pyg.npz": lambda path: (np.savez(path, edge_index=np.stack([SRC, DST])), path)[1],
    "stored csr.npz": lambda path: (np.savez(path, indptr=INDPTR, indices=DST), path)[1],
    "csr.npz": lambda path: npz(path, indptr=INDPTR, indices=DST),
}


def all_of(edges: Edges, size: int) -> tuple[list[int], list[int]]:
    pairs = [batch() for batch in edges.batches(size)]
    src, dst = (np.concatenate([pair[which] for pair in pairs]) for which in (0, 1))
    assert src.dtype == dst.dtype == np.uint32
    return src.tolist(), dst.tolist()


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("size", [64, 1 << 20])
def test_what_is_read_is_what_was_written(name: str, size: int, tmp_path: Path) -> None:
    edges = open_edges(str(WRITERS[name](tmp_path / name)))
    assert all_of(edges, size) == (SRC.tolist(), DST.tolist())
    assert edges.num_edges in (5000, None if name[-3:] in ("csv", "txt") else 5000)
    assert edges.nbytes == (tmp_path / name).stat().st_size


@pytest.mark.parametrize("name", WRITERS)
def test_samples_are_from_everywhere(name: str, tmp_path: Path) -> None:
    """Although sources ascend."""
    src, dst = open_edges(str(WRITERS[name](tmp_path / name))).sample()
    assert len(src) == len(dst) >= 64
    for share in (0.25, 0.5, 0.75):
        assert np.quantile(src, share) == pytest.approx(np.quantile(SRC, share), abs=40)
        assert np.quantile(dst, share) == pytest.approx(np.quantile(DST, share), abs=90)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_features_and_labels_of_an_npz_file(save: Any, tmp_path: Path) -> None:
    x = np.arange(2700.0).reshape(900, 3)
    save(tmp_path / "a.npz", src=SRC, dst=DST, x=x, y=np.arange(900))
    edges = open_edges(str(tmp_path / "a.npz"))
    assert isinstance(edges.features, np.memmap) == (save is np.savez)
    assert edges.features is not None
    assert np.array_equal(edges.features, x)
    assert edges.labels is not None
    assert edges.labels.tolist() == list(range(900))
    assert edges.num_vertices == 900


def test_features_of_a_file_of_their_own(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((900, 2), np.float16))
    path = str(parquet(tmp_path / "a.parquet"))
    edges = open_edges(path, features=tmp_path / "x.npy")
    assert isinstance(edges.features, np.memmap)
    np.save(tmp_path / "x.npy", np.ones(900))
    with pytest.raises(SpecError, match=r"--features: .*x\.npy: must be a matrix of floats"):
        open_edges(path, features=tmp_path / "x.npy")


def test_rmat_is_the_same_however_it_is_read() -> None:
    assert all_of(Rmat(9, 5), 100) == all_of(Rmat(9, 5), 1 << 20)
    assert all_of(Rmat(9, 5), 100) != all_of(Rmat(9, 6), 100)


def test_rmat_has_the_shares_of_its_quadrants() -> None:
    """Seen in how often two edges are alike, since vertices are permuted."""
    a, b, c = Rmat.SHARES
    d = 1 - a - b - c
    found = []
    for seed in range(100):
        src, dst = (np.array(ends) for ends in all_of(Rmat(6, seed), 1 << 20))
        found.append([alike(src), alike(dst), alike(src << 6 | dst)])
    rows, columns = (a + b) ** 2 + (c + d) ** 2, (a + c) ** 2 + (b + d) ** 2
    wanted = [rows**6, columns**6, (a * a + b * b + c * c + d * d) ** 6]
    assert np.mean(found, 0) == pytest.approx(wanted, rel=0.05)


def alike(values: NDArray[np.int64]) -> float:
    """The share of pairs that are equal."""
    counts = np.bincount(values)
    return float((counts * (counts - 1)).sum() / (len(values) * (len(values) - 1)))


def test_samples_of_rmat_are_edges_of_it() -> None:
    graph = Rmat(14)
    assert graph.num_edges is not None
    step = graph.num_edges // SAMPLE
    src, dst = all_of(graph, 1 << 20)
    found = graph.sample()
    assert (found[0].tolist(), found[1].tolist()) == (src[::step], dst[::step])


def torn(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-2000])
    return path


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "torn.parquet": (lambda p: torn(parquet(p)), "is no Parquet file, or is torn: "),
    "foreign.parquet": (csv, "is no Parquet file, or is torn: "),
    "one.parquet": (
        lambda p: (pq.write_table(pa.table({"src": SRC}), p), p)[1],
        "has 1 columns: must have two, src and dst",
    ),
    "floats.parquet": (
        lambda p: (pq.write_table(pa.table({"src": SRC, "dst": DST * 0.5}), p), p)[1],
        "column dst: has double: must be whole numbers",
    ),
    "empty.parquet": (
        lambda p: (pq.write_table(pa.table({"src": [1, None], "dst": [2, 3]}), p), p)[1],
        "column src: has empty cells: must have a vertex in each",
    ),
    "negative.parquet": (
        lambda p: (pq.write_table(pa.table({"src": [1, -4], "dst": [2, 3]}), p), p)[1],
        "column src: vertex -4: must be 0 to 4294967294",
    ),
    "large.npz": (
        lambda p: npz(p, src=np.array([1 << 32]), dst=np.array([1])),
        "src: vertex 4294967296: must be 0 to 4294967294",
    ),
    "words.csv": (lambda p: text(p, "src,dst\n1,2\n3,four\n"), "cannot be read: "),
    "prose.txt": (lambda p: text(p, "Prose\n"), "'Prose' is no edge: must be two numbers or names"),
    "torn.npz": (lambda p: torn(npz(p)), "is no NPZ file, or is torn: "),
    "foreign.npz": (
        lambda p: npz(p, a=SRC),
        "has a: must have src and dst, edge_index, or indptr and indices",
    ),
    "uneven.npz": (lambda p: npz(p, src=SRC, dst=DST[:-1]), "src and dst: shapes"),
    "short.npz": (
        lambda p: npz(p, indptr=INDPTR[:-1], indices=DST),
        "indptr: ends with",
    ),
    "a.graph": (
        lambda p: text(p, ""),
        "must be debian, debian-files, synthetic, rmat:SCALE, or a file",
    ),
    "no.parquet": (lambda p: p, "cannot be read: No such file or directory"),
    "folder.csv": (lambda p: (p.mkdir(), p)[1], "is a directory: must be a regular file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_graph_is_refused_by_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # errors cut long paths
    write, reason = REFUSED[name]
    path = write(Path(name))
    with pytest.raises(SpecError) as caught:
        [batch() for batch in open_edges(str(path)).batches(100)]
    said = str(caught.value)
    assert name in said
    assert reason in said
    assert "\n" not in said


def test_compressed_data_that_are_damaged_are_refused(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz")
    data = bytearray(path.read_bytes())
    data[600:640] = bytes(byte ^ 0xFF for byte in data[600:640])
    path.write_bytes(data)
    with pytest.raises(SpecError, match=r"a\.npz: (src|dst): "):
        all_of(open_edges(str(path)), 100)


@pytest.mark.parametrize("graph", ["rmat:", "rmat:0", "rmat:32", "rmat:x"])
def test_scales_that_do_not_exist(graph: str) -> None:
    with pytest.raises(SpecError, match=r"GRAPH: .?rmat:"):
        open_edges(graph)


def test_files_without_edges(tmp_path: Path) -> None:
    """Are graphs."""
    for path in (
        text(tmp_path / "a.csv", "src,dst\n"),
        npz(tmp_path / "a.npz", src=SRC[:0], dst=DST[:0]),
    ):
        edges = open_edges(str(path))
        assert list(edges.batches(10)) == []
        assert len(edges.sample()[0]) == 0


@pytest.mark.parametrize(
    ("content", "edges"),
    [
        (b"\xef\xbb\xbf1,2\n2,3\n1,3\n", [(1, 2), (2, 3), (1, 3)]),
        (b"\xef\xbb\xbfsrc,dst\n1,2\n", [(1, 2)]),
        (b"\xef\xbb\xbf# by hand\n1,2\n", [(1, 2)]),
        (b"\n\n1,2\n2,3\n", [(1, 2), (2, 3)]),
        (b"# one\n\n# other\n\n1 2\n2 3\n", [(1, 2), (2, 3)]),
        (b"# one\n\nsrc;dst\n1;2\n", [(1, 2)]),
    ],
)
def test_what_stands_before_the_first_edge(
    tmp_path: Path, content: bytes, edges: list[tuple[int, int]]
) -> None:
    """A byte order mark, comments and empty lines, with a header and without."""
    place = tmp_path / "e.csv"
    place.write_bytes(content)
    found: list[tuple[int, int]] = []
    for batch in open_edges(str(place)).batches(10):
        src, dst = batch()
        found += zip(src.tolist(), dst.tolist(), strict=True)
    assert found == edges
