"""A fabric cannot be reached from outside, or from another fabric with the same addresses."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from testbed.comm.group import make_groups
from testbed.datapath import set_datapath
from testbed.datapath.dispatcher import Dispatcher
from testbed.fabric import Fabric
from testbed.fabric.namespace import inside
from testbed.plan import plan_fabric
from testbed.protocol.ring.memory import COUNTERS, WrKind
from testbed.protocol.wire import PORT, Endpoint, Frame, Header, Kind, encode, frame_seal
from testbed.worker import Workers
from tests.support.collectives.ring_calls import all_reduce, check, counters_in, open_in
from tests.support.kept import kept
from tests.support.waiting import wait_until

pytestmark = pytest.mark.net

SIZES = [100_003, 1]
PLAN = plan_fabric(hosts=2)
COOKIE = make_groups(PLAN.hosts)[0].cookie
FOREIGN = (
    "strangers",
    *(name for name in COUNTERS if name.startswith("bad_") and name != "bad_seq"),
)
"""The counters that frames of another fabric would increment."""


@pytest.fixture(scope="module")
def fabrics() -> Iterator[list[tuple[Fabric, Workers]]]:
    """Two fabrics of the same plan, each with a group of the same number and cookie."""
    with ExitStack() as stack:
        made = []
        for _ in range(2):
            fabric = stack.enter_context(Fabric(PLAN))
            workers = stack.enter_context(Workers(fabric))
            set_datapath(fabric, "xdp")
            open_group(workers)
            made.append((fabric, workers))
        yield made


def open_group(workers: Workers) -> None:
    specs = [
        spec.model_copy(update={"cookie": COOKIE})
        for spec in make_groups(PLAN.hosts, lanes="int32", capacity=1 << 17)
    ]
    calls = {host.name: {"spec": spec} for host, spec in zip(PLAN.hosts, specs, strict=True)}
    workers.call_all(open_in, calls, timeout=60)


def strangers_in(context) -> int:
    return context.get(Dispatcher).strangers


def counted(workers: Workers) -> list[dict[str, int]]:
    """Each rank's counters, including frames for groups that its host does not belong to."""
    names = [host.name for host in PLAN.hosts]
    counters, strangers = (
        workers.call_all(counters_in, names),
        workers.call_all(strangers_in, names),
    )
    return [counters[name] | {"strangers": strangers[name]} for name in names]


def frame(kind: Kind, sender: int, receiver: int, **fields: int) -> bytes:
    """A frame that the receiver's programs take for one of its group."""
    ends = [Endpoint(PLAN.hosts[rank].mac, PLAN.hosts[rank].ip) for rank in (sender, receiver)]
    header = Header(kind, cookie=COOKIE, sender=sender, receiver=receiver, **fields)
    header.checksum = frame_seal(header)
    return encode(Frame(header, np.zeros(8, np.uint64), *ends))


def hostile() -> list[bytes]:
    """Frames to both hosts, of all kinds, and of a group that does not exist."""
    ways = ((0, 1), (1, 0))
    return [
        frame(kind, *way, group=group, seq=1, length=64)
        for kind in Kind
        for way in ways
        for group in (0, 9)
    ]


def raw_socket(device: str) -> Callable[[], socket.socket]:
    def make() -> socket.socket:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        made.bind((device, 0))
        return made

    return make


def test_fabrics_with_the_same_addresses_work_side_by_side(fabrics) -> None:
    """At the same time: both calls are running before the first one ends."""
    before = [counted(workers) for _, workers in fabrics]
    results: list[list] = [[], []]

    def work(index: int) -> None:
        for _ in range(10):
            results[index].append(all_reduce(fabrics[index][1], PLAN.hosts, SIZES))

    threads = [Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for of_fabric in results:
        assert len(of_fabric) == 10
        for result in of_fabric:
            check(result, SIZES, 32)
    for then, (_, workers) in zip(before, fabrics, strict=True):
        for rank, now in zip(then, counted(workers), strict=True):
            assert {reason: now[reason] - rank[reason] for reason in FOREIGN} == dict.fromkeys(
                FOREIGN, 0
            )


def test_the_root_namespace_has_nothing_of_a_fabric(fabrics) -> None:
    """No device, no bridge, no route. (Mininet alone would put its switches there.)"""
    with Fabric(PLAN) as fabric:
        devices = {path.name for path in Path("/sys/class/net").glob("*")}
        routed = {line.split()[0] for line in Path("/proc/net/route").read_text().splitlines()[1:]}
        of_nodes = {name for name in devices | routed if name.partition("-")[0] in fabric.nodes}
        assert of_nodes == set()
        own = Path("/proc/self/ns/net").readlink()
        assert own not in {
            Path(f"/proc/{node.pid}/ns/net").readlink() for node in fabric.nodes.values()
        }


def test_frames_of_the_root_namespace_reach_no_host(fabrics) -> None:
    """Neither datagrams to the hosts' addresses, nor whole frames on the only device that leads
    nowhere else.
    """
    before = [counted(workers) for _, workers in fabrics]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
        for host in PLAN.hosts:
            for data in hostile():
                with suppress(OSError):  # depending on the machine's rules
                    sender.sendto(data[42:], (host.ip, PORT))
    with raw_socket("lo")() as sender:
        for data in hostile():
            sender.send(data)
    assert [counted(workers) for _, workers in fabrics] == before


def test_frames_of_another_fabric_reach_no_host(fabrics) -> None:
    """Addresses, group and cookie are the same, yet frames sent in one fabric are counted only
    there.
    """
    (fabric, workers), (_, others) = fabrics
    before, untouched = counted(workers), counted(others)
    for sender in PLAN.hosts:
        with inside(fabric.hosts[sender.name].namespace.fd, raw_socket("eth0")) as wire:
            for data in hostile():
                wire.send(data)
    expected = sum(each["strangers"] for each in before) + len(Kind) * 2
    wait_until(lambda: sum(each["strangers"] for each in counted(workers)) == expected)
    now = counted(workers)
    assert all(
        after["bad_kind"] > rank["bad_kind"] for after, rank in zip(now, before, strict=True)
    )
    assert counted(others) == untouched
    check(all_reduce(workers, PLAN.hosts, SIZES), SIZES, 32)
    check(all_reduce(others, PLAN.hosts, SIZES), SIZES, 32)


def test_only_its_own_host_can_kick_a_doorbell(fabrics) -> None:
    """A kick that arrives on the link takes no work request. One sent into the doorbell does, if it
    has the group's number and cookie.
    """
    fabric, workers = fabrics[0]
    names = [host.name for host in PLAN.hosts]
    workers.call_all(post_in, names)
    before = counted(workers)
    with inside(fabric.hosts["h2"].namespace.fd, raw_socket("eth0")) as wire:
        for _ in range(100):
            wire.send(frame(Kind.DOORBELL, 1, 0))
    wait_until(lambda: counted(workers)[0]["bad_kind"] == before[0]["bad_kind"] + 100)
    assert workers.call_all(waiting_in, names) == dict.fromkeys(names, 1)
    with inside(fabric.hosts["h1"].namespace.fd, raw_socket("doorbell0")) as kick:
        kick.send(frame(Kind.DOORBELL, 1, 0, group=9))
        kick.send(encode(Frame(Header(Kind.DOORBELL, cookie=COOKIE ^ 1), np.zeros(8, np.uint64))))
        wait_until(lambda: counted(workers)[0]["bad_cookie"] == before[0]["bad_cookie"] + 1)
        assert workers.call_all(waiting_in, names) == dict.fromkeys(names, 1)
        kick.send(frame(Kind.DOORBELL, 1, 0))
        wait_until(lambda: workers["h1"].call(waiting_in) == 0)
    assert workers["h2"].call(waiting_in) == 1
    check(all_reduce(workers, PLAN.hosts, SIZES), SIZES, 32)


def post_in(context) -> None:
    """Post a work request, a probe, without a kick."""
    kept(context)[0].port.process.post(WrKind.PROBE, 0, 1 - kept(context)[0].spec.rank)


def waiting_in(context) -> int:
    control = kept(context)[0].port.maps.control
    return control.sq_tail - control.sq_head & 0xFFFFFFFF
