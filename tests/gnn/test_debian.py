"""The package graph's parser, on a few hand-written packages and on this machine's lists."""

import io
import os
from pathlib import Path

import numpy as np
import pytest

from testbed.core.errors import SpecError
from testbed.gnn.debian import DebianSpec, package_lists, parse_packages
from testbed.gnn.graph import GraphData
from tests.support.damage import little_memory

SPEC = DebianSpec(name="debian", feature_dim=1024)  # large enough that no two words here collide
PACKAGES = Path(__file__).parent / "data" / "Packages"
NAMES = ["alpha", "beta", "delta", "epsilon", "eta", "gamma", "iota", "kappa", "theta", "zeta"]


@pytest.fixture
def parsed() -> GraphData:
    with PACKAGES.open("rb") as stream:
        return parse_packages(stream, SPEC)


def neighbours(graph: GraphData, name: str) -> set[str]:
    vertex = NAMES.index(name)
    return {
        NAMES[index] for index in graph.indices[graph.indptr[vertex] : graph.indptr[vertex + 1]]
    }


def test_relations_alternatives_and_providers(parsed: GraphData) -> None:
    # beta (Depends), gamma and delta (alternatives), epsilon (Pre-Depends; provides libvirtual)
    assert neighbours(parsed, "alpha") == {"beta", "gamma", "delta", "epsilon"}


def test_real_package_beats_its_providers(parsed: GraphData) -> None:
    # gamma provides delta, but delta is a package: alpha's alternative does not lead to gamma
    # through it
    assert neighbours(parsed, "delta") == {"alpha"}


def test_only_the_newest_version_counts(parsed: GraphData) -> None:
    assert neighbours(parsed, "beta") == {
        "alpha",
        "gamma",
    }  # from alpha's Depends and from 1.10's Recommends


def test_qualifiers_and_loops_are_ignored(parsed: GraphData) -> None:
    assert neighbours(parsed, "zeta") == {"gamma"}
    assert neighbours(parsed, "epsilon") == {"alpha"}


def test_facts_and_labels(parsed: GraphData) -> None:
    assert parsed.facts["sections"] == ["editors", "libs", "shells", "unknown"]
    assert {key: parsed.facts[key] for key in ("packages", "edges", "dangling_relations")} == {
        "packages": 10,
        "edges": 6,
        "dangling_relations": 1,
    }
    assert parsed.facts["virtual_relations"] == 1
    assert parsed.y[NAMES.index("gamma")] == 1  # contrib/libs


def test_features_come_from_descriptions(parsed: GraphData) -> None:
    lengths = np.linalg.norm(parsed.x, axis=1)
    assert lengths[NAMES.index("zeta")] == 0  # no words
    np.testing.assert_allclose(np.delete(lengths, NAMES.index("zeta")), 1, rtol=1e-6)


def test_too_few_packages() -> None:
    with pytest.raises(SpecError, match="the lists hold 0 packages"):
        parse_packages(io.BytesIO(b""), SPEC)


def test_without_lists_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r'holds no APT package lists: run "apt-get update"'):
        package_lists(tmp_path)


@pytest.mark.skipif(not Path("/usr/lib/apt/apt-helper").exists(), reason="no APT on this box")
def test_lists_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = DebianSpec(name="debian", feature_dim=16, lists=str(tmp_path / "lists"))
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "x_Packages").write_bytes(PACKAGES.read_bytes())
    folder = spec.prepare()
    monkeypatch.setattr("testbed.gnn.debian.parse_packages", None)  # a second parse would fail
    assert spec.prepare() == folder
    assert isinstance(GraphData.load(folder).x, np.memmap)
    assert GraphData.load(folder).num_vertices == 10


@pytest.mark.parametrize(
    ("paragraph", "text"),
    [
        (b"Version: 1\n", "a paragraph lacks Package"),
        (b"Package: x\nVersion: !\n\nPackage: x\nVersion: 1\n", "Invalid version string '!'"),
        (b"\xff\xfe\x00" * 100 + b"\n", "'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_broken_lists(paragraph: bytes, text: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_packages(io.BytesIO(paragraph + b"\n" + PACKAGES.read_bytes()), SPEC)
    assert f"/var/lib/apt/lists: the lists are broken: {text}" in str(refused.value)


@pytest.mark.timeout(30)
def test_lists_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "host_Packages")
    with pytest.raises(SpecError, match="host_Packages: is a FIFO: must be a regular file"):
        DebianSpec(name="debian", lists=str(tmp_path)).prepare()


@pytest.mark.parametrize(
    ("paragraph", "text"),
    [
        (
            b"Package: a\nVersion: 1\n\n" * (1 << 17),
            "expand to more than 1 MiB; set TESTBED_EXPAND",
        ),
        (b"Package: " + b"a" * (1 << 20), "a line has 1048576 bytes or more"),
    ],
)
def test_lists_that_expand_are_refused(
    paragraph: bytes, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTBED_EXPAND_MIB", "1" if b"\n\n" in paragraph else "100")
    with little_memory(16 << 20), pytest.raises(SpecError, match=text):
        parse_packages(io.BytesIO(paragraph), SPEC)
