"""Events on real hosts: each is in force from its start to its end, and is undone however the block
is left.
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import testbed.faults.timeline
from testbed.core.errors import FabricError, SpecError, WorkerDied
from testbed.datapath import set_datapath
from testbed.fabric import Fabric
from testbed.faults.events import Kill, LinkDown, Partition, Pause, Slow
from testbed.faults.injector import Injector
from testbed.faults.link import link_down
from testbed.faults.partition import Blockade, partition
from testbed.faults.processes import duty_cycle, kill, paused, processes_in, slow
from testbed.faults.spec import parse_fault, rules_of
from testbed.faults.timeline import Timeline
from testbed.host.cgroup import CpuGroup, find_hierarchy, remove_groups
from testbed.plan import plan_fabric
from testbed.soak.holdings import Holdings
from testbed.worker import Workers
from tests.support.faults import event_calls
from tests.support.tiers import broad
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.net, pytest.mark.fabric(hosts=3)]

DATAPATHS = broad(
    pytest.param(datapath, marks=pytest.mark.fabric(datapath=datapath))
    for datapath in ("xdp", "sockets")
)


def reaches(fabric: Fabric, source: str, target: str, within: float = 10.0) -> bool:
    ping = ["ping", "-q", "-c", "1", "-W", str(within), target]
    return fabric.run(source, ping).returncode == 0


def is_cut_off(fabric: Fabric, source: str, target: str) -> bool:
    return not reaches(fabric, source, target, within=0.2)


def states(fabric: Fabric, host: str) -> set[str]:
    """States of a host's processes (proc_pid_stat(5), field 3)."""
    found = set()
    for pid in processes_in(fabric, host):
        found.add(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
    return found


@pytest.mark.parametrize("datapath", DATAPATHS)
def test_a_link_that_is_down_carries_nothing_and_comes_back_as_it_was(
    fabric: Fabric, workers: Workers, datapath: str
) -> None:
    table = fabric.run("s1", ["bridge", "fdb", "show"]).stdout
    programs = fabric.run("s1", ["ip", "-o", "link"]).stdout.count("xdp")
    assert (programs > 0) == (datapath == "xdp")
    assert reaches(fabric, "h1", "h2")
    with link_down(fabric, "h2"):
        assert is_cut_off(fabric, "h1", "h2")
        assert is_cut_off(fabric, "h2", "h3")
        assert reaches(fabric, "h1", "h3")
    assert reaches(fabric, "h1", "h2")  # with the first frame: none is lost after the end
    assert reaches(fabric, "h2", "h3")
    assert sorted(fabric.run("s1", ["bridge", "fdb", "show"]).stdout.splitlines()) == sorted(
        table.splitlines()
    )
    assert fabric.run("s1", ["ip", "-o", "link"]).stdout.count("xdp") == programs


@pytest.mark.parametrize("datapath", DATAPATHS)
def test_sets_are_cut_off_from_each_other(fabric: Fabric, workers: Workers, datapath: str) -> None:
    with (
        pytest.raises(FabricError, match="a partition is done by the fault programs"),
        partition(fabric, [["h1"], ["h2"]]),
    ):
        pass
    with Injector(fabric) as injector:
        with partition(fabric, [["h1"], ["h2", "h3"]]):
            assert is_cut_off(fabric, "h1", "h2")
            assert is_cut_off(fabric, "h3", "h1")
            assert reaches(fabric, "h2", "h3")
            with partition(fabric, [["h1"], ["h2"]]):
                pass
            assert is_cut_off(fabric, "h1", "h2")  # the outer one is still in force
        assert reaches(fabric, "h1", "h2")
        blocked = injector.links()["blocked"]
        assert blocked[0, 1] > 0
        assert blocked[1, 2] == 0
        with (
            pytest.raises(SpecError, match=r"partition: h1\|h1,h2: must name each host once"),
            partition(fabric, [["h1"], ["h1", "h2"]]),
        ):
            pass
        events = [
            Partition.model_validate({"sets": "h1|h2", "for": 0.1}),
            Partition.model_validate({"sets": "h1|h3"}),
        ]
        before = Holdings.of(os.getpid())
        with Blockade(fabric) as blockade:
            with pytest.raises(
                SpecError, match="partition of h1 at 0 s and partition at 0 s are in force at once"
            ):
                Timeline(fabric, workers, events, blockade)
            with Timeline(fabric, workers, events[1:], blockade) as timeline:
                wait_until(lambda: len(timeline.log()) == 1)
                assert is_cut_off(fabric, "h1", "h3")
        assert reaches(fabric, "h1", "h3")
        assert Holdings.of(os.getpid()).descriptors <= before.descriptors, (
            "of its maps nothing is held any more"
        )
    with pytest.raises(ValueError, match="a partition needs a blockade"):
        Timeline(fabric, workers, events[1:])


@pytest.mark.fabric(datapath="xdp")
@pytest.mark.deep
def test_events_do_not_affect_other_fabrics(fabric: Fabric, workers: Workers) -> None:
    """Even with the same addresses and names, because each run has hosts, processes, control groups
    and programs of its own.
    """
    drop, slowly = parse_fault("drop"), Slow.model_validate({"hosts": "h1", "share": 0.5})
    with Fabric(plan_fabric("star", 3, "xdp")) as other, Workers(other) as their_workers:
        assert [host.ip for host in other.plan.hosts] == [host.ip for host in fabric.plan.hosts]
        set_datapath(other, "xdp")
        with (
            Injector(fabric, rules_of([drop])),
            Injector(other) as theirs,
            link_down(fabric, "h2"),
            paused(fabric, "h3"),
        ):
            assert is_cut_off(fabric, "h1", "h3")
            assert "T" not in states(other, "h3")
            assert reaches(other, "h1", "h2")
            assert reaches(other, "h3", "h1")
            assert theirs.counters() == {}
            # A request and a reply of each ping, and no frame of the other fabric.
            assert theirs.frames() == 4
            with (
                Timeline(fabric, workers, [slowly]) as ours,
                Timeline(other, their_workers, [slowly]) as yours,
            ):
                wait_until(lambda: len(ours.log()) == len(yours.log()) == 1)


def test_a_paused_host_stands_still(fabric: Fabric, workers: Workers) -> None:
    child = fabric.popen("h3", ["sleep", "100"], track="a sleeper")
    with paused(fabric, "h3"):
        assert {workers["h3"].pid, child.pid} <= set(processes_in(fabric, "h3"))
        assert fabric.hosts["h3"].pid not in processes_in(fabric, "h3")
        assert states(fabric, "h3") == {"T"}
        assert "T" not in states(fabric, "h2")
        assert workers["h1"].call(event_calls.spin, seconds=0.0) >= 0
    assert "T" not in states(fabric, "h3")
    assert workers["h3"].call(event_calls.spin, seconds=0.0) >= 0
    child.kill()
    child.wait()


@pytest.mark.alone
def test_a_slow_host_gets_its_share(fabric: Fabric, workers: Workers) -> None:
    with slow(fabric, "h2", share=0.1) as how:
        held = workers["h2"].call(event_calls.spin, seconds=0.5)
    assert how == ("cgroup" if find_hierarchy() else "signals")
    assert held < 0.15  # of a CPU: its share and one period of the scheduler
    assert not list(remove_groups(fabric.run_id))  # nor any limit, then
    assert "T" not in states(fabric, "h2")


def test_a_host_stops_and_continues_in_turns(fabric: Fabric, workers: Workers) -> None:
    with duty_cycle(fabric, "h2", 0.5):
        for _ in range(3):
            wait_until(lambda: states(fabric, "h2") == {"T"})
            wait_until(lambda: "T" not in states(fabric, "h2"))
    assert "T" not in states(fabric, "h2")


@pytest.mark.parametrize("share", [0.0, 0.001, 1.5])
def test_a_share_is_a_fraction_of_a_cpu(fabric: Fabric, share: float) -> None:
    with (
        pytest.raises(SpecError, match=rf"share = {share}: must be a number from 0.01 to 1"),
        slow(fabric, "h1", share),
    ):
        pass


@pytest.mark.skipif(find_hierarchy() is None, reason="no control group may be made here")
def test_a_control_group_left_behind_is_found_by_its_name(fabric: Fabric) -> None:
    hierarchy = find_hierarchy()
    assert hierarchy
    group = CpuGroup(hierarchy, fabric.run_id, "h1", 0.5)
    process = subprocess.Popen(["sleep", "100"])
    group.add([process.pid])
    assert list(remove_groups(fabric.run_id)) == [group.path]
    assert not group.path.exists()
    assert process.poll() is None
    process.kill()
    process.wait()


def test_a_timeline_applies_and_undoes_events(fabric: Fabric, workers: Workers) -> None:
    events = [
        LinkDown.model_validate({"at": 0.1, "for": 0.1, "hosts": "h2"}),
        Pause.model_validate({"at": 0.05, "for": 0.1, "hosts": "h3"}),
        Slow.model_validate({"hosts": "h1", "share": 0.5}),
    ]
    with Timeline(fabric, workers, events) as timeline:
        wait_until(lambda: sum(entry.ended is not None for entry in timeline.log()) == 2)
        assert timeline.log()[0].ended is None
        assert reaches(fabric, "h1", "h2")
    log = timeline.log()
    assert [entry.number for entry in log] == [2, 1, 0]
    for entry in log:
        assert entry.begun >= timeline.started + entry.event.at
        assert entry.ended
        assert entry.ended >= timeline.started + (entry.event.end or 0)
    assert "T" not in states(fabric, "h3")
    assert not list(remove_groups(fabric.run_id))


def test_leaving_early_undoes_events_in_force_and_starts_no_more(
    fabric: Fabric, workers: Workers
) -> None:
    events = [LinkDown(hosts="h2"), Pause(hosts="h3"), Pause(at=3600, hosts="h1")]  # type: ignore[arg-type]
    with contextlib.suppress(ZeroDivisionError), Timeline(fabric, workers, events) as timeline:
        wait_until(lambda: len(timeline.log()) == 2)
        assert states(fabric, "h3") == {"T"}
        raise ZeroDivisionError
    assert [entry.number for entry in timeline.log()] == [0, 1]
    assert all(entry.ended for entry in timeline.log())
    assert "T" not in states(fabric, "h3")
    assert reaches(fabric, "h1", "h2")


def test_an_interrupt_while_the_first_events_happen_undoes_them(
    fabric: Fabric, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main thread waits for the second event when it is interrupted."""
    arrived = threading.Event()

    def interrupt(*_: object) -> None:
        arrived.set()
        raise KeyboardInterrupt

    @contextlib.contextmanager
    def interrupted(*arguments: Any) -> Iterator[None]:
        with paused(*arguments):
            os.kill(os.getpid(), signal.SIGINT)
            arrived.wait(60)
            yield

    monkeypatch.setattr(testbed.faults.timeline, "paused", interrupted)
    timeline = Timeline(fabric, workers, [Pause(hosts="h3"), Slow(hosts="h1", share=0.5)])  # type: ignore[arg-type]
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), timeline:
            pytest.fail("it was not interrupted")
    finally:
        signal.signal(signal.SIGINT, before)
    assert "timeline" not in [thread.name for thread in threading.enumerate()]
    assert "T" not in states(fabric, "h3")
    assert not list(remove_groups(fabric.run_id))


@pytest.mark.skipif(find_hierarchy() is None, reason="no control group may be made here")
def test_a_fabric_removes_control_groups_left_behind() -> None:
    hierarchy = find_hierarchy()
    assert hierarchy
    with Fabric(plan_fabric("star", 1, "bridge")) as fabric:
        group = CpuGroup(hierarchy, fabric.run_id, "h1", 0.5)
        sleeper = fabric.popen("h1", ["sleep", "1000"], track="sleeper")
        group.add([sleeper.pid])
    sleeper.wait(10)
    assert not group.path.exists()


def test_a_worker_killed_on_time_is_returned(
    fabric: Fabric, workers: Workers, tmp_path: Path
) -> None:
    with Timeline(fabric, workers, [Kill(at=0.1, hosts="h2")]) as timeline:  # type: ignore[arg-type]
        answers = workers.call_all(
            event_calls.spin, {"h1": {"seconds": 0.3}, "h2": {"seconds": 60.0}}, errors="return"
        )
    assert isinstance(answers["h2"], WorkerDied)
    assert answers["h1"] > 0
    (entry,) = timeline.log()
    assert entry.ended is None  # a death has no end


def test_events_of_unknown_hosts_are_refused(fabric: Fabric, workers: Workers) -> None:
    with pytest.raises(SpecError, match="host: 'h9' is not in this fabric; hosts are h1, h2, h3"):
        Timeline(fabric, workers, [Pause(hosts="h9")])  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="host: 's1' is not in this fabric; hosts are h1, h2, h3"):
        kill(workers, "s1")
