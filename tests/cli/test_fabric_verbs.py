"""``up``, ``exec``, ``status``, ``down`` and ``clean``, as a user types them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.fabric.runs import runs
from testbed.fabric.state import new_run_id

pytestmark = pytest.mark.net


def call(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from testbed.cli import main; main()", *arguments]
    environment = {**os.environ, "COLUMNS": "120", "TERM": "dumb", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment, **options)


@pytest.fixture(scope="module")
def run_id() -> Iterator[str]:
    name = new_run_id()
    answer = call("up", "--hosts", "3", "--topology", "ring", "--run-id", name)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[0] == f"run {name} is up: ring, 3 switches (xdp), mtu 1500"
    assert answer.stdout.splitlines()[1].split() == ["h1", "10.0.0.1", "02:00:0a:00:00:01", "on", "s1", "port", "1"]
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
    answer = call("exec", "--run", run_id, "h2", "--", "sh", "-c", f"cat; exit {status}", input="through")
    assert (answer.returncode, answer.stdout) == (status, "through")


def test_status_lists_the_run(run_id: str) -> None:
    answer = call("status", "--json")
    (found,) = [run for run in json.loads(answer.stdout) if run["run"] == run_id]
    expected = {"state": "up", "topology": "ring", "hosts": 3, "switch": "xdp", "mtu": 1500, "offload": True}
    assert expected.items() <= found.items()
    assert found["addresses"]["h2"] == "10.0.0.2"
    assert 0 < found["age"] < 120
    (line,) = [line for line in call("status").stdout.splitlines() if run_id in line]
    assert line.split()[1:7] == ["up", "ring", "3", "xdp", "1500", "on"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["up", "--hosts", "40"], "hosts: 40 is not an integer from 1 to 32"),
        (["up", "--offload", "maybe"], "offload: 'maybe' is unknown; allowed are on, off"),
        (["up", "--run-id", "a/b"], "run id: 'a/b' is not 1 to 32 letters, digits, '-' or '_'"),
        (["exec", "--run", "none", "h1", "--", "true"], "there is no run 'none'"),
        (["down", "none"], "there is no run 'none'"),
        (["down", "none", "--all"], "run: 'none' and --all contradict each other"),
    ],
)
def test_errors(arguments: list[str], text: str) -> None:
    answer = call(*arguments)
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"error: {text}")
    assert "Traceback" not in answer.stderr


def test_an_unknown_host_and_a_taken_name(run_id: str) -> None:
    answer = call("exec", "--run", run_id, "h9", "--", "true")
    assert answer.stderr == "error: host: 'h9' is not in this fabric; hosts are h1, h2, h3\n"
    answer = call("up", "--run-id", run_id)
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"error: run id: '{run_id}' is taken")


def test_a_run_is_named_where_several_are_up(run_id: str) -> None:
    answer = call("up", "--hosts", "1", "--switch", "bridge", "--json")
    other = json.loads(answer.stdout)
    assert other["hosts"] == {"h1": "10.0.0.1"}
    try:
        answer = call("exec", "h1", "true")
        assert answer.returncode == 1
        assert answer.stderr.startswith("error: several runs are up; name one of ")
        assert run_id in answer.stderr
    finally:
        answer = call("down", other["run_id"], "--json")
    assert json.loads(answer.stdout) == {"down": [other["run_id"]]}


def test_down_ends_what_runs_inside(run_id: str) -> None:
    name = new_run_id()
    assert call("up", "--hosts", "1", "--run-id", name).returncode == 0
    command = [sys.executable, "-c", "from testbed.cli import main; main()"]
    arguments = ["exec", "--run", name, "h1", "--", "sh", "-c", "echo in; sleep 1000"]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as inside:
        assert inside.stdout
        assert inside.stdout.readline() == "in\n"
        assert call("down", name).stdout == f"run {name} is down\n"
        assert inside.wait(10) == -signal.SIGKILL


def test_a_dead_run_is_shown_and_cleaned() -> None:
    name = new_run_id()
    controller = json.loads(call("up", "--hosts", "1", "--run-id", name, "--json").stdout)["controller"]
    os.kill(controller, signal.SIGKILL)
    answer = call("down", name)
    assert answer.returncode == 1
    assert answer.stderr == f"error: the controller of run '{name}' is dead; `testbed clean` removes the run\n"
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
    command = [sys.executable, "-c", "from testbed.cli import main; main()"]
    arguments = ["up", "--hosts", "1", "--run-id", name, "--foreground"]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline().startswith(f"run {name} is up")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert name not in {run.run_id for run in runs()}
