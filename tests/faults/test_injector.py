"""Faults on a real fabric: on both hooks the same frames have the same fates, and everything is
counted, logged, and undone.
"""

import signal
import socket
from collections import Counter

import numpy as np
import pytest

from testbed.comm.group import make_groups
from testbed.core.errors import FabricError, FaultError, SpecError
from testbed.datapath import set_datapath
from testbed.fabric import Fabric
from testbed.faults import attach
from testbed.faults.fate import judge
from testbed.faults.identity import KINDS, Packet
from testbed.faults.injector import Injector
from testbed.faults.limits import Limit, bucket_table
from testbed.faults.partition import partition
from testbed.faults.replay import check_replay
from testbed.faults.rule_table import Action
from testbed.plan import plan_fabric
from testbed.worker import Workers
from tests.support.faults.ring_calls import open_ring, reduce_ring
from tests.support.kept import kept
from tests.support.rules import parse_rule
from tests.support.tiers import broad

pytestmark = pytest.mark.net

WAYS = [("xdp", "xdp"), ("xdp", "sockets"), ("bridge", "xdp"), ("bridge", "sockets")]
PORT = 4000
FRAMES = 300
PAYLOAD = 100
MODULES = ["testbed.faults.attach", __name__]  # what workers import


def rules(*texts):
    return [parse_rule(text) for text in texts]


@pytest.fixture(scope="module", params=broad([(way,) for way in WAYS]), ids="-".join)
def fabric(request):
    switch, datapath = request.param
    with (
        Fabric(plan_fabric(hosts=3, switch=switch)) as fabric,
        Workers(fabric, modules=MODULES) as workers,
    ):
        set_datapath(fabric, datapath)
        yield fabric, workers


def listen(context):
    receiver = context.resources.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    receiver.bind(("", PORT))
    kept(context)["receiver"] = receiver


def send(context, ip, count):
    """Send datagrams that begin with their numbers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect((ip, PORT))
        for number in range(count):
            sender.send(number.to_bytes(4, "big").ljust(PAYLOAD, b"\0"))


def receive(context, count, timeout):
    """Receive datagrams until there are `count`, or none has arrived for `timeout` seconds."""
    receiver = kept(context)["receiver"]
    receiver.settimeout(timeout)
    found = []
    while len(found) < count:
        try:
            found.append(receiver.recv(2048))
        except TimeoutError:
            break
    return found


def numbers(datagrams):
    return [int.from_bytes(data[:4], "big") for data in datagrams]


def exchange(workers, expected):
    """Send from h1 to h2, and return what has arrived; even one more than expected would be
    noticed.
    """
    if not workers["h2"].call(is_listening):
        workers["h2"].call(listen)
    workers["h1"].call(send, ip="10.0.0.2", count=FRAMES)
    found = workers["h2"].call(receive, count=expected, timeout=5.0)
    return found + workers["h2"].call(receive, count=1, timeout=0.05)


def is_listening(context):
    return "receiver" in kept(context)


def fates(injector):
    """The reference model's verdicts on the datagrams of the first flow."""
    length = 42 + PAYLOAD
    return [
        judge(injector.table, Packet(0, 1, KINDS["udp"], chunk=number), length)
        for number in range(FRAMES)
    ]


def test_drops_and_copies_are_those_of_the_reference(fabric):
    fabric, workers = fabric
    with Injector(
        fabric,
        rules("drop p=0.1 link=h1->h2", "duplicate p=0.2 copies=3", "duplicate p=0.1"),
        7,
        trace=True,
    ) as injector:
        expected = Counter(
            {n: fate.copies + 1 for n, fate in enumerate(fates(injector)) if not fate.drop}
        )
        assert Counter(numbers(exchange(workers, expected.total()))) == expected
        assert injector.frames() == FRAMES
        fired = Counter(fired.rule for fate in fates(injector) for fired in fate.fired)
        assert injector.counters() == {(rule, 0, 1): count for rule, count in fired.items()}
        assert injector.check_replay() == sum(max(1, len(fate.fired)) for fate in fates(injector))
        links = injector.links()[0, 1]
        assert (links["unplaced"], links["lost"], links["flows"]) == (0, 0, 1)
        assert links["passed"] == len(expected)
    assert injector.counters() == {(rule, 0, 1): count for rule, count in fired.items()}
    assert len(injector.log()) >= FRAMES
    assert numbers(exchange(workers, FRAMES)) == list(range(FRAMES))  # no faults any more


def test_corrupted_bits_are_those_of_the_reference(fabric):
    """The datagram's checksum hides them: a datagram that arrives was not corrupted, and the kernel
    drops the others.
    """
    fabric, workers = fabric
    with Injector(fabric, rules("corrupt p=0.3 link=h1->h2"), 3) as injector:
        intact = [n for n, fate in enumerate(fates(injector)) if not fate.corrupt]
        assert numbers(exchange(workers, len(intact))) == intact
        assert injector.counters() == {(0, 0, 1): FRAMES - len(intact)}
        assert injector.check_replay() == FRAMES - len(intact)


def test_all_delayed_frames_arrive(fabric):
    fabric, workers = fabric
    texts = (
        "delay p=0.3 delay=5ms jitter=5ms",
        "duplicate p=0.1",
        "reorder p=0.05 behind=3 within=20ms kind=udp",
    )
    with Injector(fabric, rules(*texts), 5) as injector:
        expected = Counter({n: fate.copies + 1 for n, fate in enumerate(fates(injector))})
        found = numbers(exchange(workers, expected.total()))
        assert Counter(found) == expected
        assert found != sorted(found)
        delays = injector.delays()
        assert delays.received == sum(
            any(fate.delays_ns) or fate.behind > 0 for fate in fates(injector)
        )
        assert delays.sent == sum(
            fate.copies + 1 for fate in fates(injector) if any(fate.delays_ns) or fate.behind
        )
        assert injector.links()["unplaced"].sum() == 0
        injector.check_replay()


def test_blocked_links_pass_nothing(fabric):
    fabric, workers = fabric
    with Injector(fabric, rules("drop p=0")) as injector:
        with partition(fabric, [["h1", "h3"], ["h2"]]):
            assert exchange(workers, 0) == []
            assert injector.links()["blocked"][0, 1] == FRAMES
        assert numbers(exchange(workers, FRAMES)) == list(range(FRAMES))
        assert injector.links()["blocked"].sum() == FRAMES


@pytest.mark.deep
def test_limits_drop_frames_that_exceed_the_bucket(fabric):
    fabric, workers = fabric
    limit = Limit(hosts="h1", direction="up", rate="64kbit", queue="2KiB")
    with Injector(fabric) as injector:
        injector.set_limits(bucket_table([limit], fabric.plan))
        room = 2048 // (42 + PAYLOAD)  # frames that a full bucket lets through; 56 more per second
        found = numbers(exchange(workers, room))
        assert found[:room] == list(range(room))
        links = injector.links()[0, 1]
        assert links["limited"] + links["passed"] == FRAMES
        assert links["limited"] > FRAMES / 2


@pytest.mark.parametrize("switch", broad(["xdp", "bridge"]))
@pytest.mark.parametrize("name", broad(["xdp-ring", "tcp-ring"]))
def test_collectives_survive_losses(name, switch):
    """Sums are exact, faults have fired on every hop of the ring, and the log agrees with the
    reference model.
    """
    plan = plan_fabric(hosts=4, switch=switch)
    times = 10
    with Fabric(plan) as fabric, Workers(fabric, modules=MODULES) as workers:
        set_datapath(fabric, "xdp" if name == "xdp-ring" else "sockets")
        specs = make_groups(plan.hosts, mtu=plan.mtu, lanes="int32", capacity=1 << 18, timeout=30.0)
        arguments = {
            host.name: {"name": name, "spec": spec}
            for host, spec in zip(plan.hosts, specs, strict=True)
        }
        workers.call_all(open_ring, arguments, timeout=30)
        with Injector(
            fabric, rules("drop p=0.02", "duplicate p=0.02"), seed=2, trace=True
        ) as injector:
            arguments = {host.name: {"rank": host.rank, "times": times} for host in plan.hosts}
            results = workers.call_all(reduce_ring, arguments, timeout=90)
        for sums in results.values():
            for number, found in enumerate(sums):
                np.testing.assert_allclose(found, np.full(20_000, 6 + 4 * number), rtol=1e-6)
        fired = injector.counters()
        assert injector.check_replay() >= injector.frames()
        assert (
            injector.log()["length"].max() <= 14 + plan.mtu
        )  # frames as a real wire would carry them
        assert {(sender, receiver) for _, sender, receiver in fired} >= {
            (rank, (rank + 1) % 4) for rank in range(4)
        }
        assert {rule for rule, *_ in fired} == {0, 1}


def test_a_log_that_differs_is_named(fabric):
    fabric, workers = fabric
    with Injector(fabric, rules("drop p=0.5 kind=udp"), trace=True) as injector:
        exchange(workers, sum(not fate.drop for fate in fates(injector)))
    records = injector.log()
    dropped = int(np.argmax(records["action"] == Action.DROP))
    records["chunk"][dropped] += 1_000_000
    while judge(
        injector.table, Packet(0, 1, KINDS["udp"], chunk=int(records["chunk"][dropped]))
    ).drop:
        records["chunk"][dropped] += 1
    with pytest.raises(
        FaultError,
        match=(
            rf"record {dropped} of the log: udp frame .* met 1 rules, drop by rule 0 .* is to pass"
        ),
    ):
        check_replay(injector.table, records)


def test_a_fabric_has_one_injector_and_one_datapath_at_a_time(fabric):
    fabric, _ = fabric
    with Injector(fabric, rules("drop")):
        with (
            pytest.raises(FabricError, match="an injector is in force on this fabric already"),
            Injector(fabric),
        ):
            pass
        with pytest.raises(
            FabricError, match="the datapath cannot be changed while faults are in force"
        ):
            set_datapath(fabric, "sockets")
    with Injector(fabric):
        pass


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_an_interrupt_while_attaching_leaves_no_faults(fabric, monkeypatch, late):
    fabric, workers = fabric
    call_all = type(workers).call_all

    def interrupted(self, function, *arguments, **options):
        if function is attach.attach and not late:
            signal.raise_signal(signal.SIGINT)
        answers = call_all(self, function, *arguments, **options)
        if function is attach.attach:
            signal.raise_signal(signal.SIGINT)
        return answers

    injector = Injector(fabric, rules("drop", "delay delay=1ms"))
    with monkeypatch.context() as patch:
        patch.setattr(type(workers), "call_all", interrupted)
        with pytest.raises(KeyboardInterrupt), injector:
            pytest.fail("it was not interrupted")
    assert not fabric.faults
    with pytest.raises(
        FabricError, match=r"^faults: the injector was not in force, and has counted nothing$"
    ):
        injector.counters()
    assert fabric.run("h1", ["ping", "-q", "-c", "1", "-W", "2", "h2"]).returncode == 0
    with injector:
        assert fabric.run("h1", ["ping", "-q", "-c", "1", "-W", "0.2", "h2"]).returncode == 1
    assert injector.counters()


def test_offloads_are_off_for_as_long_as_faults_last():
    def offloads(fabric):
        lines = fabric.run("h1", ["ethtool", "-k", "eth0"]).stdout.splitlines()
        wanted = ("tx-checksumming", "tcp-segmentation-offload", "generic-segmentation-offload")
        return [line for line in lines if line.startswith(wanted)]

    with Fabric(plan_fabric(hosts=2, switch="bridge")) as fabric, Workers(fabric):
        before = offloads(fabric)
        assert all(": on" in line for line in before)
        with Injector(fabric, rules("drop p=0")):
            assert all(": off" in line for line in offloads(fabric))
        assert offloads(fabric) == before


def test_an_error_ends_faults_and_is_the_one_raised(fabric):
    fabric, workers = fabric
    injector = Injector(fabric, rules("drop"))

    def fail():
        with injector:
            exchange(workers, 0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert injector.counters() == {(0, 0, 1): FRAMES}
    assert not fabric.faults
    assert numbers(exchange(workers, FRAMES)) == list(range(FRAMES))


def test_unknown_hosts_are_refused_before_anything_is_attached():
    with Fabric(plan_fabric(hosts=2)) as fabric:
        with pytest.raises(SpecError, match="host: 'h7' is not in this fabric; hosts are h1, h2"):
            Injector(fabric, rules("drop link=h1->h7"))
        with (
            pytest.raises(FabricError, match="of hosts and switches, and none are running"),
            Injector(fabric),
        ):
            pass


@pytest.mark.parametrize("topology", broad(["ring", "leaf-spine"]))
def test_several_switches_judge_each_frame_once(topology):
    with (
        Fabric(plan_fabric(topology, hosts=4, switch="xdp")) as fabric,
        Workers(fabric, modules=MODULES) as workers,
    ):
        set_datapath(fabric, "xdp")
        with Injector(fabric, rules("drop p=0.3 kind=udp"), trace=True) as injector:
            fate = fates(injector)
            kept = [n for n, one in enumerate(fate) if not one.drop]
            assert numbers(exchange(workers, len(kept))) == kept
            assert injector.frames() == FRAMES
            injector.check_replay()


@pytest.mark.alone
def test_a_hundred_thousand_records_a_second_are_kept():
    """One host sends as fast as it can, which makes more than that; none is lost."""
    with Fabric(plan_fabric(hosts=2)) as fabric, Workers(fabric, modules=MODULES) as workers:
        set_datapath(fabric, "xdp")
        with Injector(fabric, rules("duplicate kind=udp copies=1"), trace=True) as injector:
            workers["h2"].call(listen)
            workers["h1"].call(send, ip="10.0.0.2", count=200_000)
            records = injector.log()
        assert injector.lost == 0
        assert len(records[records["kind"] == KINDS["udp"]]) == 200_000
