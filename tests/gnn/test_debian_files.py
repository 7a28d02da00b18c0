"""Debian's files as a graph, from a few hand-written indices."""

import io
import shutil
from pathlib import Path

import numpy as np
import pytest

from testbed.core.errors import SpecError
from testbed.gnn.debian_files import DebianFilesSpec, content_lists, parse_contents
from testbed.gnn.graph import GraphData
from testbed.gnn.streaming.edge_sources import open_edges

PACKAGES = Path(__file__).parent / "data" / "Packages"
NAMES = ["alpha", "beta", "delta", "epsilon", "eta", "gamma", "iota", "kappa", "theta", "zeta"]
CONTENTS = b"""\
bin/alpha                                               editors/alpha
usr/share/doc/alpha/read me                             editors/alpha
usr/share/doc/beta/copyright                            contrib/libs/beta,shells/gamma
usr/share/doc/gamma/copyright                           shells/gamma
usr/lib/new.so  \t libs/onlyhere
top                                                     shells/gamma
"""
DIRECTORIES = [
    *("", "bin", "usr", "usr/lib", "usr/share", "usr/share/doc"),
    *("usr/share/doc/alpha", "usr/share/doc/beta", "usr/share/doc/gamma"),
]
FILES = ["alpha", "copyright", "new.so", "read me", "top"]
ALL = [*sorted([*NAMES, "onlyhere"]), *DIRECTORIES, *FILES]


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    folder = tmp_path / "lists"
    folder.mkdir()
    shutil.copy(PACKAGES, folder / "archive_main_binary-amd64_Packages")
    (folder / "archive_main_Contents-all").write_bytes(CONTENTS)
    (folder / "archive_main_Contents-source").write_bytes(b"not for us")
    return folder


def spec(lists: Path, **options: object) -> DebianFilesSpec:
    return DebianFilesSpec.model_validate(
        {"name": "debian-files", "lists": str(lists), "feature_dim": 512, **options}
    )


@pytest.fixture
def graph(lists: Path, cache: Path) -> GraphData:
    return GraphData.load(spec(lists).prepare())


def neighbours(graph: GraphData, vertex: int) -> set[str]:
    ends = graph.indices[graph.indptr[vertex] : graph.indptr[vertex + 1]]
    return {ALL[index] for index in ends}


def test_packages_directories_and_names_are_vertices(graph: GraphData) -> None:
    assert graph.num_vertices == len(ALL)
    facts = {key: graph.facts[key] for key in ("packages", "directories", "file_names", "files")}
    assert facts == {"packages": 11, "directories": 9, "file_names": 5, "files": 7}


def test_files_tie_packages_names_and_directories_together(graph: GraphData) -> None:
    packages, directories = 11, len(DIRECTORIES)
    first_name = packages + directories
    assert neighbours(graph, first_name + FILES.index("copyright")) == {
        *("beta", "gamma", "usr/share/doc/beta", "usr/share/doc/gamma")
    }
    assert neighbours(graph, ALL.index("gamma")) >= {
        *("copyright", "top", "", "usr/share/doc/beta", "usr/share/doc/gamma")
    }
    # The directory above, those in it, and what is in it.
    assert neighbours(graph, packages + DIRECTORIES.index("usr/share/doc")) == {
        *("usr/share", "usr/share/doc/alpha", "usr/share/doc/beta", "usr/share/doc/gamma")
    }
    assert neighbours(graph, packages) == {"bin", "usr", "top", "gamma"}  # the root
    assert (np.diff(graph.indptr) > 0).sum() >= len(ALL) - 5


def test_relations_are_those_of_the_package_graph(graph: GraphData) -> None:
    assert neighbours(graph, ALL.index("alpha")) >= {"beta", "gamma", "delta", "epsilon"}


def test_only_packages_are_learned(graph: GraphData) -> None:
    sets = np.concatenate([graph.train, graph.val, graph.test])
    assert sorted(sets.tolist()) == list(range(11))
    sections = graph.facts["sections"]
    assert sections[graph.y[ALL.index("onlyhere")]] == "libs"
    assert sections[graph.y[ALL.index("gamma")]] == "libs"  # by the packages' list: contrib/libs


def test_names_are_features(graph: GraphData) -> None:
    lengths = np.linalg.norm(graph.x, axis=1)
    assert lengths[ALL.index("usr/share/doc")] == pytest.approx(1)
    assert lengths[11] == 0  # the root has no name
    read_me, top = (11 + len(DIRECTORIES) + FILES.index(name) for name in ("read me", "top"))
    assert graph.x[read_me] @ graph.x[top] == 0


def test_a_share_of_packages_takes_their_files_along(lists: Path, cache: Path) -> None:
    lines = "".join(f"usr/lib/p{number}/file{number}  libs/p{number}\n" for number in range(400))
    (lists / "archive_main_Contents-all").write_text(lines)
    whole, half = (GraphData.load(spec(lists, share=share).prepare()) for share in (1.0, 0.5))
    assert whole.facts["packages"] == 410
    assert 150 < half.facts["packages"] < 260
    assert half.facts["files"] <= half.facts["packages"]
    assert half.facts["directories"] == half.facts["files"] + 3  # and "", usr, usr/lib
    again = GraphData.load(spec(lists, share=0.5, seed=2).prepare())
    assert again.facts["packages"] != half.facts["packages"] or not np.array_equal(again.x, half.x)


def test_parts_of_lines_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = parse_contents(io.BytesIO(CONTENTS), "here")
    monkeypatch.setattr("testbed.gnn.debian_files._BLOCK", 100)
    parts = parse_contents(io.BytesIO(CONTENTS), "here")
    assert whole.texts == parts.texts
    for name in ("package", "directory", "name"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))


def test_what_is_no_index(tmp_path: Path, lists: Path, cache: Path) -> None:
    with pytest.raises(SpecError, match=r"here: the indices are broken: 'nothing' names no pack"):
        parse_contents(io.BytesIO(CONTENTS + b"nothing\n"), "here")
    with pytest.raises(SpecError, match=r'no Contents indices: run "apt-get install apt-file" and'):
        content_lists(tmp_path)
    with pytest.raises(SpecError, match=r"^dataset\.share = 0\.01: leaves \d packages: must leave"):
        spec(lists, share=0.01).prepare()


def test_a_line_that_expands_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_EXPAND_MIB", "1")
    with pytest.raises(
        SpecError, match=r"here: the indices expand to more than 1 MiB; set TESTBED"
    ):
        parse_contents(io.BytesIO(CONTENTS * 20_000), "here")


def test_it_is_a_stream_of_edges(lists: Path, cache: Path) -> None:
    assert open_edges(str(spec(lists).prepare())).num_vertices == len(ALL)
