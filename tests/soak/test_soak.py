"""A soak on real fabrics: scenarios that pass are counted; one that fails stops the soak, is kept,
and can be replayed.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from testbed.collectives.registry import BACKENDS
from testbed.comm.options import CollectiveOptions
from testbed.core.errors import TestbedError
from testbed.exchange.options import ExchangeOptions
from testbed.fabric.state import ROOT
from testbed.soak import soak
from testbed.soak.draw import draw
from testbed.soak.harness import PATIENCE, Harness, Phase
from testbed.soak.report import Coverage
from testbed.soak.scenario import Exchange, Group, Scenario, Shape, Summand
from testbed.soak.soak import leftovers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.net

SHAPE = Shape(3, "star", None, "xdp", 1500)
TERMS = CollectiveOptions(lanes="int16", reorder_threshold=16)
GROUP = Group((0, 1, 2), TERMS, (Summand(1000, 0), Summand(20_000, 3), Summand(1000, -4)))
SCENARIO = Scenario(1, 0, SHAPE, "xdp-ring", (GROUP,), faults=(), ending="whole", timeout=10.0)
EXCHANGE = Exchange(
    (2, 0, 1),
    ExchangeOptions(lanes="int16", window=8, processing="spread"),
    "weighted",
    64,
    200,
    1500,
    30,
    False,
    (0, 3),
    times=2,
)
COMMAND = [sys.executable, "-c", "from testbed.cli import main; main()", "soak"]


@pytest.fixture
def play(monkeypatch, tmp_path):
    """Play scenarios that were not drawn."""

    def run(*scenarios):
        monkeypatch.setattr(
            soak, "draw", lambda seed, number: replace(scenarios[number], number=number)
        )
        coverage = Coverage()
        for report in soak.Soak(1, time.monotonic(), range(len(scenarios)), tmp_path).run():
            coverage.add(report)
        return coverage

    return run


def test_only_scenarios_with_what_is_asked_for_are_played(monkeypatch, tmp_path) -> None:
    clones = replace(EXCHANGE, terms=ExchangeOptions(broadcast="tc"))
    both = replace(SCENARIO, exchanges=(clones,))
    scenarios = [SCENARIO, both, replace(both, groups=())]
    assert [sorted(each.ways) for each in scenarios] == [["xdp-ring"], ["tc", "xdp-ring"], ["tc"]]
    for ways, expected in (
        ((), [0, 1, 2]),
        (["tc"], [1, 2]),
        (["tokens"], []),
        (["tc", "xdp-ring"], [0, 1, 2]),
    ):
        monkeypatch.setattr(soak, "draw", lambda seed, number: scenarios[number])
        monkeypatch.setattr(soak.Soak, "_play", lambda self, scenario: scenario)
        played = list(soak.Soak(1, 0, range(3), tmp_path, ways).run())
        assert played == [scenarios[number] for number in expected]


@pytest.mark.timeout(600)  # nine scenarios on two fabrics: a busy machine may take minutes
@pytest.mark.alone
def test_scenarios_of_every_kind_pass(play):
    """A collective sends more than 100 frames, and a rule for one in five spares all of them once
    in 10^10 times.
    """
    pair = tuple(
        replace(GROUP, members=members, terms=CollectiveOptions(reorder_threshold=16))
        for members in ((3, 0), (2, 1))
    )
    both = replace(
        SCENARIO,
        exchanges=(
            EXCHANGE,
            replace(
                EXCHANGE,
                members=(1, 2),
                terms=ExchangeOptions(window=8, processing="spread"),
                aggregation="max",
            ),
        ),
    )
    coverage = play(
        replace(
            SCENARIO,
            faults=(
                "drop p=0.2",
                "corrupt p=0.2 bits=3",
                "duplicate p=0.2",
                "limit hosts=h1 rate=1000mbit",
            ),
        ),
        replace(
            SCENARIO, faults=("pause hosts=h2 for=50ms", "delay p=0.2 delay=300us jitter=100us")
        ),
        replace(both, faults=("flood switches=s1", "drop p=0.2"), strays=2000),
        replace(
            both,
            groups=(),
            exchanges=(replace(EXCHANGE, rounds=3, times=1),),
            faults=("duplicate p=0.2",),
        ),
        replace(SCENARIO, groups=(replace(GROUP, rounds=5, times=3),), strays=2000),
        replace(both, faults=("partition sets=h1|h2,h3",), ending="cut", timeout=3.0),
        replace(both, faults=("kill hosts=h3",), ending="kill", timeout=3.0),
        replace(
            SCENARIO,
            shape=replace(SHAPE, hosts=4, switch="bridge"),
            groups=pair,
            faults=("flood switches=s1", "drop p=0.2"),
            strays=2000,
        ),
        replace(SCENARIO, killed_after=2.0),
    )
    assert coverage.scenarios == {"xdp-ring": 5, "xdp-ring and pinch": 3, "pinch": 1}
    assert coverage.fired.keys() >= {
        "drop",
        "corrupt",
        "duplicate",
        "pause",
        "delay",
        "partition",
        "kill",
        "flood",
        "strays",
    }
    assert coverage.records > 0
    # The kill leaves two ranks, with three all-reduces each; brief groups have five times three
    # times three.
    assert coverage.collectives["all-reduces"] >= 3 + 3 + 3 + 3 + 3 + 6 + 45
    assert coverage.collectives["aggregations"] >= 2 * 4 + 6 + 2 * 4 + 4


def imported(context, module):
    return module in sys.modules


@pytest.mark.parametrize("backend", ["gloo", "tcp-ring"])
@pytest.mark.deep
def test_workers_start_with_the_backend_imported(play, monkeypatch, backend):
    """Otherwise each of them would take seconds to import some backends, all at once, while their
    time to open runs.
    """
    born, open_ = [], Phase.open

    def look_and_open(phase):
        workers = phase.harness.workers
        module = BACKENDS[phase.scenario.backend].module
        born.append({workers[name].call(imported, module=module) for name in phase.names})
        open_(phase)

    monkeypatch.setattr(Phase, "open", look_and_open)
    other = replace(SCENARIO, backend=backend, faults=("drop p=0.01",))
    play(SCENARIO, other, SCENARIO)
    assert born == [{True}] * 3


@pytest.mark.deep
def test_a_host_may_die_when_its_work_is_done(play, monkeypatch):
    work = Phase.work

    def work_and_die(phase):
        work(phase)
        if phase.scenario.ending == "kill":
            phase.harness.workers.kill("h3")

    monkeypatch.setattr(Phase, "work", work_and_die)
    coverage = play(replace(SCENARIO, faults=("kill hosts=h3 at=60s",), ending="kill"))
    assert coverage.collectives == {"all-reduces": 3 + 3}, (
        "of three ranks, and of the two that are left"
    )


@pytest.mark.deep
def test_a_host_whose_work_is_over_before_it_is_to_die_closes(play):
    """Both scenarios use one fabric: resources that the host still holds after the first would be a
    finding of the second.
    """
    coverage = play(SCENARIO, replace(SCENARIO, faults=("kill hosts=h2 at=3600s",), ending="kill"))
    assert coverage.scenarios.total() == 2


@pytest.mark.deep
def test_many_ranks_under_loss_and_a_link_that_goes_down(tmp_path):
    """A chunk that its owner sends again must survive 14 hops each time, even while one link is
    down.
    """
    shape = Shape(14, "leaf-spine", 1, "xdp", 1000)
    members = 10, 3, 13, 2, 0, 4, 8, 1, 9, 12, 6, 7, 5, 11
    sums = (Summand(2, 0), Summand(6, 0), Summand(19_415, 0))
    faults = (
        "drop p=0.020587 link=h6->h9 chunk=0..31",
        "drop p=0.163755",
        "link-down hosts=h7 at=348us for=96ms",
    )
    group = Group(
        members,
        CollectiveOptions(window=64, recovery="origin", reorder_threshold=16),
        sums,
        times=13,
    )
    scenario = Scenario(918273, 112, shape, "xdp-ring", (group,), faults, "whole", timeout=10.0)
    with Harness(shape) as harness:
        report = harness.play(scenario)
    assert report.collectives == {"all-reduces": 39}
    assert report.results == 39 * len(members), "each of them compared, bit for bit"
    assert report.given_up == 0
    assert report.fired.keys() == {"drop", "link-down"}
    assert report.seconds < PATIENCE
    assert not leftovers(harness.fabric.run_id)


@pytest.mark.deep
def test_a_scenario_that_fails_stops_the_soak(play, tmp_path):
    hopeless = replace(SCENARIO, faults=("drop p=1 kind=result attempt=0..65535",), timeout=3.0)
    with pytest.raises(TestbedError) as caught:
        play(SCENARIO, hopeless, SCENARIO)
    what, why, kept, again = str(caught.value).splitlines()
    assert what.startswith(
        "scenario 1: xdp-ring, 3 hosts, star, switch xdp, mtu 1500; ranks 0,1,2 (int16, window 8,"
        " upstream"
    )
    assert re.match(
        r"group 0: h\d gave up, but nothing lasting was in its way: rank \d \(h\d\): .* 3 s", why
    )
    assert kept == f"kept: {tmp_path}/soak-1-1"
    assert again == "again: testbed soak --seed 1 --only 1"
    folder = tmp_path / "soak-1-1"
    assert json.loads((folder / "scenario.json").read_text())["faults"] == [
        "drop p=1 kind=result attempt=0..65535"
    ]
    assert "gave up" in (folder / "error.txt").read_text()
    assert {path.name for path in folder.iterdir()} > {"h1.log", "s1.log"}


def leak_in(context):
    context.resources.callback(
        lambda descriptors: [os.close(one) for one in descriptors], os.pipe()
    )


@pytest.mark.deep
def test_resources_that_a_worker_keeps_are_a_finding(play, monkeypatch):
    close = Phase.close

    def close_and_leak(phase, report):
        close(phase, report)
        if phase.scenario.number == 1:
            phase.harness.workers["h2"].call(leak_in)

    monkeypatch.setattr(Phase, "close", close_and_leak)
    with pytest.raises(TestbedError, match=r"^scenario 1: .*\nh2 goes on holding 2 pipe\n"):
        play(SCENARIO, SCENARIO)


@pytest.mark.deep
def test_resources_that_the_controller_keeps_are_a_finding(play, monkeypatch):
    exit_, held = Harness.__exit__, []

    def exit_and_leak(harness, *details):
        exit_(harness, *details)
        held.extend(os.pipe())

    monkeypatch.setattr(Harness, "__exit__", exit_and_leak)
    try:
        with pytest.raises(
            TestbedError,
            match=r"after a fabric of .*mtu=1000\) the controller goes on holding 2 pipe",
        ):
            play(SCENARIO, replace(SCENARIO, shape=replace(SHAPE, mtu=1000)), SCENARIO)
    finally:
        for one in held:
            os.close(one)


def test_a_controller_that_ends_by_itself_is_a_finding(play):
    with pytest.raises(
        TestbedError, match="the controller that was to be killed ended by itself, with status 1"
    ):
        play(replace(SCENARIO, killed_after=60.0, seed=-1))


def states() -> Iterator[str]:
    """State files of all fabrics on this machine; those of other runs come and go."""
    for path in ROOT.glob("[!.]*.json"):
        with suppress(FileNotFoundError):
            yield path.read_text()


def test_an_interrupt_ends_the_soak_with_the_summary(tmp_path):
    process = subprocess.Popen(
        [*COMMAND, "--minutes", "5", "--keep", str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with process:
        wait_until(lambda: any(f'"pid": {process.pid},' in text for text in states()), 60.0)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.startswith("scenarios  ")


@pytest.mark.deep
def test_the_command_plays_one_scenario_and_writes_json(tmp_path):
    path = tmp_path / "soak.json"
    number = next(
        n
        for n in range(1000)
        if draw(1, n).shape.hosts == 2
        and draw(1, n).ending == "whole"
        and draw(1, n).backend == "xdp-ring"
        and draw(1, n).killed_after is None
    )
    done = subprocess.run(
        [*COMMAND, "--only", str(number), "--markdown", "--out", str(path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "| scenarios | 1 (xdp-ring 1) |" in done.stdout
    assert json.loads(path.read_text())["scenarios"] == {"xdp-ring": 1}
