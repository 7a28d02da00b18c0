"""Faults on a real fabric: on both hooks the same frames have the same fates, and everything is
counted, logged, and undone.
"""

import signal
import socket

import numpy as np
import pytest

from testbed.core.errors import FabricError, FaultError, SpecError
from testbed.datapath import set_datapath
from testbed.fabric import Fabric
from testbed.faults import attach
from testbed.faults.fate import judge
from testbed.faults.identity import KINDS, Packet
from testbed.faults.injector import Injector
from testbed.faults.replay import check_replay
from testbed.faults.rule_table import Action
from testbed.plan import plan_fabric
from testbed.worker import Workers
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
