"""``testbed run``: its errors when it cannot start, and its exit status."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.cli.run import default_folder
from testbed.core.errors import SpecError
from testbed.results import RunFolder
from testbed.scenario import parse_scenario

pytestmark = pytest.mark.usefixtures("cache")

TESTBED = [sys.executable, "-c", "from testbed.cli import main; main()"]
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
    line = [
        *TESTBED,
        "run",
        str(scenario),
        "--out",
        str(out),
        *arguments,
    ]
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
    [
        (signal.SIGTERM, "tcp-ring: epoch 2", "results so far are in {out}"),
        (signal.SIGINT, "s: reading", "nothing was measured yet"),
    ],
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
    assert (out / "results.parquet").exists() == said.startswith("results")


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    """A folder with a complete run."""
    with RunFolder(tmp_path / "run") as folder:
        folder.write_manifest({"status": "complete"})
        folder.write("results.parquet", lambda place: place.write_text("measured"))
    return folder.path


@pytest.mark.net
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
def test_a_folder_is_one_runs_and_a_previous_run_stays(scenario: Path, previous: Path) -> None:
    """A second run is refused while the first one replaces a third, and is then interrupted."""
    line = command(scenario, previous, "--overwrite")
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as first:
        assert first.stderr
        while not first.stderr.readline().startswith("tcp-ring: epoch 1 "):
            assert first.poll() is None
        second = subprocess.run(line, capture_output=True, text=True, check=False)
        first.send_signal(signal.SIGINT)
        last = first.stderr.readlines()[-1]
    busy = f"error: --out {previous}: another run is being written there: choose another folder\n"
    assert (second.returncode, second.stderr) == (2, busy)
    assert (first.returncode, last) == (
        130,
        (
            f"error: interrupted; results so far are in {previous}.partial; the previous run is"
            f" still in {previous}\n"
        ),
    )
    assert (previous / "results.parquet").read_text() == "measured"
    manifest = json.loads((previous.with_name("run.partial") / "manifest.json").read_text())
    assert manifest["status"] == "interrupted"


@pytest.mark.net
def test_clean_names_what_a_killed_run_was_writing(scenario: Path, previous: Path) -> None:
    line = command(scenario, previous, "--overwrite")
    assert interrupt(line, signal.SIGKILL, "tcp-ring: epoch 1 ")[0] == -signal.SIGKILL
    done = subprocess.run([*TESTBED, "clean"], capture_output=True, text=True, check=True)
    beside = previous.with_name("run.partial")
    assert f": what it has written stays in {beside}\n" in done.stdout
    manifest = json.loads((beside / "manifest.json").read_text())
    assert manifest["status"] == "killed"
    assert manifest["error"] == "the process that ran it was killed"


FILLED = """
import subprocess, sys
from pathlib import Path
scenario, disk = sys.argv[1:]
settings = ("fabric.hosts=2", 'collective.backends=["tcp-ring"]', "dataset.scale=8", "model.hidden=16", "training.epochs=1")
command = [sys.executable, "-c", "from testbed.cli import main; main()", "run", scenario, "--out", f"{disk}/run"]
for setting in settings:
    command += ["--set", setting]
with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
    for line in process.stderr:
        if line.startswith("building"):  # the first manifest is written
            with open(f"{disk}/filler", "wb", buffering=0) as file:
                try:
                    while file.write(bytes(4096)):
                        pass
                except OSError:
                    pass
    print(line, end="")
print(process.returncode, sorted(path.name for path in Path(disk, "run").iterdir()))
"""  # noqa: E501


@pytest.mark.net
def test_a_disk_that_fills_up_during_a_run_is_an_error(scenario: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    # A separate mount namespace: the small disk disappears with the process.
    mounted = 'mount -t tmpfs -o size=80m none "$3" && exec "$0" -c "$1" "$2" "$3"'
    command = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        mounted,
        sys.executable,
        FILLED,
        str(scenario),
        str(disk),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        f"error: {disk}/run/results.parquet: cannot be written: No space left on device",
        "1 ['manifest.json']",
    ], done.stderr
