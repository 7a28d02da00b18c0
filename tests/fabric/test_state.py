"""State files, and cleaning up with them, with processes of the test in place of a fabric's. Needs
no root.
"""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.core.errors import FabricError, SpecError
from testbed.fabric.clean import clean
from testbed.fabric.state import State, StateFile, new_run_id, state_files
from testbed.host.processes import RUN_VARIABLE, ProcessEntry, kill, processes_of, start_time

DEAD = ProcessEntry("controller", os.getpid(), 1)  # no running process has started at tick 1


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def entry(process: "subprocess.Popen[bytes]", name: str = "sleeper") -> ProcessEntry:
    started = start_time(process.pid)
    assert started is not None
    return ProcessEntry(name, process.pid, started)


def me() -> ProcessEntry:
    return ProcessEntry("controller", os.getpid(), start_time(os.getpid()) or 0)


def test_a_state_file_reads_back_as_written(tmp_path: Path) -> None:
    file = StateFile("run-1", tmp_path / "deep")
    state = State("run-1", me(), {"hosts": []}, [ProcessEntry("worker", 1, 2)], ["/x"])
    file.create(state)
    assert file.read() == state
    assert [found.run_id for found in state_files(tmp_path / "deep")] == ["run-1"]
    file.remove()
    with pytest.raises(FabricError, match="there is no run 'run-1'"):
        file.read()


def test_an_id_can_be_taken_only_once(tmp_path: Path) -> None:
    StateFile("a", tmp_path).create(State("a", me(), {}))
    with pytest.raises(FabricError, match=r"run id: 'a' is taken .*; `testbed down a` ends it"):
        StateFile("a", tmp_path).create(State("a", me(), {}))


@pytest.mark.parametrize("run_id", ["", "../x", "a/b", "a.json", "-x", "x" * 33, "a b"])
def test_ids_are_short_names(run_id: str) -> None:
    with pytest.raises(SpecError, match=r"run id: .* is not 1 to 32 letters, digits, '-' or '_'"):
        StateFile(run_id)


def test_new_ids_are_allowed_and_differ() -> None:
    ids = {new_run_id() for _ in range(50)}
    assert len(ids) == 50
    for run_id in ids:
        StateFile(run_id)


def test_concurrent_changes_are_all_kept(tmp_path: Path) -> None:
    file = StateFile("a", tmp_path)
    file.create(State("a", me(), {}))

    def add(number: int) -> None:
        for step in range(20):
            with StateFile("a", tmp_path).change() as state:
                state.directories.append(f"{number}.{step}")

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        file.read()  # never a partial file
    assert len(file.read().directories) == 80


def test_only_live_processes_are_listed(tmp_path: Path, sleeper: "subprocess.Popen[bytes]") -> None:
    file = StateFile("a", tmp_path)
    file.create(State("a", me(), {}, [ProcessEntry("gone", sleeper.pid, 1)]))
    file.add_process("sleeper", sleeper.pid)
    assert file.read().processes == [entry(sleeper)]
    sleeper.kill()
    sleeper.wait()
    file.add_process("me", os.getpid())
    assert [listed.name for listed in file.read().processes] == ["me"]


def test_a_zombie_is_not_alive(sleeper: "subprocess.Popen[bytes]") -> None:
    listed = entry(sleeper)
    assert listed.alive
    assert kill([listed]) == [listed]
    assert not listed.alive  # although it has not been reaped
    assert kill([listed]) == []


def test_a_process_that_reuses_the_process_id_is_spared(sleeper: "subprocess.Popen[bytes]") -> None:
    assert kill([ProcessEntry("old", sleeper.pid, entry(sleeper).start - 1)]) == []
    assert sleeper.poll() is None


def test_children_are_found_by_the_runs_id() -> None:
    run_id = new_run_id()
    command = ["sh", "-c", "sleep 1000 & echo; wait"]
    with subprocess.Popen(
        command, env={**os.environ, RUN_VARIABLE: run_id}, stdout=subprocess.PIPE
    ) as shell:
        assert shell.stdout
        shell.stdout.readline()
        found = processes_of(run_id)
        kill(found)
    assert "sh" in {process.name for process in found}
    assert len(found) == 2
    assert processes_of(run_id) == []


def test_a_process_that_is_executing_another_program_is_found(tmp_path: Path) -> None:
    run_id, program = new_run_id(), tmp_path / "again"
    program.write_text('#!/bin/sh\nexec "$0"\n')
    program.chmod(0o755)
    with subprocess.Popen([program], env={**os.environ, RUN_VARIABLE: run_id}) as process:
        try:
            found = [[entry.pid for entry in processes_of(run_id)] for _ in range(100)]
        finally:
            process.kill()
    assert found == [[process.pid]] * 100


def test_clean_removes_a_dead_run(tmp_path: Path, sleeper: "subprocess.Popen[bytes]") -> None:
    directory = tmp_path / "dead"
    (directory / "deep").mkdir(parents=True)
    other = tmp_path / "other"
    other.mkdir()
    state = State(
        "dead", DEAD, {}, [entry(sleeper)], [str(directory), str(other), str(tmp_path / "missing")]
    )
    StateFile("dead", tmp_path).create(state)
    (tmp_path / ".dead.json.next").write_text("{")  # killed while it wrote
    assert clean(tmp_path, "other") == []
    (left,) = clean(tmp_path)
    assert left.processes == [f"sleeper ({sleeper.pid})"]
    assert left.files == [str(directory), str(tmp_path / "dead.json")]
    assert sleeper.wait() == -9
    assert list(tmp_path.iterdir()) == [other]
    assert clean(tmp_path) == []


def test_clean_leaves_a_live_run_alone(tmp_path: Path, sleeper: "subprocess.Popen[bytes]") -> None:
    directory = tmp_path / "live"
    directory.mkdir()
    StateFile("live", tmp_path).create(State("live", me(), {}, [entry(sleeper)], [str(directory)]))
    assert clean(tmp_path) == []
    assert sleeper.poll() is None
    assert directory.is_dir()


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"run_id": "odd"})])
def test_clean_reports_a_file_that_it_cannot_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.json").write_text(text)
    (left,) = clean(tmp_path)
    assert left.error is not None
    assert f"{tmp_path / 'odd.json'} is not a state file" in left.error
    assert (tmp_path / "odd.json").exists()
