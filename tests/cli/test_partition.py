"""``testbed partition``: what it prints and writes."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.core.errors import SpecError, StorageError
from testbed.gnn.streaming.partition_folder import PartitionFolder


def partition(*arguments: str) -> tuple[str, str]:
    done = CliRunner().invoke(app, ["partition", *arguments], catch_exceptions=True)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0
    return done.stdout, done.stderr


def test_measures_as_json(tmp_path: Path) -> None:
    out, err = partition("rmat:8", "--policy", "cvc", "-o", str(tmp_path / "out"), "--json")
    found = json.loads(out)
    assert (found["policy"], found["parts"], found["num_edges"]) == ("cvc", 4, 16 << 8)
    assert "rmat:8: 256 vertices, 4096 edges" in err
    manifest = PartitionFolder(tmp_path / "out").manifest
    assert {key: manifest[key] for key in found} == found


def test_policies_side_by_side(tmp_path: Path) -> None:
    out, _ = partition("rmat:8", "--policy", "eec,fec,metis", "--out", str(tmp_path / "out"))
    lines = out.splitlines()
    assert lines[1].split()[:2] == ["policy", "seconds"]
    assert [line.split()[0] for line in lines[2:5]] == ["eec", "fec", "metis"]
    assert lines[5].startswith("as fast as METIS: eec ")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["eec", "fec", "metis"]


def test_nothing_is_kept_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    partition("rmat:8", "--policy", "all", "--parts", "2")
    assert list(tmp_path.iterdir()) == []


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore[no-untyped-def]
    from testbed.cli.partition import _bar

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    _bar("cvc")("edges", 0.5)
    assert f"cvc edges     [{'#' * 15}{' ' * 15}]  50%" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Not even by root."""
    for more in ([], ["--policy", "eec,cvc"]):
        with pytest.raises(StorageError, match="--out /proc/out: cannot be written: "):
            partition("rmat:8", "--out", "/proc/out", *more)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--policy", "cvd"],
            '--policy: "cvd": must be eec, oec, iec, .*, metis or module:Class; did you mean cvc',
        ),
        (
            ["--policy", "eec,cvc", "--out", "/nowhere/out"],
            "--out: /nowhere/out: must be a folder in an existing one",
        ),
        (["--out", "/nowhere/out"], "--out: /nowhere/out: must be a folder in an existing one"),
        (["--parts", "0"], "--parts: 0: must be 1 to 1024"),
        (["--memory", "1"], "--memory: 1: must be 32 to 16777216"),
    ],
)
def test_wrong_usage(arguments: list[str], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        partition("rmat:8", *arguments)
