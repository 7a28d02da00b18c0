"""Exchanges by tokens: the program and all of its maps are compared with
`testbed.protocol.token.rank`, frame by frame.
"""

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from testbed.kernel import XDP_DROP, XDP_TX
from testbed.protocol.pinch.packet import Packet
from testbed.protocol.sequence import NEWEST, seq_after
from testbed.protocol.wire import Frame, PinchKind, decode
from tests.support.kernel.tokens import ROOM, SHAPES, Member, bytes_of, configs, parse
from tests.support.tiers import broad

pytestmark = pytest.mark.kernel

STEPS = 600


@dataclass
class Compared:
    """Ranks, and the frames between them."""

    members: list[Member]
    in_flight: list[bytes] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    entered: list[bool] = field(default_factory=list)

    def begin(self, seq: int) -> None:
        for member in self.members:
            member.begin(seq)
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
