"""Exchanges by tokens: the program and all of its maps are compared with
`testbed.protocol.token.rank`, frame by frame.
"""

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import astuple, dataclass, field

import numpy as np
import pytest

from testbed.kernel import XDP_DROP, XDP_REDIRECT, XDP_TX, BpfObject
from testbed.kernel.abi import Struct, dtype
from testbed.protocol.pinch.packet import NOBODY, Packet
from testbed.protocol.sequence import NEWEST, seq_after
from testbed.protocol.token.memory import COUNTERS, FLAGS, Config, pairs_of
from testbed.protocol.token.process import Process
from testbed.protocol.token.rank import Rank
from testbed.protocol.wire import Endpoint, Frame, PinchKind, decode, encode, net_peer
from tests.support.tiers import broad

pytestmark = pytest.mark.kernel

ROOM = 8  # words
RANKS = 3  # at most
STEPS = 600
COOKIE, GROUP, TAG = 0x1234_5678_9ABC_DEF0, 7, 0x5A5A
WORDS = ("ready", "next", "returned", "stalled")
CONTROL = ("open", "entered", "waits", "gone", "late", "ended", *WORDS)
LINK = 1  # an interface that there always is; nothing is sent
PEER = ("heard", "news", "answers", "at", "waits")
SHAPES = {
    "two": ([[0, 3], [2, 0]], 1),
    "one way": ([[0, 4], [1, 0]], 1),
    "three": ([[0, 2, 1], [3, 0, 0], [1, 0, 0]], 1),
    "a doorbell": ([[0, 9, 2], [5, 0, 0], [1, 0, 0]], 2),
}
"""Frames of each rank for each other one; and how many for each that returns."""
ENDS = ("link", "doorbell")


def endpoint(rank: int) -> Endpoint:
    return Endpoint(f"02:00:0a:00:00:{rank + 1:02x}", f"10.0.0.{rank + 1}")


def configs(shape: list[list[int]], stride: int) -> Iterator[Config]:
    for rank in range(len(shape)):
        pairs = pairs_of((row[rank], away) for row, away in zip(shape, shape[rank], strict=True))
        yield Config(COOKIE, rank, len(shape), GROUP, TAG, ROOM, pairs, window=2, stride=stride)


def parse(data: bytes) -> Packet | None:
    """A frame as the model sees it; None: one that the program does not take for ours."""
    frame = decode(data)
    if frame is None or not len(frame.payload):
        return None
    ranks = {endpoint(rank).ip: rank for rank in range(RANKS)}
    ends = (ranks.get(end.ip, NOBODY) for end in (frame.source, frame.destination))
    return Packet(*ends, *astuple(frame.header), body=tuple(frame.payload.tolist()))


def bytes_of(packet: Packet, trailer: bytes = b"") -> bytes:
    """The bytes of a frame, the rest of its buffer included."""
    ends = (
        Endpoint("00:00:00:00:00:00", "0.0.0.0") if rank == NOBODY else endpoint(rank)
        for rank in (packet.source, packet.destination)
    )
    words = np.array(packet.body, np.uint64)
    return encode(Frame(packet.header, words, *ends, trailer), whole=True)


class Ringing(Process):
    """A process whose doorbell's program is compared with the reference model."""

    def __init__(self, member: "Member") -> None:
        super().__init__(member.rank)
        self.member = member

    def emit(self, blank: Packet) -> Packet | None:
        if self.rank.config.stride == 1:
            return super().emit(blank)
        self.member.write()
        return self.member.ring(bytes_of(blank))


class Member:
    """One rank: its program in the kernel, and the reference model."""

    def __init__(self, config: Config, stack: ExitStack, cpu: int) -> None:
        self.rank = Rank(config, cpu=cpu)
        self.process = Ringing(self)
        made = Struct(
            "token_config",
            cookie=COOKIE,
            rank=config.rank,
            ranks=config.ranks,
            group=GROUP,
            tag=TAG,
            room=8 * ROOM,
            slots=config.slots,
            outs=config.outs,
            partners=len(config.partners),
            largest=8 * ROOM if config.outs else 0,
            link=LINK,
            window=config.window,
            stride=config.stride,
        )
        for other in range(config.ranks):
            for name, value in config.pairs[other]._asdict().items():
                made.pairs[other][name] = value
            made.peers[other] = net_peer(endpoint(config.rank), endpoint(other))
        sizes = {
            "token_outs": 2 * config.outs,
            "token_order": 2 * config.outs,
            "token_slots": 2 * config.slots,
            "token_payloads": 2 * config.outs,
            "token_landing": 2 * config.slots,
        }
        buffers = {"token_payloads": 8 * ROOM, "token_landing": 8 * ROOM}
        loaded = stack.enter_context(BpfObject("tokens", made, sizes, buffers))
        maps = loaded.maps
        self.program, self.doorbell = (loaded.programs[f"token_{end}"] for end in ENDS)
        self.counters = maps["token_counters"]
        self.control = Struct(maps["token_control"].view(dtype("token_control")))
        self.outs = maps["token_outs"].view(dtype("token_out")).reshape(-1)
        self.slots = maps["token_slots"].view(dtype("token_slot")).reshape(-1)
        self.peers = maps["token_peers"].view(dtype("token_peer")).reshape(-1)
        self.payloads = maps["token_payloads"].view().reshape(-1, ROOM)
        self.landing = maps["token_landing"].view().reshape(-1, ROOM)
        self.order = maps["token_order"].view().reshape(-1)

    def ring(self, data: bytes) -> Packet | None:
        """Let both take an empty frame at the doorbell, and compare what they make of it."""
        packet = parse(data)
        if packet is None:  # the dispatcher drops it
            return None
        run, filled = self.doorbell.test_run(data), self.rank.on_doorbell(packet)
        assert run.retval == (XDP_DROP if filled is None else XDP_REDIRECT)
        if filled is not None:
            cut = not filled.flags & FLAGS.RETURN
            assert run.data == bytes_of(filled, b"" if cut else decode(data).trailer)
        self.assert_same()
        return filled

    def write(self) -> None:
        """What the process has done becomes the kernel's memory."""
        rank = self.rank
        for name in CONTROL:
            setattr(self.control, name, getattr(rank, name))
        self.control.complete = rank.complete
        for index, out in enumerate(rank.outs):
            entry = self.outs[index]
            for name in ("check", "seq", "receiver", "number", "frames", "flags", "acked"):
                entry[name] = getattr(out, name)
            entry["bytes"], entry["payload"] = 8 * len(out.data), index
            self.payloads[index, : len(out.data)] = out.data
        for parity, order in enumerate(rank.orders):
            self.order[parity * rank.config.outs :][: len(order)] = order
        for index, slot in enumerate(rank.slots):
            self.slots[index]["claim"] = slot.claim
        for index, peer in enumerate(rank.peers):
            self.peers[index]["landed"], self.peers[index]["frames"] = peer.landed, peer.frames

    def assert_same(self) -> None:
        """Compare all that the program and the model have changed."""
        rank = self.rank
        for name in CONTROL:
            assert getattr(self.control, name) == getattr(rank, name), name
        assert self.control.complete.tolist() == rank.complete
        assert self.outs["acked"][: len(rank.outs)].tolist() == [out.acked for out in rank.outs]
        for index, slot in enumerate(rank.slots):
            entry = self.slots[index]
            found = int(entry["claim"]), int(entry["check"]), int(entry["flags"])
            assert found == (slot.claim, slot.check, slot.flags)
            assert self.landing[index, : len(slot.data)].tolist() == list(slot.data)
            assert entry["bytes"] == 8 * len(slot.data)
        for index, peer in enumerate(rank.peers):
            entry = self.peers[index]
            assert (tuple(entry["landed"]), tuple(entry["frames"])) == (peer.landed, peer.frames)
            for name in PEER:
                assert entry[name] == getattr(peer, name), name
        table = np.frombuffer(self.counters.lookup(0), np.uint64).reshape(-1, len(COUNTERS))
        counted = dict(zip(COUNTERS, table.sum(axis=0).tolist(), strict=True))
        del counted["sent_bytes"]
        assert counted == {name: rank.counters[name] for name in counted}


@dataclass
class Compared:
    """Ranks, and the frames between them."""

    members: list[Member]
    in_flight: list[bytes] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    entered: list[bool] = field(default_factory=list)

    def begin(self, seq: int) -> None:
        for member in self.members:
            member.rank.__init__(member.rank.config, cpu=member.rank.cpu)  # type: ignore[misc]
            member.process.seq = 0
            member.counters.update(0, bytes(len(member.counters.lookup(0))))
            for table in (member.outs, member.slots, member.peers):
                table[:] = np.zeros(1, table.dtype)
            member.process.open(seq)
            member.write()
        self.turn = [0] * len(self.members)
        self.entered = [False] * len(self.members)
        self.in_flight.clear()

    def message(self, turn: int, sender: int, count: int) -> list[tuple[int, ...]]:
        chance = random.Random(f"{turn} {sender}")
        return [
            tuple(chance.getrandbits(64) for _ in range(chance.randint(0, ROOM)))
            for _ in range(chance.randint(1, count))
        ]

    def step(self, index: int) -> bool:
        """Let a process do what it can do next."""
        member, turn = self.members[index], self.turn[index]
        process, config = member.process, member.rank.config
        if not self.entered[index]:
            sent = process.send(
                {
                    other: self.message(turn, index * 8 + other, config.pairs[other].frames_out)
                    for other in config.partners
                },
                flags=turn % 4,
            )
            self.in_flight += map(bytes_of, sent)
            self.entered[index] = True
        elif process.unsent and not member.rank.stalled and member.rank.config.stride > 1:
            self.in_flight += map(bytes_of, process.go_on())
        elif process.is_complete:
            found = process.take()
            if found is not None:
                assert found == {
                    other: self.message(turn, other * 8 + index, config.pairs[other].frames_in)
                    for other in config.partners
                }
                process.open(seq_after(process.seq))
                self.turn[index], self.entered[index] = turn + 1, False
        else:
            return False
        member.write()
        member.assert_same()
        return True

    def ask(self, index: int, attempt: int) -> None:
        process = self.members[index].process
        if self.entered[index]:
            self.in_flight += [
                bytes_of(process.ask(partner, number, attempt))
                for partner in self.members[index].rank.config.partners
                for number in process.missing(partner)
            ]
            self.in_flight += map(bytes_of, process.forgive())
            self.members[index].write()

    def deliver(self, data: bytes, index: int) -> None:
        """Let both take a frame, and compare what they make of it."""
        member = self.members[index]
        run = member.program.test_run(data)
        packet = parse(data)
        answer = None if packet is None else member.rank.on_link(packet)
        assert run.retval == (XDP_DROP if answer is None else XDP_TX)
        if answer is not None:
            assert run.data == bytes_of(answer, decode(data).trailer)
            self.in_flight.append(run.data)
        member.assert_same()


@pytest.fixture(scope="module", params=SHAPES)
def compared(request: pytest.FixtureRequest) -> Iterator[Compared]:
    before = os.sched_getaffinity(0)
    cpu = min(before)
    os.sched_setaffinity(0, {cpu})
    try:
        with ExitStack() as stack:
            members = [Member(each, stack, cpu) for each in configs(*SHAPES[request.param])]
            yield Compared(members)
    finally:
        os.sched_setaffinity(0, before)


def damaged(chance: random.Random, data: bytes) -> bytes:
    """The frame with one to three flipped bits, or truncated, or extended."""
    wrong, what = bytearray(data), chance.randrange(4)
    if what == 0:
        return bytes(wrong[: chance.randint(14, len(wrong))])
    if what == 1:
        return bytes(wrong) + chance.randbytes(8 * chance.randrange(1, 9))
    for _ in range(chance.randint(1, 3)):
        wrong[chance.randrange(26, 104)] ^= 1 << chance.randrange(8)
    return bytes(wrong)


@pytest.mark.parametrize("seed", broad(range(8)))
def test_every_frame_equals_the_reference_models(compared: Compared, seed: int) -> None:
    """Loss, duplication, reordering, damage and flooding; then none, until all have arrived."""
    chance = random.Random(seed)
    compared.begin(chance.choice((1, 4, NEWEST - 2)))
    count = len(compared.members)
    faults = ["lose", "duplicate", "damage", "flood", "ring"]
    actions = ["deliver"] * 6 + ["step"] * 3 + ["ask", *faults]
    for number in range(STEPS):
        action, index = chance.choice(actions), chance.randrange(count)
        if action == "step":
            compared.step(index)
        elif action == "ask":
            compared.ask(index, 1 + number % 3)
        elif compared.in_flight:
            data = compared.in_flight.pop(chance.randrange(min(len(compared.in_flight), 20)))
            to = (decode(data) or Frame(Packet(0, 0, 0).header)).header.receiver % count
            if action == "deliver":
                compared.deliver(data, to)
            elif action == "duplicate":
                compared.in_flight += [data, data]
            elif action == "damage":
                compared.deliver(damaged(chance, data), to)
            elif action == "ring":
                filled = compared.members[index].ring(damaged(chance, data))
                if filled is not None:
                    compared.in_flight.append(bytes_of(filled))
            elif action == "flood":
                for each in range(count):
                    compared.deliver(data, each)
    goal = max(compared.turn) + 1
    for _ in range(200):
        if min(compared.turn) >= goal:
            break
        while any(compared.step(index) for index in range(count) if compared.turn[index] <= goal):
            pass
        for data in list(compared.in_flight):
            compared.in_flight.remove(data)
            compared.deliver(data, decode(data).header.receiver)
        for index in range(count):
            compared.ask(index, 1)
    assert min(compared.turn) >= goal


def test_the_end_of_exchanges_equals_the_reference_models(compared: Compared) -> None:
    for gone, late in ((2, 0), (0, 1)):
        compared.begin(4)
        for index in range(len(compared.members)):
            compared.step(index)
        first = compared.members[0]
        for packet in first.process.end(gone, late):
            compared.deliver(bytes_of(packet), packet.receiver)
        first.write()
        for packet in [compared.members[1].process.ask(0, 0, 5)]:
            compared.deliver(bytes_of(packet), 0)
        answer = parse(compared.in_flight[-1])
        assert answer is not None
        assert answer.kind == PinchKind.HANDSHAKE
        assert (compared.members[1].rank.gone, compared.members[1].rank.late) == (gone, late)
