"""However a run ends, it leaves nothing behind, and nothing else is touched."""

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.core.errors import FabricError
from testbed.datapath import set_datapath
from testbed.fabric import Fabric
from testbed.fabric.clean import clean
from testbed.fabric.state import State, StateFile, new_run_id
from testbed.host.cgroup import find_hierarchy
from testbed.plan import plan_fabric
from testbed.worker import Workers
from tests.support.fabric import helpers
from tests.support.fabric.helpers import namespaces, traces
from tests.support.tiers import broad
from tests.support.waiting import wait_until

pytestmark = pytest.mark.net
SCRIPTS = Path(helpers.__file__).parent


@contextlib.contextmanager
def controller(run_id: str, script: str = "controller.py") -> Iterator["subprocess.Popen[str]"]:
    """A controller that is up."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPTS / script), run_id],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


def namespaces_of(run_id: str) -> set[int]:
    holders = [
        entry.pid for entry in StateFile(run_id).read().processes if "namespaces" in entry.name
    ]
    assert len(holders) == 3
    return {os.stat(f"/proc/{pid}/ns/net").st_ino for pid in holders}


def gone(run_id: str, made: set[int]) -> None:
    """Fail if anything is left of a run."""
    assert traces(run_id) == []
    wait_until(lambda: not made & namespaces(but=run_id).keys())


def test_the_state_file_lists_all_processes() -> None:
    with Fabric(plan_fabric("star", 2, "bridge")) as fabric, Workers(fabric) as workers:
        state = fabric.state.read()
        assert state.controller.pid == os.getpid()
        assert state.controller.alive
        listed = {entry.name: entry.pid for entry in state.processes}
        holders = {f"namespaces of {name}": node.pid for name, node in fabric.nodes.items()}
        assert listed == holders | {
            f"worker {name}": worker.pid for name, worker in workers.items()
        }
        assert state.directories == [str(fabric.directory)]
        made = namespaces_of(fabric.run_id)
    gone(fabric.run_id, made)


def test_a_failure_while_building_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = Fabric(plan_fabric("star", 3, "bridge"))
    monkeypatch.setattr(
        "testbed.fabric.nodes.HOLDER", ["mnexec", "-n", "sh", "-c", "echo no room >&2", "sh"]
    )
    with pytest.raises(FabricError, match="the namespaces of h1 did not come up: no room"), fabric:
        pass
    assert traces(fabric.run_id) == []


def test_an_interrupt_right_after_the_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt comes between the creation of the state file and the registration of its
    removal.
    """
    fabric = Fabric(plan_fabric("star", 2))
    create = fabric.state.create

    def create_and_interrupt(state: State) -> None:
        create(state)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(fabric.state, "create", create_and_interrupt)
    with pytest.raises(KeyboardInterrupt), fabric:
        pytest.fail("it was not interrupted")
    assert traces(fabric.run_id) == []


def test_a_run_id_cannot_be_reused_while_its_run_is_up() -> None:
    with Fabric(plan_fabric("star", 1, "bridge")) as fabric:
        with pytest.raises(FabricError, match=f"run id: '{fabric.run_id}' is taken"):
            Fabric(plan_fabric("star", 1), fabric.run_id).__enter__()
        assert fabric.run("h1", ["true"]).returncode == 0
    with Fabric(plan_fabric("star", 1, "bridge"), fabric.run_id) as again:
        assert again.run("h1", ["true"]).returncode == 0


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_a_signal_takes_the_fabric_down(number: signal.Signals, status: int) -> None:
    run_id = new_run_id()
    with controller(run_id) as process:
        made = namespaces_of(run_id)
        assert made <= namespaces().keys()
        process.send_signal(number)
        assert process.wait(10) == status
        gone(run_id, made)


def test_a_dead_worker_takes_the_fabric_down() -> None:
    run_id = new_run_id()
    with controller(run_id) as process:
        made = namespaces_of(run_id)
        victim = next(
            entry for entry in StateFile(run_id).read().processes if entry.name == "worker h2"
        )
        os.kill(victim.pid, signal.SIGKILL)
        _, said = process.communicate(timeout=10)
        assert process.returncode == 1
        assert "WorkerDied: worker h2 was killed by signal 9 before its work was done" in said
        gone(run_id, made)


@pytest.fixture
def foreign_network(tmp_path: Path) -> Iterator[set[str]]:
    """A namespace, a veth pair and a process that belong to no run."""
    name = f"foreign{os.getpid()}"
    ends = f"fo{os.getpid()}a", f"fo{os.getpid()}b"
    subprocess.run(["ip", "netns", "add", name], check=True)
    subprocess.run(
        ["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]], check=True
    )
    sleeper = subprocess.Popen(["ip", "netns", "exec", name, "sleep", "1000"])
    try:
        yield {
            f"/run/netns/{name}",
            *(f"/sys/class/net/{end}" for end in ends),
            f"/proc/{sleeper.pid}/exe",
        }
    finally:
        sleeper.kill()
        sleeper.wait()
        subprocess.run(["ip", "link", "delete", ends[0]], check=True)
        subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.mark.usefixtures("only_cleaner")
def test_clean_removes_what_a_killed_controller_left_and_nothing_else(
    foreign_network: set[str],
) -> None:
    run_id = new_run_id()
    with Fabric(plan_fabric("star", 2, "bridge")) as bystander, controller(run_id) as process:
        made = namespaces_of(run_id)
        entries = {entry.name: entry for entry in StateFile(run_id).read().processes}
        # Most of a run dies with its controller, but a stopped process does not: it is left for
        # clean.
        os.kill(entries["namespaces of h2"].pid, signal.SIGSTOP)
        process.kill()
        process.wait()
        wait_until(lambda: not entries["worker h1"].alive)
        assert entries["namespaces of h2"].alive
        assert entries["a user's command"].alive

        left = {item.run_id: item for item in clean()}

        assert bystander.run_id not in left
        assert left[run_id].error is None
        assert f"namespaces of h2 ({entries['namespaces of h2'].pid})" in left[run_id].processes
        # The user's command and its child, which is not listed but has the run's id in its
        # environment.
        assert sum("sleep" in name or "user's" in name for name in left[run_id].processes) == 2
        assert left[run_id].files == [f"/run/testbed/{run_id}", f"/run/testbed/{run_id}.json"]
        gone(run_id, made)
        for path in foreign_network:
            assert os.path.exists(path), f"{path} was removed"
        assert bystander.run("h1", ["ping", "-c", "1", "-W", "2", "h2"]).returncode == 0
        assert run_id not in {item.run_id for item in clean()}


@pytest.mark.parametrize("seed", broad(range(int(os.environ.get("TESTBED_KILLS", "4")))))
@pytest.mark.usefixtures("only_cleaner")
def test_clean_removes_what_is_left_of_faults_in_force(seed: int) -> None:
    """The controller is killed at a random moment, determined by the seed; ``TESTBED_KILLS=20``
    tries more moments.
    """
    run_id = new_run_id()
    with controller(run_id, "faulty_controller.py") as process:
        made = {
            os.stat(f"/proc/{entry.pid}/ns/net").st_ino
            for entry in StateFile(run_id).read().processes
        }
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(random.Random(seed).uniform(0.0, 1.5))
        assert process.poll() is None, process.stderr and process.stderr.read()
        process.kill()
        process.wait()
        (left,) = [item for item in clean() if item.run_id == run_id]
        assert left.error is None
        gone(run_id, made)
        hierarchy = find_hierarchy()
        assert not hierarchy or not list(hierarchy.root.glob(f"testbed.{run_id}.*"))
    with Fabric(plan_fabric("star", 3)) as fabric, Workers(fabric):
        set_datapath(fabric, "xdp")
        assert fabric.run("h1", ["ping", "-c", "1", "-W", "2", "h2"]).returncode == 0
