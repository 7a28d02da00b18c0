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
from testbed.scenario import parse_scenario

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
        (signal.SIGINT, "tcp-ring: epoch 2", "results so far are in {out}"),
        (signal.SIGTERM, "tcp-ring: epoch 2", "results so far are in {out}"),
        (signal.SIGINT, "s: reading", "nothing was measured yet"),
    ],
)
def test_a_signal_says_where_results_are(
    scenario: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    line: str,
    said: str,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "r2"
    status, last = interrupt(command(scenario, out), number, line)
    assert last == f"error: interrupted; {said.format(out=out)}\n"
    assert status == 128 + number
    assert (out / "results.parquet").exists() == said.startswith("results")


@pytest.mark.net
def test_runs_into_one_folder(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "run"
    busy = f"error: --out {out}: another run is being written there: choose another folder\n"

    def meanwhile(*arguments: str) -> tuple[int, str]:
        """Start a second run while the first is running, then end the first; return the second's
        status and error.
        """
        with subprocess.Popen(
            command(scenario, out, *arguments), stderr=subprocess.PIPE, text=True
        ) as first:
            assert first.stderr
            while not first.stderr.readline().startswith("tcp-ring: epoch 1 "):
                assert first.poll() is None
            second = subprocess.run(
                command(scenario, out, "--overwrite"), capture_output=True, text=True, check=False
            )
            first.terminate()
        return second.returncode, second.stderr

    assert meanwhile() == (2, busy)  # into a new folder
    assert json.loads((out / "manifest.json").read_text())["status"] == "interrupted"

    done = subprocess.run(
        command(scenario, out, "--overwrite", epochs=1), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first = json.loads((out / "manifest.json").read_text())
    assert first["status"] == "complete"
    assert f"-m analysis.report {out}<" in (out / "report.html").read_text()
    assert done.stdout.splitlines()[-1] == f"report: {out}/report.html"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("run")] == ["run"]

    assert meanwhile("--overwrite") == (2, busy)
    status, last = interrupt(
        command(scenario, out, "--overwrite"), signal.SIGINT, "tcp-ring: epoch 2"
    )
    assert (status, last) == (
        130,
        (
            f"error: interrupted; results so far are in {out}.partial-2; the previous run is still"
            f" in {out}\n"
        ),
    )
    assert json.loads((out / "manifest.json").read_text()) == first
    for name in ("run.partial", "run.partial-2"):
        assert (
            json.loads((tmp_path / name / "manifest.json").read_text())["status"] == "interrupted"
        )


@pytest.mark.net
def test_clean_names_what_a_killed_run_was_writing(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "run"
    interrupt(command(scenario, out), signal.SIGTERM, "tcp-ring: epoch 1 ")
    line = command(scenario, out, "--overwrite")
    assert interrupt(line, signal.SIGKILL, "tcp-ring: epoch 1 ")[0] == -signal.SIGKILL
    done = subprocess.run([*TESTBED, "clean"], capture_output=True, text=True, check=True)
    beside = tmp_path / "run.partial"
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
def test_a_disk_that_fills_up_during_a_run_is_an_error(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
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
