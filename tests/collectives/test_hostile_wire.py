"""Mutated frames on the wire of a fabric whose ranks are at work: from a host outside the group,
and from one inside.
"""

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from socket import AF_PACKET, SOCK_RAW, socket

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from testbed.comm.group import GroupSpec, Member, make_groups
from testbed.datapath import set_datapath
from testbed.fabric import Fabric
from testbed.fabric.namespace import inside
from testbed.plan import plan_fabric
from testbed.protocol.ring.memory import Stage, item_of
from testbed.protocol.scapy_layers import RingHeader
from testbed.protocol.wire import (
    EARLIER,
    FRAME_BYTES,
    NOTHING,
    PORT,
    RESTART,
    RESULT,
    VERIFIED,
    Kind,
)
from testbed.worker import Workers
from tests.support.collectives.ring_calls import all_reduce, check, counters_in, open_in
from tests.support.kept import kept

pytestmark = pytest.mark.net

FRAMES = 10_000
BATCH = 500
LOWER_BYTES = 42  # of Ethernet, IPv4 and UDP
RANKS = 3
SIZES = [20_000, 1, 3000]
REASONS = ("cookie", "receiver", "seq", "chunk", "length", "rank", "kind", "checksum")


class Forger:
    """Frames of the group, built by scapy with its secrets and then mutated; reproducible except
    for the cookie.

    Sequence numbers are those that the group is about to reach, so that many frames arrive early,
    and some in time. Checksums are not adjusted: a sender that computes seals and sums as well is a
    member of the group, not a stranger.

    :param tensors: Number of chunks, bytes per chunk, and tag of the tensors that the group sums.
    """

    def __init__(
        self, specs: tuple[GroupSpec, ...], tensors: list[tuple[int, int, int]], seed: int
    ) -> None:
        self.members = specs[0].members
        self.cookie = specs[0].cookie
        self.tensors = tensors
        self.chance = random.Random(seed)

    def frame(self, seq: int) -> bytes:
        chance, ranks = self.chance, len(self.members)
        receiver = chance.randrange(ranks)
        sender = self.members[(receiver + chance.choice((1, -1))) % ranks]
        kind = chance.choice(
            (Kind.REDUCE, Kind.REDUCE, Kind.RESULT, Kind.RESULT, Kind.NACK, Kind.PROBE, Kind.ALIVE)
        )
        total, length, tag = chance.choice(self.tensors)
        chunk = chance.randrange(total + 1)
        header = RingHeader(
            kind=kind,
            group=0,
            cookie=self.cookie,
            seq=seq + chance.randint(-1, 5) & 0xFFFFFFFF,
            chunk=chunk,
            checksum=chance.getrandbits(64),
            stream=chance.randrange(2),
            hop=(receiver - chunk) % ranks or 1,
            sender=sender.rank,
            receiver=receiver,
            flags=chance.choice((0, 0, RESULT, RESTART, VERIFIED, EARLIER)),
            round=chance.choice((0, 0, 0, 1)),
            length=length,
            tag=tag,
            prev=chance.choice((NOTHING, item_of(chunk, 0, chance.choice(list(Stage))))),
        )
        return (
            lower(sender, self.members[receiver], length) + bytes(header) + chance.randbytes(length)
        )

    def mutated(self, seq: int) -> bytes:
        """A frame with bits flipped behind the addresses, half of the time in the ring's header, or
        truncated.
        """
        chance, data = self.chance, bytearray(self.frame(seq))
        for _ in range(chance.randint(0, 4)):
            place = (
                chance.randrange(LOWER_BYTES, FRAME_BYTES)
                if chance.random() < 0.5
                else chance.randrange(14, len(data))
            )
            data[place] ^= 1 << chance.randrange(8)
        if chance.random() < 0.1:
            del data[chance.randrange(FRAME_BYTES, len(data)) :]
        return bytes(data)


@cache
def lower(sender: Member, to: Member, length: int) -> bytes:
    """Return the headers in front of the ring's; scapy takes longer for these few than for
    everything else.
    """
    link = Ether(dst=to.mac, src=sender.mac) / IP(src=sender.ip, dst=to.ip, id=0, flags="DF")
    return bytes(link / UDP(sport=PORT, dport=PORT, chksum=0) / RingHeader() / Raw(bytes(length)))[
        :LOWER_BYTES
    ]


def seq_in(context) -> int:
    return kept(context)[0].seq


def tensors_in(context) -> list[tuple[int, int, int]]:
    return [
        (kind.layout.total, kind.layout.length, kind.tag(kind.exponent))
        for plan in kept(context)[0].tensors.values()
        for kind in plan.kinds
    ]


@pytest.fixture(params=["xdp", "bridge"])
def wires(request) -> Iterator[tuple]:
    """A group on three of four hosts, and raw sockets on the fourth and on one of the three."""
    plan = plan_fabric(hosts=4, switch=request.param)
    hosts = plan.hosts[:RANKS]
    with ExitStack() as stack:
        fabric = stack.enter_context(Fabric(plan))
        workers = stack.enter_context(Workers(fabric, modules=[__name__]))
        set_datapath(fabric, "xdp")
        specs = make_groups(hosts, mtu=plan.mtu, lanes="int32", capacity=1 << 17, timeout=30.0)
        workers.call_all(
            open_in,
            {host.name: {"spec": spec} for host, spec in zip(hosts, specs, strict=True)},
            timeout=60,
        )
        sockets = []
        for name in ("h4", "h2"):
            wire = stack.enter_context(
                inside(fabric.hosts[name].namespace.fd, lambda: socket(AF_PACKET, SOCK_RAW, 0))
            )
            wire.bind(("eth0", 0))
            sockets.append(wire)
        yield workers, hosts, specs, sockets


@pytest.mark.deep
def test_collectives_stay_exact_among_mutated_frames(wires) -> None:
    """Ten thousand frames are sent alternately from outside and inside the group, and collectives
    continue until all are sent.
    """
    workers, hosts, specs, sockets = wires
    names = [host.name for host in hosts]
    check(all_reduce(workers, hosts, SIZES), SIZES, 32)
    forger = Forger(specs, workers[names[0]].call(tensors_in), seed=3)
    before = workers.call_all(counters_in, names)
    sent = rounds = 0
    while sent < FRAMES:
        seq = workers[names[0]].call(seq_in)
        batch = [forger.mutated(seq) for _ in range(BATCH)]
        writer = threading.Thread(target=write, args=(sockets, batch))
        writer.start()
        while True:
            check(all_reduce(workers, hosts, SIZES), SIZES, 32)
            rounds += 1
            if not writer.is_alive():
                break
        writer.join()
        sent += len(batch)
    after = workers.call_all(counters_in, names)
    counted = {
        reason: sum(after[name][reason] - before[name][reason] for name in names)
        for reason in before[names[0]]
    }
    assert all(counted[f"bad_{reason}"] for reason in REASONS), counted
    assert counted["early"] > 0
    assert rounds >= sent // len(batch)
    check(all_reduce(workers, hosts, SIZES), SIZES, 32)


def write(sockets: list[socket], frames: list[bytes]) -> None:
    for index, data in enumerate(frames):
        sockets[index % len(sockets)].send(data)
