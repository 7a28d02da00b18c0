"""A package of someone else's, installed beside the testbed: its names work wherever ours do."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib
import pytest

from testbed.results import load_run
from tests.support.command import PROGRAM

ROOT = Path(__file__).parents[1]
SCENARIO = """
[scenario]
name = "elsewhere"

[fabric]
hosts = 3
topology = "chain"

[collective]
backends = ["hub", "elsewhere:Hub"]

[dataset]
name = "grid"
width = 12

[model]
hidden = 8

[training]
epochs = 1
batch_size = 16
"""

TEST = """
import numpy as np
import pytest


@pytest.mark.fabric(hosts=2, topology="elsewhere:Chain")
@pytest.mark.group(backend="elsewhere:Hub")
def test_sum(group):
    assert [total.tolist() for total in group.all_reduce([np.ones(2, np.float32)] * 2)] == [[2, 2]] * 2
"""  # noqa: E501

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Run a command with the package on its path, from a folder that has no part of it."""
    folder = tmp_path_factory.mktemp("elsewhere")
    source = folder / "source"  # setuptools leaves a build folder in it
    source.mkdir()
    for path in (ROOT / "tests" / "support" / "elsewhere").glob("*.*"):
        (source / path.name).write_bytes(path.read_bytes())
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    offline = ["--no-index", "--no-build-isolation", "--no-deps"]
    subprocess.run([*pip, *offline, "--target", str(folder / "site"), str(source)], check=True)
    empty = folder / "empty"
    empty.mkdir()

    def run(*command: str) -> "subprocess.CompletedProcess[str]":
        environment = {
            **os.environ,
            "PYTHONPATH": f"{folder / 'site'}:{ROOT}",
            "XDG_CACHE_HOME": str(folder / "cache"),
            # In a new cache, Matplotlib would look for all fonts again: many seconds.
            "MPLCONFIGDIR": os.environ.get("MPLCONFIGDIR") or matplotlib.get_configdir(),
        }
        return subprocess.run(
            command, cwd=empty, env=environment, capture_output=True, text=True, check=False
        )

    return run


@pytest.mark.deep
def test_its_names_are_listed_with_their_origin(elsewhere: Command) -> None:
    done = elsewhere(*PROGRAM, "list", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for kind, name, path, summary in (
        ("backends", "hub", "Hub", "All-reduce over TCP by way of rank 0, which adds"),
        ("topologies", "chain", "Chain", "Switches in a row, each with one host"),
        (
            "datasets",
            "grid",
            "Grid",
            "A square grid whose vertices have the labels",
        ),
    ):
        assert {row["origin"] for row in found[kind][:-1]} == {"testbed"}
        assert found[kind][-1]["summary"].startswith(summary)
        del found[kind][-1]["summary"]
        assert found[kind][-1] == {
            "name": name,
            "origin": "elsewhere 1.2",
            "path": f"elsewhere:{path}",
        }
    done = elsewhere(*PROGRAM, "list", "topologies")
    assert "chain       elsewhere 1.2  Switches in a row, each with one host\n" in done.stdout


@pytest.mark.deep
def test_a_kind_that_does_not_exist(elsewhere: Command) -> None:
    done = elsewhere(*PROGRAM, "list", "switches")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: KIND: 'switches': must be one of backends, exchanges, ")


@pytest.mark.net
@pytest.mark.deep
def test_a_scenario(elsewhere: Command, tmp_path: Path) -> None:
    """Its transport by both names, on its topology, with its data; and the report of that."""
    (tmp_path / "elsewhere.toml").write_text(SCENARIO)
    done = elsewhere(
        *PROGRAM, "run", str(tmp_path / "elsewhere.toml"), "--out", str(tmp_path / "run")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = load_run(tmp_path / "run")
    assert run.backends == ["hub", "elsewhere:Hub"]
    accuracies = run.metric("test_accuracy").groupby("backend")["value"].first()
    assert accuracies["hub"] == accuracies["elsewhere:Hub"]
    assert (tmp_path / "run" / "report.html").stat().st_size > 0


@pytest.mark.net
def test_a_bench(elsewhere: Command) -> None:
    fabric = ["--hosts", "2", "--topology", "chain"]
    sizes = ["-b", "4K", "-e", "4K", "-n", "3"]
    done = elsewhere(
        *PROGRAM, "bench", "allreduce", *fabric, *sizes, "--backends", "elsewhere:Hub,tcp-ring"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "elsewhere:Hub" in done.stdout


@pytest.mark.net
@pytest.mark.deep
def test_the_pytest_plugin(elsewhere: Command, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = elsewhere(*command, str(tmp_path / "test_mine.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
