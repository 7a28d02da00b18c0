"""A virtual machine: the command's own status and output, and what ends it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.vm import SERIES, VmDied, VmTimeout, find_image, run_in_vm
from testbed.vm.qemu import _environment
from tests.support.command import PROGRAM, call_testbed, run_testbed
from tests.support.waiting import wait_until

NEWEST = SERIES[0]
DEADLINE = 300.0  # seconds, for a boot without KVM on a busy machine

vm = [pytest.mark.vm, pytest.mark.timeout(600)]


def with_vm(test):
    for mark in vm:
        test = mark(test)
    return test


def run(tmp_path, *command, series=NEWEST, timeout=DEADLINE, **options):
    """Run a command; its status, stdout and stderr."""
    streams = [tmp_path / "stdout", tmp_path / "stderr"]
    with open(streams[0], "wb") as stdout, open(streams[1], "wb") as stderr:
        status = run_in_vm(
            find_image(series), command, stdout=stdout, stderr=stderr, timeout=timeout, **options
        )
    return status, *(stream.read_text() for stream in streams)


@with_vm
@pytest.mark.parametrize("series", SERIES)
def test_status_streams_and_files(tmp_path, series):
    shared = tmp_path / "a, b's"
    shared.mkdir()
    script = """
        uname -r; pwd; echo "$TESTBED_WORD $#"; echo error >&2
        echo kept >kept; echo lost >../lost && cat ../lost
        read -r line || echo "no input"
        exit 7
    """
    status, stdout, stderr = run(
        tmp_path,
        *("sh", "-c", script, "sh", "1 2", "3"),
        series=series,
        folder=shared,
        shares=[shared],
        environment={"TESTBED_WORD": "a 'word'"},
    )
    assert (status, stderr) == (7, "error\n")
    release, *lines = stdout.splitlines()
    assert release.startswith(f"{series}.")
    assert lines == [str(shared), "a 'word' 2", "lost", "no input"]
    assert (shared / "kept").read_text() == "kept\n"
    assert not (tmp_path / "lost").exists()


@with_vm
def test_a_guest_finds_the_same_testbed(tmp_path):
    status, stdout, stderr = run(tmp_path, "testbed", "--version")
    assert (status, stderr) == (0, "")
    assert stdout.startswith("testbed ")


def test_the_guests_path_begins_with_this_testbeds_programs(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # as sudo sets it
    here = str(Path(sys.executable).parent)
    assert _environment({"TESTBED_X": "1"}) == {
        "PATH": f"{here}:/usr/bin:/bin",
        "HOME": "/root",
        "TESTBED_X": "1",
    }


@with_vm
def test_a_panic_has_a_status_of_its_own(tmp_path):
    with pytest.raises(VmDied, match=r"died before the command ended; its last words:\n.*sysrq"):
        run(tmp_path, "sh", "-c", "echo c >/proc/sysrq-trigger")
    assert VmDied.exit_status == 125


@with_vm
def test_a_command_that_hangs_ends_in_time(tmp_path):
    with pytest.raises(VmTimeout, match="did not end within 2 s"):
        run(tmp_path, "sleep", "1000", timeout=2)
    assert VmTimeout.exit_status == 124


@with_vm
def test_the_machine_ends_with_its_testbed(tmp_path):
    command = [*PROGRAM, "vm", "run", "--", "sleep", "1000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as testbed:
        qemu = await_child(testbed.pid)
        os.kill(testbed.pid, signal.SIGKILL)
    wait_until(lambda: not qemu.exists() or "zombie" in (qemu / "status").read_text())


def await_child(pid: int) -> Path:
    """Wait until a process has started QEMU: its folder in /proc."""

    def children() -> list[Path]:
        numbers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        found = [Path("/proc") / number for number in numbers]
        return [child for child in found if (child / "comm").read_text().startswith("qemu")]

    wait_until(children, DEADLINE)
    return children()[0]


@with_vm
def test_tests_for_guests_pass():
    """Programs, namespaces, and netem, on the newest kernel."""
    done = run_testbed("vm", "test", "--kernel", NEWEST, timeout=2 * DEADLINE - 20)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["setup", "--kernel", "new"],
            "error: --kernel: 'new': must be a kernel's series, such as",
        ),
        (
            ["run", "--kernel", "2.4", "--", "true"],
            "error: no kernel 2.4 is set up: run `testbed vm",
        ),
        (
            ["run", "--timeout", "0", "--", "true"],
            "error: Invalid value for '--timeout': '0': must be a finite",
        ),
        (["run"], "error: Missing argument 'COMMAND...'"),
    ],
)
def test_bad_input(arguments, said):
    done = call_testbed("vm", *arguments)
    assert done.returncode != 0
    assert not done.stdout
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


def test_what_is_not_installed_has_a_remedy(tmp_path):
    elsewhere = {**os.environ, "PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    done = run_testbed("vm", "setup", env=elsewhere)
    assert done.returncode == 1
    assert done.stderr == "error: apt-cache is not installed (package apt): run `make vm`\n"
