"""``up``, ``exec``, ``status``, ``down`` and ``clean`` as a user types them."""

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.core.errors import FabricError, SpecError
from testbed.fabric import Fabric
from testbed.fabric.clean import Leftovers
from testbed.fabric.runs import find_run, runs
from testbed.fabric.state import new_run_id
from testbed.plan import plan_fabric
from tests.support.command import PROGRAM, run_testbed

pytestmark = pytest.mark.net


def call(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "COLUMNS": "120", "TERM": "dumb", "NO_COLOR": "1"}
    return run_testbed(*arguments, env=environment, **options)


@pytest.fixture(scope="module")
def run_id() -> Iterator[str]:
    name = new_run_id()
    answer = call("up", "--hosts", "3", "--topology", "ring", "--run-id", name)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[0] == f"run {name} is up: ring, 3 switches (xdp), mtu 1500"
    assert answer.stdout.splitlines()[1].split() == [
        "h1",
        "10.0.0.1",
        "02:00:0a:00:00:01",
        "on",
        "s1",
        "port",
        "1",
    ]
    yield name
    if name in {run.run_id for run in runs()}:
        assert call("down", name).returncode == 0


def test_hosts_know_each_other_by_name(run_id: str) -> None:
    answer = call("exec", "--run", run_id, "h1", "--", "ping", "-c", "1", "-W", "2", "h3")
    assert answer.returncode == 0, answer.stderr
    assert "1 received" in answer.stdout


def test_the_xdp_switch_is_attached(run_id: str) -> None:
    answer = call("exec", "--run", run_id, "s1", "--", "ip", "link", "show", "s1-eth1")
    assert "prog/xdp" in answer.stdout


@pytest.mark.parametrize("status", [0, 7])
def test_the_exit_status_is_the_commands(run_id: str, status: int) -> None:
    answer = call(
        "exec", "--run", run_id, "h2", "--", "sh", "-c", f"cat; exit {status}", input="through"
    )
    assert (answer.returncode, answer.stdout) == (status, "through")


def test_status_lists_the_run(run_id: str) -> None:
    answer = call("status", "--json")
    (found,) = [run for run in json.loads(answer.stdout) if run["run"] == run_id]
    expected = {
        "state": "up",
        "topology": "ring",
        "hosts": 3,
        "switch": "xdp",
        "mtu": 1500,
        "offload": True,
    }
    assert expected.items() <= found.items()
    assert found["addresses"]["h2"] == "10.0.0.2"
    assert 0 < found["age"] < 120
    (line,) = [line for line in call("status").stdout.splitlines() if run_id in line]
    assert line.split()[1:7] == ["up", "ring", "3", "xdp", "1500", "on"]


@pytest.mark.deep
def test_nothing_is_truncated_in_a_narrow_terminal() -> None:
    name = f"{new_run_id()}-{'long' * 5}"
    assert call("up", "--hosts", "1", "--run-id", name, "--topology", "leaf-spine").returncode == 0
    try:
        narrow = {**os.environ, "COLUMNS": "20"}
        done = run_testbed("status", env=narrow)
        (found,) = [
            run for run in json.loads(call("status", "--json").stdout) if run["run"] == name
        ]
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"{name} ")]
        assert line.split()[1:3] == ["up", "leaf-spine"]
        assert line.split()[-1] == str(found["controller"])
    finally:
        assert call("down", name).returncode == 0


def test_a_missing_program_is_an_error(run_id: str) -> None:
    answer = call("exec", "--run", run_id, "h1", "--", "nonsense", "-x")
    assert (answer.stderr, answer.returncode) == (
        "error: nonsense: is not a program on PATH or an executable file\n",
        127,
    )
    answer = call("exec", "--run", run_id, "h1", "--")
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: ")


@pytest.mark.usefixtures("only_cleaner")
def test_an_error_after_up_is_shown_until_clean() -> None:
    name = new_run_id()
    controller = json.loads(call("up", "--hosts", "2", "--run-id", name, "--json").stdout)[
        "controller"
    ]
    (state,) = [run.state for run in runs() if run.run_id == name]
    with open(os.pidfd_open(controller)) as ended:
        os.kill(
            next(entry.pid for entry in state.processes if entry.name == "worker h2"),
            signal.SIGKILL,
        )
        assert select.select([ended], [], [], 30)[0]
    assert (
        f"run {name} failed: worker h2 was killed by signal 9 before its work was done\n"
        in call("status").stdout
    )
    (found,) = [run for run in json.loads(call("status", "--json").stdout) if run["run"] == name]
    assert found["state"] == "failed"
    assert found["error"].startswith("worker h2 was killed by signal 9")
    assert f"run {name}: removed /run/testbed/{name}.error\n" in call("clean").stdout
    assert name not in call("status").stdout


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["up", "--hosts", "40"], 2, "--hosts: 40: must be 1 to 32"),
        (["up", "--offload", "maybe"], 2, '--offload: "maybe": must be on or off'),
        (["up", "--run-id", "a/b"], 2, "run id: 'a/b' is not 1 to 32 letters, digits, '-' or '_'"),
        (["exec", "--run", "none", "h1", "--", "true"], 2, "there is no run 'none': "),
        (["down", "none"], 2, "there is no run 'none': "),
        (["down", "none", "--all"], 2, "run: 'none' and --all contradict each other"),
    ],
)
def test_errors(arguments: list[str], status: int, text: str) -> None:
    answer = call(*arguments)
    assert answer.returncode == status
    assert answer.stderr.startswith(f"error: {text}")
    assert "Traceback" not in answer.stderr


def test_an_unknown_host_and_a_used_name_are_errors(run_id: str) -> None:
    answer = call("exec", "--run", run_id, "h9", "--", "true")
    assert answer.stderr == "error: host: 'h9' is not in this fabric; hosts are h1, h2, h3\n"
    answer = call("up", "--run-id", run_id)
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"error: run id: '{run_id}' is taken")


def test_runs_of_other_commands_must_be_named(tmp_path: Path) -> None:
    plan = plan_fabric("star", 1, "bridge")
    with Fabric(plan, "mine", tmp_path):
        with pytest.raises(FabricError) as none:
            find_run(root=tmp_path)
        assert (
            str(none.value)
            == "no run is up; `testbed up` starts one; other commands' runs can be named: mine"
        )
        with Fabric(plan, "lab", tmp_path, kept=True):
            assert find_run(root=tmp_path).run_id == "lab"
            assert find_run("mine", tmp_path).run_id == "mine"
            with pytest.raises(
                SpecError, match=r"^there is no run 'none': must be one of lab, mine$"
            ):
                find_run("none", tmp_path)
    with pytest.raises(SpecError, match=r"^there is no run 'none': none is up$"):
        find_run("none", tmp_path)


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_clean_reports_an_error_for_what_it_leaves(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    left = [
        Leftovers("a", files=["/x"]),
        Leftovers("b", error="b.json is not a state file"),
        Leftovers("c", error="nor is c"),
    ]
    monkeypatch.setattr("testbed.fabric.clean.clean", lambda: left)
    done = CliRunner().invoke(app, ["clean", *arguments])
    assert "/x" in done.stdout
    assert isinstance(done.exception, FabricError)
    assert done.exception.a_line_each
    assert (
        str(done.exception)
        == "run b: left alone: b.json is not a state file\nrun c: left alone: nor is c"
    )


def test_a_run_must_be_named_if_several_are_up(run_id: str) -> None:
    answer = call("up", "--hosts", "1", "--switch", "bridge", "--json")
    other = json.loads(answer.stdout)
    assert other["hosts"] == {"h1": "10.0.0.1"}
    try:
        answer = call("exec", "h1", "true")
        assert answer.returncode == 1
        assert answer.stderr.startswith("error: several runs are up: name one, as the argument")
        assert run_id in answer.stderr
    finally:
        answer = call("down", other["run_id"], "--json")
    assert json.loads(answer.stdout) == {"down": [other["run_id"]]}


def test_down_ends_what_runs_inside(run_id: str) -> None:
    name = new_run_id()
    assert call("up", "--hosts", "1", "--run-id", name).returncode == 0
    arguments = ["exec", "--run", name, "h1", "--", "sh", "-c", "echo in; sleep 1000"]
    with subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.PIPE, text=True) as inside:
        assert inside.stdout
        assert inside.stdout.readline() == "in\n"
        assert call("down", name).stdout == f"run {name} is down\n"
        assert inside.wait(10) == -signal.SIGKILL


@pytest.mark.deep
@pytest.mark.usefixtures("only_cleaner")
def test_a_dead_run_is_shown_and_cleaned() -> None:
    name = new_run_id()
    controller = json.loads(call("up", "--hosts", "1", "--run-id", name, "--json").stdout)[
        "controller"
    ]
    os.kill(controller, signal.SIGKILL)
    answer = call("down", name)
    assert answer.returncode == 1
    assert (
        answer.stderr
        == f"error: the controller of run '{name}' is dead; `testbed clean` removes the run\n"
    )
    answer = call("exec", "--run", name, "h1", "true")
    assert answer.returncode == 1
    assert (
        answer.stderr
        == f"error: the controller of run '{name}' is dead; `testbed clean` removes the run\n"
    )
    (found,) = [run for run in json.loads(call("status", "--json").stdout) if run["run"] == name]
    assert found["state"] == "dead"
    answer = call("clean", "--json")
    assert answer.returncode == 0
    (left,) = [left for left in json.loads(answer.stdout) if left["run_id"] == name]
    assert left["error"] is None
    assert left["files"] == [f"/run/testbed/{name}", f"/run/testbed/{name}.json"]
    assert call("down", name).stderr.startswith(f"error: there is no run '{name}'")


def test_in_the_foreground_ctrl_c_takes_it_down() -> None:
    name = new_run_id()
    arguments = ["up", "--hosts", "1", "--run-id", name, "--foreground"]
    with subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline().startswith(f"run {name} is up")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert name not in {run.run_id for run in runs()}
