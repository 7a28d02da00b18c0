"""Calls into worker processes: results, progress, errors, deadlines, deaths."""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.core.errors import (
    CollectiveError,
    FabricError,
    LimitError,
    SpecError,
    TestbedError,
    WorkerDied,
    WorkerTimeout,
)
from testbed.fabric import Fabric
from testbed.plan import plan_fabric
from testbed.worker import Workers
from tests.support.worker import calls

pytestmark = pytest.mark.net


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with Fabric(plan_fabric("star", 2, "bridge")) as fabric:
        yield fabric


@pytest.fixture
def workers(fabric: Fabric) -> Iterator[Workers]:
    with Workers(fabric) as workers:
        yield workers


def test_every_namespace_has_a_worker(workers: Workers) -> None:
    plan = workers.fabric.plan
    described = workers.call_all(calls.describe, {"s1": {}, "h2": {"extra": 5}})
    assert list(described) == ["s1", "h2"]
    assert described["h2"] == ("h2", "host", plan.host("h2"), 2, 5)
    assert described["s1"] == ("s1", "switch", plan.switch("s1"), 2, 0)
    inside = workers.call_all(calls.namespace, list(workers))
    assert inside == {
        name: os.stat(f"/proc/{node.pid}/ns/net").st_ino
        for name, node in workers.fabric.nodes.items()
    }
    assert len(set(inside.values())) == 3


def test_calls_keep_objects(workers: Workers) -> None:
    assert [workers["h1"].call(calls.remember, value=value) for value in (1, 2, 3)] == [1, 3, 6]
    assert workers["h2"].call(calls.remember, value=10) == 10


def test_all_keywords_are_passed_to_the_function(workers: Workers) -> None:
    answer = workers["h1"].call(calls.echo, function="f", timeout=3.0, name="n")
    assert answer == ("f", 3.0, "n")


def test_workers_work_at_the_same_time(workers: Workers, tmp_path: Path) -> None:
    names = list(workers)
    workers.call_all(calls.meet, {name: {"directory": tmp_path, "names": names} for name in names})


def test_progress_arrives_in_order(workers: Workers) -> None:
    news: dict[str, list[int]] = {"h1": [], "h2": []}
    workers.call_all(
        calls.count,
        {"h1": {"to": 3}, "h2": {"to": 2}},
        on_progress=lambda name, n: news[name].append(n),
    )
    assert news == {"h1": [0, 1, 2], "h2": [0, 1]}


def test_the_workers_log_is_the_controllers(
    fabric: Fabric, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "testbed"), Workers(fabric) as workers:
        workers.call_all(calls.log, {"h1": {"text": "one"}, "s1": {"text": "two"}})
    said = [entry.getMessage() for entry in caplog.records if entry.name == "testbed.tests.calls"]
    assert sorted(said) == ["h1: one", "s1: two"]


def test_a_worker_that_does_not_exist_is_an_error_with_those_that_do(workers: Workers) -> None:
    known = ", ".join(workers)
    for call in (lambda: workers["h9"], lambda: workers.call_all(calls.refuse, ["h9"])):
        with pytest.raises(KeyError, match=f"'h9' is no worker: must be one of {known}"):
            call()


def test_an_error_is_raised_here_with_the_workers_traceback(workers: Workers) -> None:
    with pytest.raises(CollectiveError, match="h2 will not") as caught:
        workers.call_all(calls.refuse, ["h2"])
    (note,) = caught.value.__notes__
    assert note.startswith("in worker h2:\nTraceback")
    assert "calls.py" in note
    assert workers["h2"].call(calls.remember, value=1) == 1  # it is still alive


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("memory", "worker h1: out of memory"),
        ("stack", "worker h1: nested too deeply: maximum recursion depth exceeded"),
        (
            "number",
            "worker h1: a number is too large: Python int too large to convert to C ssize_t",
        ),
    ],
)
def test_a_limit_is_an_error_of_one_line(workers: Workers, how: str, text: str) -> None:
    with pytest.raises(LimitError) as caught:
        workers["h1"].call(calls.exhaust, how=how)
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)
    assert workers["h1"].call(calls.remember, value=1)  # it still works


def test_errors_can_be_returned(workers: Workers) -> None:
    answers = workers.call_all(calls.refuse, ["h1", "h2"], errors="return")
    assert [str(error) for error in answers.values()] == ["h1 will not", "h2 will not"]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (calls.raise_odd, "raise_odd: OddError"),
        (
            calls.return_unpicklable,
            "return_unpicklable: its result cannot be pickled: cannot pickle",
        ),
    ],
)
def test_a_value_that_cannot_be_sent_is_an_error(
    workers: Workers, function: Any, text: str
) -> None:
    with pytest.raises(TestbedError, match=text):
        workers["h1"].call(function)
    assert workers["h1"].call(calls.remember, value=1) == 1


def test_a_function_needs_a_name(workers: Workers) -> None:
    with pytest.raises(TypeError, match="no worker can import this name"):
        workers["h1"].call(lambda context: None)


def test_patience_ends_with_a_worker_that_does_not_get_on(workers: Workers, tmp_path: Path) -> None:
    path = tmp_path / "go"
    gone = r"workers h1 have neither answered nor got on for 0\.05 s"
    with pytest.raises(WorkerTimeout, match=gone):
        workers.call_all(calls.wait_for, {"h1": {"path": path}}, patience=0.05)
    path.touch()


def test_an_answer_that_is_late_is_dropped(workers: Workers, tmp_path: Path) -> None:
    path = tmp_path / "go"
    with pytest.raises(WorkerTimeout, match=r"workers h1 did not answer within 0\.05 s"):
        workers.call_all(calls.wait_for, {"h1": {"path": path}}, timeout=0.05)
    with pytest.raises(WorkerTimeout, match="workers h1 are still busy with an earlier call"):
        workers.call_all(calls.describe, ["h1", "h2"], timeout=0.05)
    assert workers["h2"].call(calls.remember, value=1) == 1
    path.touch()
    assert workers["h1"].call(calls.size, data=bytes(8 << 20)) == 8 << 20
    assert not workers["h1"].pending


def test_a_death_is_reported_with_the_workers_last_output(workers: Workers, tmp_path: Path) -> None:
    with pytest.raises(WorkerDied) as caught:
        workers.call_all(calls.exit_with, {"h1": {"status": 3}})
    text = "worker h1 exited with 3 before its work was done; its last words:\nfarewell"
    assert str(caught.value) == text
    assert (caught.value.worker, caught.value.status) == ("h1", 3)


def test_the_death_of_a_worker_that_was_not_called_is_noticed(
    workers: Workers, tmp_path: Path
) -> None:
    os.kill(workers["s1"].pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="worker s1 was killed by signal 9"):
        workers.call_all(calls.wait_for, {"h1": {"path": tmp_path / "never"}})


def test_resources_are_closed_when_workers_stop(fabric: Fabric, tmp_path: Path) -> None:
    with Workers(fabric) as workers:
        workers.call_all(calls.on_close, {name: {"path": tmp_path / name} for name in workers})
        processes = [worker.process for worker in workers.values()]
    assert [process.returncode for process in processes if process] == [0, 0, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["h1", "h2", "s1"]


def test_a_busy_worker_is_not_waited_for(fabric: Fabric, tmp_path: Path) -> None:
    with Workers(fabric) as workers:
        with pytest.raises(WorkerTimeout):
            workers.call_all(calls.wait_for, {"h1": {"path": tmp_path / "never"}}, timeout=0.01)
        process = workers["h1"].process
    assert process
    assert process.returncode == -signal.SIGKILL


def test_affinity_binds_ranks_to_cpus(fabric: Fabric) -> None:
    available = sorted(os.sched_getaffinity(0))
    with Workers(fabric, affinity="rank") as workers:
        bound = workers.call_all(calls.cpus, list(workers))
    assert bound["h1"] == {available[0]}
    assert bound["h2"] == {available[1 % len(available)]}
    assert bound["s1"] == set(available)
    with Workers(fabric, affinity="one") as workers:
        bound = workers.call_all(calls.cpus, ["h1", "h2"])
    assert bound == {name: {available[0]} for name in ("h1", "h2")}
    text = "affinity: 'core' is unknown: must be one of none, rank, one"
    with pytest.raises(SpecError, match=text):
        Workers(fabric, affinity="core")  # type: ignore[arg-type]


def test_modules_are_imported_from_the_start(fabric: Fabric) -> None:
    with Workers(
        fabric, modules=["sched", "no.such.module", "tests.support.worker.calls"]
    ) as workers:
        assert workers.call_all(calls.loaded, list(workers), timeout=10.0) == dict.fromkeys(
            workers, True
        )


def test_workers_die_with_the_process_that_starts_them(workers: Workers) -> None:
    (forkserver,) = {
        Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[1]
        for worker in workers.values()
    }
    processes = [worker.process for worker in workers.values()]
    os.kill(int(forkserver), signal.SIGKILL)
    with pytest.raises(
        WorkerDied, match=r"worker (h1|h2|s1) was killed by signal 9 before its work was done"
    ):
        workers.check(timeout=10.0)
    assert [process.wait(10) for process in processes if process] == [-signal.SIGKILL] * 3


def test_a_process_that_cannot_start_workers_says_why(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.worker.forkserver.PROGRAM", "no.such.program")
    with (
        pytest.raises(
            FabricError, match=r"the process that starts workers ended with 1: .*no\.such"
        ),
        Workers(fabric),
    ):
        pass


def join(workers: Workers, name: str, node: str) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable,
        "-m",
        "testbed.worker",
        "--connect",
        str(workers.path),
        "--name",
        name,
    ]
    return workers.fabric.popen(node, command, track=f"test {name}")


def test_workers_that_others_start_may_join(workers: Workers) -> None:
    names = {"mpi1": "h1", "mpi2": "h2"}
    processes = [join(workers, name, node) for name, node in names.items()]
    workers.expect(names)
    described = workers.call_all(calls.describe, list(names))
    assert described["mpi2"][:3] == ("mpi2", "host", workers.fabric.plan.host("h2"))
    assert workers["mpi1"].pid == processes[0].pid
    workers.dismiss(names)
    assert [process.wait(10) for process in processes] == [0, 0]
    assert set(workers) == {"h1", "h2", "s1"}


def test_the_death_of_a_worker_that_joined_is_noticed(workers: Workers) -> None:
    process = join(workers, "mpi1", "h1")
    workers.expect({"mpi1": "h1"})
    process.kill()
    process.wait()
    with pytest.raises(WorkerDied, match="worker mpi1 ended before its work was done"):
        workers["h2"].call(calls.describe)


def test_expected_workers_that_do_not_come_are_named(workers: Workers) -> None:
    with pytest.raises(WorkerTimeout, match=r"workers mpi1, mpi2 did not connect in 0\.05 s"):
        workers.expect({"mpi1": "h1", "mpi2": "h2"}, timeout=0.05)
    assert set(workers) == {"h1", "h2", "s1"}
    with pytest.raises(SpecError, match="host: 'h9' is not in this fabric"):
        workers.expect({"mpi1": "h9"})
    with pytest.raises(SpecError, match="worker: 'h1' is there already"):
        workers.expect({"h1": "h1"})


def test_strangers_are_rejected(workers: Workers) -> None:
    process = join(workers, "stranger", "h1")
    with pytest.raises(
        FabricError, match=r"a worker has connected that was not expected: .*stranger"
    ):
        workers.expect({"mpi1": "h1"})
    assert process.wait(10) == 0
    assert workers["h1"].call(calls.remember, value=1) == 1


def test_a_fabric_has_at_most_one_set_of_workers(workers: Workers) -> None:
    with pytest.raises(FabricError, match="this fabric has workers already"):
        Workers(workers.fabric).__enter__()


def test_an_expected_death_is_returned_with_the_others_answers(
    workers: Workers, tmp_path: Path
) -> None:
    arguments = {
        "h1": {"directory": tmp_path, "names": ["h1"]},
        "h2": {"directory": tmp_path, "names": ["h2", "never"]},
    }
    threading.Timer(0.1, workers.kill, ["h2"]).start()  # either before or during the call
    answers = workers.call_all(calls.meet, arguments, errors="return")
    assert answers["h1"] is None
    assert isinstance(answers["h2"], WorkerDied)
    assert str(answers["h2"]) == "worker h2 was killed by signal 9 before its work was done"


def test_a_worker_may_die_half_way_through_an_answer(workers: Workers) -> None:
    workers.expect_death("h1")
    answers = workers.call_all(calls.die_half_way, ["h1"], errors="return", timeout=10)
    assert str(answers["h1"]) == "worker h1 was killed by signal 9 before its work was done"


def test_survivors_of_an_expected_death_go_on(workers: Workers) -> None:
    workers.kill("h2")
    workers.check()
    assert workers["h1"].call(calls.remember, value=1) == 1
    answers = workers.call_all(
        calls.remember, {"h2": {"value": 1}, "h1": {"value": 1}}, errors="return"
    )
    assert list(answers) == ["h2", "h1"]
    assert isinstance(answers["h2"], WorkerDied)
    assert answers["h1"] == 2
    with pytest.raises(
        WorkerDied, match="worker h2 was killed by signal 9 before its work was done"
    ):
        workers["h2"].call(calls.describe)
    os.kill(workers["h1"].pid, signal.SIGKILL)  # this one is not expected
    with pytest.raises(WorkerDied, match="worker h1"):
        workers.check(timeout=10.0)


def test_a_joined_worker_dies_with_its_node(workers: Workers) -> None:
    process = join(workers, "mpi1", "h1")
    workers.expect({"mpi1": "h1"})
    workers.kill("h1")
    assert process.wait(10) == -signal.SIGKILL
    assert workers["h2"].call(calls.remember, value=1) == 1
    assert {name for name, worker in workers.items() if worker.death} == {"h1", "mpi1"}


def test_the_death_of_a_stranger_cannot_be_expected(workers: Workers) -> None:
    with pytest.raises(SpecError, match="node: 'h9' has no worker: must be one of h1, h2, s1"):
        workers.kill("h9")
