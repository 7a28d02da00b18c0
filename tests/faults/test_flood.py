"""Switches that have lost their tables, on real hosts: which hosts receive which frames, how often,
for how long, and the effect on faults.
"""

import itertools
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from testbed.core.errors import SpecError
from testbed.datapath import set_datapath
from testbed.fabric import Fabric
from testbed.faults.copies import Walk
from testbed.faults.events import Event
from testbed.faults.fate import judge
from testbed.faults.flood import flooded
from testbed.faults.identity import KINDS, Packet
from testbed.faults.injector import Injector
from testbed.faults.spec import events_of, parse_fault
from testbed.faults.timeline import Timeline
from testbed.plan import Datapath, plan_fabric
from testbed.testing.leftovers import traces
from testbed.worker import Workers
from tests.support.faults import flood_calls as calls
from tests.support.kept import kept
from tests.support.rules import parse_rule
from tests.support.tiers import broad
from tests.support.waiting import wait_until

pytestmark = pytest.mark.net

WAYS: list[tuple[str, Datapath]] = [
    ("xdp", "xdp"),
    ("xdp", "sockets"),
    ("bridge", "xdp"),
    ("bridge", "sockets"),
]
MODULES = ("tests.support.faults.flood_calls", "testbed.faults.attach")
FRAMES = 200

Heard = dict[str, "Counter[tuple[str, str, int]]"]


def events(*texts: str) -> list[Event]:
    return events_of(map(parse_fault, texts))


@pytest.fixture(scope="module", params=broad([(way,) for way in WAYS]), ids="-".join)
def star(request: pytest.FixtureRequest) -> Iterator[tuple[Fabric, Workers]]:
    switch, datapath = request.param
    with (
        Fabric(plan_fabric("star", 3, switch)) as fabric,
        Workers(fabric, modules=MODULES) as workers,
    ):
        set_datapath(fabric, datapath)
        workers.call_all(calls.hear, list(fabric.hosts))
        yield fabric, workers


def hear_anew(workers: Workers, names: list[str]) -> None:
    """Forget what has arrived so far."""
    workers.call_all(forget, names)


def forget(context: Any) -> None:
    calls.heard(context, 0)
    kept(context)["heard"].clear()
    calls.taken(context)


def all_heard(workers: Workers, expected: dict[str, int]) -> Heard:
    """What hosts have heard, once they have heard as much as expected and all frames in flight have
    arrived.
    """
    workers.call_all(calls.heard, {name: {"least": least} for name, least in expected.items()})
    fabric = workers.fabric
    for one, other in itertools.permutations(expected, 2):
        assert fabric.run(one, ["ping", "-q", "-c", "1", "-W", "5", other]).returncode == 0
    return workers.call_all(calls.heard, {name: {"least": 0} for name in expected})


def ports_and_table(fabric: Fabric, switch: str) -> list[str]:
    """The ports and the table by which the bridge forwards."""
    ports = json.loads(
        fabric.run(switch, ["bridge", "-json", "-details", "link"], check=True).stdout
    )
    table = fabric.run(switch, ["bridge", "fdb", "show"], check=True).stdout.splitlines()
    keys = ("ifname", "flood", "mcast_flood", "bcast_flood")
    return sorted([*table, *(" ".join(str(port[key]) for key in keys) for port in ports)])


#: By switches that flood: who hears what is not for them. Frames that only pass a switch are heard
#: by its hosts, too, so in a ring that depends on which way around frames go.
FABRICS: list[tuple[str, int, dict[str, str]]] = [
    ("star", 3, {"s1": "h1 h2 h3"}),
    ("ring", 4, {"s1": "h1", "s2": "", "s1,s4": "h1 h4"}),
    ("ring", 2, {"s1,s2": ""}),
    (
        "leaf-spine",
        5,
        {"leaf1": "h1 h2 h3", "leaf1,leaf2": "h1 h2 h3 h4 h5", "spine1": "", "spine1,spine2": ""},
    ),
]


@pytest.mark.parametrize("switch", broad(["xdp", "bridge"]))
@pytest.mark.parametrize(("topology", "hosts", "floods"), broad(FABRICS, 2))
def test_hosts_hear_frames_for_others_as_often_as_predicted_and_only_during_the_flood(
    topology: str, hosts: int, floods: dict[str, str], switch: str
) -> None:
    """Every host sends to all others, on both datapaths; arriving frames are counted one by one,
    whatever their destination.
    """
    plan = plan_fabric(topology, hosts, switch)
    names = [host.name for host in plan.hosts]
    pairs = list(itertools.permutations(names, 2))
    numbers = range(10)

    def check(workers: Workers, switches: Collection[str]) -> Heard:
        hear_anew(workers, names)
        sent = {
            name: {"receivers": [other for other in names if other != name], "numbers": numbers}
            for name in names
        }
        workers.call_all(calls.send, sent)
        expected: Heard = {name: Counter() for name in names}
        for sender, receiver in pairs:
            for name, copies in (
                Walk(plan, switches, plan.host(receiver).mac).copies(sender).items()
            ):
                expected[name].update({(sender, receiver, number): copies for number in numbers})
        found = all_heard(workers, {name: counted.total() for name, counted in expected.items()})
        assert found == expected
        return found

    with Fabric(plan) as fabric, Workers(fabric, modules=MODULES) as workers:
        workers.call_all(calls.hear, names)
        before = {name: ports_and_table(fabric, name) for name in fabric.switches}
        for datapath in ("xdp", "sockets"):
            set_datapath(fabric, datapath)  # type: ignore[arg-type]
            check(workers, ())
            for switches, hearing in floods.items():
                with Timeline(fabric, workers, events(f"flood switches={switches}")) as timeline:
                    assert fabric.floods == set(switches.split(","))
                    found = check(workers, fabric.floods)
                others = {
                    name
                    for name, counted in found.items()
                    for _, receiver, _ in counted
                    if receiver != name
                }
                assert others == set(hearing.split())
                (entry,) = timeline.log()
                assert entry.ended
                check(workers, ())
                assert {name: ports_and_table(fabric, name) for name in fabric.switches} == before
        assert fabric.floods == frozenset()


def test_the_stack_accepts_only_frames_for_its_host(star: tuple[Fabric, Workers]) -> None:
    fabric, workers = star
    hear_anew(workers, list(fabric.hosts))
    with flooded(fabric, "s1"):
        workers["h1"].call(calls.send, receivers=["h2"], numbers=range(FRAMES))
        found = all_heard(workers, {"h1": 0, "h2": FRAMES, "h3": FRAMES})
    assert found["h3"] == found["h2"] == {("h1", "h2", number): 1 for number in range(FRAMES)}
    assert not found["h1"]
    assert workers["h2"].call(calls.taken) == list(range(FRAMES))
    assert workers["h3"].call(calls.taken) == []


def received(fabric: Fabric, host: str) -> int:
    """The number of frames that a host has received."""
    for line in Path(f"/proc/{fabric.hosts[host].pid}/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "eth0":
            return int(numbers.split()[1])
    raise AssertionError("eth0 is gone")


def wait_for_frames(fabric: Fabric, host: str) -> None:
    """Wait until a host has received five more frames."""
    enough = received(fabric, host) + 5
    wait_until(lambda: received(fabric, host) >= enough)


def test_nothing_is_lost_or_doubled_as_tables_come_and_go(star: tuple[Fabric, Workers]) -> None:
    """A host sends while the switch loses its table twenty times and gets it back; the third host
    hears some of the frames.
    """
    fabric, workers = star
    hear_anew(workers, list(fabric.hosts))
    enough = fabric.directory / "enough"
    failed: list[BaseException] = []

    def come_and_go() -> None:
        try:
            for _ in range(20):
                with flooded(fabric, "s1"):
                    wait_for_frames(fabric, "h3")
                wait_for_frames(fabric, "h2")
        except BaseException as error:
            failed.append(error)
        finally:
            enough.touch()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    sent = workers["h1"].call(calls.send_until, receiver="h2", enough=str(enough), pause=0.0002)
    thread.join()
    enough.unlink()
    assert not failed
    found = all_heard(workers, {"h1": 0, "h2": sent, "h3": 0})
    assert found["h2"] == {("h1", "h2", number): 1 for number in range(sent)}
    assert 20 * 5 <= found["h3"].total() < sent - 20
    assert found["h3"] < found["h2"]


RULES = {
    "drops and copies": (
        "drop p=0.2 kind=udp link=h1->h2",
        "duplicate p=0.2 copies=3 kind=udp",
        "duplicate p=0.1 kind=udp",
    ),
    "delayed": (
        "delay p=0.5 delay=3ms jitter=3ms kind=udp",
        "duplicate p=0.2 kind=udp",
        "reorder p=0.1 behind=3 within=20ms kind=udp",
    ),
}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("first", ["flood", "injector", "no flood"])
def test_a_frames_fate_is_that_of_the_reference_and_decided_once_before_it_is_flooded(
    star: tuple[Fabric, Workers], rules: str, first: str
) -> None:
    """Copies and delayed frames also leave through all other ports, whether the flood or the faults
    came first; counters record this.
    """
    fabric, workers = star
    hear_anew(workers, list(fabric.hosts))
    injector = Injector(fabric, [parse_rule(text) for text in RULES[rules]], 7, trace=True)
    flood = nullcontext() if first == "no flood" else flooded(fabric, "s1")
    with flood if first == "flood" else injector, injector if first == "flood" else flood:
        fates = [
            judge(injector.table, Packet(0, 1, KINDS["udp"], chunk=n), 42 + calls.PAYLOAD)
            for n in range(FRAMES)
        ]
        expected = Counter(
            {("h1", "h2", n): fate.copies + 1 for n, fate in enumerate(fates) if not fate.drop}
        )
        overheard = Counter() if first == "no flood" else expected
        workers["h1"].call(calls.send, receivers=["h2"], numbers=range(FRAMES))
        found = all_heard(workers, {"h1": 0, "h2": expected.total(), "h3": overheard.total()})
        links = injector.links()
        delays = injector.delays()
    assert found == {"h1": Counter(), "h2": expected, "h3": overheard}
    assert (links["unplaced"].sum(), links["lost"].sum()) == (0, 0)
    held = [fate for fate in fates if any(fate.delays_ns) or fate.behind]
    pings = 2 * 6  # those that wait for frames in flight: a request and a reply each
    assert links["passed"][0, 1] == len(expected) - len(held) + pings / 6
    assert injector.frames() == FRAMES + pings
    fired = Counter(one.rule for fate in fates for one in fate.fired)
    assert injector.counters() == {(rule, 0, 1): count for rule, count in fired.items()}
    assert injector.check_replay() == pings + sum(max(1, len(fate.fired)) for fate in fates)
    if delays:
        arrived = workers["h2"].call(calls.taken)
        assert arrived != sorted(arrived)
        assert (delays.received, delays.sent) == (len(held), sum(fate.copies + 1 for fate in held))


@pytest.mark.deep
def test_a_delayed_frame_is_flooded_if_the_switch_floods_when_it_leaves(
    star: tuple[Fabric, Workers],
) -> None:
    fabric, workers = star
    hear_anew(workers, list(fabric.hosts))

    def held(injector: Injector) -> int:
        delays = injector.delays()
        assert delays
        return delays.received

    with Injector(fabric, [parse_rule("delay delay=2s kind=udp link=h1->h2")]) as injector:
        with flooded(fabric, "s1"):
            workers["h1"].call(calls.send, receivers=["h2"], numbers=range(5))
            wait_until(lambda: held(injector) == 5)
        assert all_heard(workers, {"h1": 0, "h2": 5, "h3": 0})["h3"].total() == 0
        workers["h1"].call(calls.send, receivers=["h2"], numbers=range(5, 10))
        wait_until(lambda: held(injector) == 10)
        with flooded(fabric, "s1"):
            found = all_heard(workers, {"h1": 0, "h2": 10, "h3": 5})
    assert found["h3"] == {("h1", "h2", number): 1 for number in range(5, 10)}


@pytest.mark.parametrize("how", ["error", "interrupt"])
def test_the_table_is_restored_however_the_block_is_left(
    star: tuple[Fabric, Workers], how: str
) -> None:
    fabric, workers = star
    before, devices = ports_and_table(fabric, "s1"), traces(fabric)

    def leave() -> None:
        with Timeline(
            fabric, workers, events("flood switch=s1 for=300s", "flood switch=s1 at=400s")
        ):
            assert fabric.floods == {"s1"}
            assert ports_and_table(fabric, "s1") != before
            assert traces(fabric) - devices == {"s1: floods"}
            if how == "error":
                raise ZeroDivisionError
            os.kill(os.getpid(), signal.SIGINT)
            wait_until(lambda: False)

    with suppress(ZeroDivisionError, KeyboardInterrupt):
        leave()
        pytest.fail("it was not left")
    assert fabric.floods == frozenset()
    assert ports_and_table(fabric, "s1") == before
    assert traces(fabric) == devices


def test_the_datapath_may_change_while_a_switch_floods(star: tuple[Fabric, Workers]) -> None:
    """Programs attached later also know that the switch floods."""
    fabric, workers = star
    hear_anew(workers, list(fabric.hosts))
    other: Datapath = "sockets" if fabric.datapath == "xdp" else "xdp"
    with flooded(fabric, "s1"):
        for number, datapath in enumerate((other, fabric.datapath)):
            set_datapath(fabric, datapath)
            workers["h1"].call(calls.send, receivers=["h2"], numbers=range(number, number + 1))
            found = all_heard(workers, {"h1": 0, "h2": number + 1, "h3": number + 1})
            assert found["h3"] == {("h1", "h2", one): 1 for one in range(number + 1)}
    workers["h1"].call(calls.send, receivers=["h2"], numbers=range(2, 3))
    assert all_heard(workers, {"h1": 0, "h2": 3, "h3": 0})["h3"].total() == 2


def test_floods_that_would_not_end_are_refused() -> None:
    with Fabric(plan_fabric("ring", 4, "bridge")) as fabric:
        before = {name: ports_and_table(fabric, name) for name in fabric.switches}
        round_and_round = "a frame for h1 would go round s2, s3, s4, s1 for ever"
        with flooded(fabric, "s1"):
            with (
                pytest.raises(SpecError, match=f"flood of s1, s2 at once: {round_and_round}"),
                flooded(fabric, "s2"),
            ):
                pass
            with (
                pytest.raises(SpecError, match="flood of s1: it floods already"),
                flooded(fabric, "s1"),
            ):
                pass
            assert fabric.floods == {"s1"}
        assert {name: ports_and_table(fabric, name) for name in fabric.switches} == before
