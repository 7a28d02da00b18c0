"""``testbed run``: its errors when it cannot start, and its exit status."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.cli.run import default_folder
from testbed.core.errors import SpecError
from testbed.results import RunFolder
from testbed.scenario import parse_scenario
from tests.support.command import PROGRAM, run_testbed
from tests.support.tiers import broad

pytestmark = pytest.mark.usefixtures("cache")

SCENARIO = '[scenario]\nname = "s"\n[dataset]\nname = "synthetic"\n'


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "s.toml"
    path.write_text(SCENARIO)
    return path


def test_help_has_examples() -> None:
    result = CliRunner().invoke(app, ["run", "--help"])
    assert result.exit_code == 0
    assert "testbed run scenarios/ddp_debian.toml --out runs/demo" in " ".join(
        result.stdout.split()
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--set", "fabric.host=4"], r"unknown key fabric\.host: .*did you mean hosts\?"),
        (["--set", "epochs=2"], r"--set 'epochs=2': must be table\.key=value"),
    ],
)
def test_wrong_settings(scenario: Path, tmp_path: Path, arguments: list[str], text: str) -> None:
    result = CliRunner().invoke(
        app, ["run", str(scenario), "--out", str(tmp_path / "out"), *arguments]
    )
    assert isinstance(result.exception, SpecError)
    with pytest.raises(SpecError, match=text):
        raise result.exception
    assert not (tmp_path / "out").exists()


def test_default_folder_is_named_by_scenario_and_time() -> None:
    folder = default_folder(
        parse_scenario({"scenario": {"name": "abc"}, "dataset": {"name": "synthetic"}})
    )
    assert folder.parent == Path("runs")
    assert folder.name.startswith("abc-20")


def command(scenario: Path, out: Path, *arguments: str, epochs: int = 500) -> list[str]:
    line = [*PROGRAM, "run", str(scenario), "--out", str(out), *arguments]
    settings = (
        "fabric.hosts=2",
        'collective.backends=["tcp-ring"]',
        "dataset.scale=8",
        f"training.epochs={epochs}",
    )
    for setting in settings:
        line += ["--set", setting]
    return line


def interrupt(line: list[str], number: signal.Signals, at: str) -> tuple[int, str]:
    """Send a signal to a run when it prints a line with the given beginning; return its status and
    its last line.
    """
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        text = ""
        for text in process.stderr:
            if text.startswith(at):
                process.send_signal(number)
    return process.returncode, text


@pytest.mark.net
@pytest.mark.parametrize(
    ("number", "line", "said"),
    broad(
        [
            (signal.SIGINT, "s: reading", "nothing was measured yet"),
            (signal.SIGTERM, "tcp-ring: epoch 2", "results so far are in {out}"),
        ]
    ),
)
def test_a_signal_says_where_results_are(
    scenario: Path,
    tmp_path: Path,
    number: signal.Signals,
    line: str,
    said: str,
) -> None:
    out = tmp_path / "r2"
    status, last = interrupt(command(scenario, out), number, line)
    assert last == f"error: interrupted; {said.format(out=out)}\n"
    assert status == 128 + number
    measured = said.startswith("results")
    assert (out / "results.parquet").exists() == measured
    if measured:
        assert json.loads((out / "manifest.json").read_text())["status"] == "interrupted"


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    """A folder with a complete run."""
    with RunFolder(tmp_path / "run") as folder:
        folder.write_manifest({"status": "complete"})
        folder.write("results.parquet", lambda place: place.write_text("measured"))
    return folder.path


@pytest.mark.net
@pytest.mark.deep
def test_a_run_replaces_a_previous_one(scenario: Path, previous: Path) -> None:
    done = subprocess.run(
        command(scenario, previous, "--overwrite", epochs=1),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    manifest = json.loads((previous / "manifest.json").read_text())
    assert manifest["status"] == "complete"
    assert manifest["command"][1] == "run"
    assert f"-m analysis.report {previous}<" in (previous / "report.html").read_text()
    assert done.stdout.splitlines()[-1] == f"report: {previous}/report.html"
    assert not previous.with_name("run.partial").exists()


@pytest.mark.net
@pytest.mark.deep
@pytest.mark.usefixtures("only_cleaner")
def test_clean_names_what_a_killed_run_was_writing(scenario: Path, previous: Path) -> None:
    line = command(scenario, previous, "--overwrite")
    assert interrupt(line, signal.SIGKILL, "tcp-ring: epoch 1 ")[0] == -signal.SIGKILL
    done = run_testbed("clean")
    assert done.returncode == 0, done.stderr
    beside = previous.with_name("run.partial")
    assert f": what it has written stays in {beside}\n" in done.stdout
    manifest = json.loads((beside / "manifest.json").read_text())
    assert manifest["status"] == "killed"
    assert manifest["error"] == "the process that ran it was killed"
