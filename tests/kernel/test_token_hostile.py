"""Forged or damaged frames of exchanges by tokens: they are counted by reason and dropped, and
change no map.

``TESTBED_HOSTILE_FRAMES`` is the number of mutated frames that a rank receives; default: 30,000.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from testbed.kernel import XDP_DROP, XDP_PASS, XDP_REDIRECT, XDP_TX
from testbed.protocol.pinch.packet import NOBODY, Packet
from testbed.protocol.token.memory import COUNTERS
from testbed.protocol.token.process import Process
from testbed.protocol.token.rank import Rank, sealed
from testbed.protocol.wire import FRAME_BYTES, PinchKind
from tests.support.kernel.damage import FIELDS, damage
from tests.support.kernel.runner import Runner
from tests.support.kernel.tokens import ROOM, SHAPES, Member, bytes_of, configs

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("one_cpu")]

FRAMES = int(os.environ.get("TESTBED_HOSTILE_FRAMES", "30_000"))
BATCH = 500
WIDTH = 256  # bytes of a mutated frame, at most
SEQ = 5
ADDRESSES = [(26, 4), (30, 4)]
"""Offsets and widths of IPv4's addresses."""
CHECK = 8  # bytes behind the header, in front of the data


class Scene:
    """Rank 0 in the middle of an exchange with ranks 1 and 2: one frame of rank 1 has arrived, of
    three; its own have been sent.
    """

    def __init__(self, stack: ExitStack) -> None:
        self.configs = list(configs(*SHAPES["three"]))
        self.member = Member(self.configs[0], stack, min(os.sched_getaffinity(0)))
        self.first, self.embed = self.others()[:2]
        sent = self.enter()
        asks, answers = Rank(self.configs[0]), Rank(self.configs[1])
        answers.open = SEQ
        token = answers.on_link(sent[0])
        assert token is not None
        self.token = token
        self.ask = self.asking(1, 0)
        later = Process(asks)
        later.seq = SEQ + 1
        status = answers.on_link(later.ask(1, 0, 1))
        assert status is not None
        self.status = status

    def message(self, sender: int, count: int) -> list[tuple[int, ...]]:
        chance = random.Random(sender)
        return [tuple(chance.getrandbits(64) for _ in range(ROOM)) for _ in range(count)]

    def others(self, seq: int = SEQ) -> list[Packet]:
        """All frames of the other ranks for this one."""
        found = []
        for config in self.configs[1:]:
            process = Process(Rank(config))
            process.open(seq)
            count = config.pairs[0].frames_out
            found += process.send({0: self.message(config.rank, count)})
            while process.unsent:
                process.rank.returned += 1
                found += process.push()
        return found

    def asking(self, sender: int, number: int) -> Packet:
        process = Process(Rank(self.configs[sender]))
        process.open(SEQ)
        return process.ask(0, number, 1)

    def enter(self) -> list[Packet]:
        """Begin the exchange."""
        member, pairs = self.member, self.configs[0].pairs
        member.begin(SEQ)
        sent = member.process.send(
            {to: self.message(0, pairs[to].frames_out) for to in self.configs[0].partners}
        )
        member.write()
        return sent

    def link(self, packet: Packet | bytes) -> int:
        data = packet if isinstance(packet, bytes) else bytes_of(packet)
        return self.member.program.test_run(data).retval

    def memory(self) -> dict[str, bytes]:
        """All that frames may change, but for what is known of a rank's liveness."""
        member = self.member
        peers, control = member.peers.copy(), member.control.value.copy()
        peers["heard"] = control["foreign"] = 0
        names = ("outs", "slots", "payloads", "landing", "order")
        found: dict[str, bytes] = {name: getattr(member, name).tobytes() for name in names}
        return found | {"peers": peers.tobytes(), "control": control.tobytes()}

    def counters(self) -> dict[str, int]:
        return {name: count for name, count in self.member.counted().items() if count}


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        with ExitStack() as stack:
            yield Scene(stack)
    finally:
        os.sched_setaffinity(0, before)


@pytest.fixture
def fresh(scene) -> Scene:
    scene.enter()
    assert scene.link(scene.first) == XDP_TX
    return scene


def changed(packet: Packet, place: int) -> bytes:
    data = bytearray(bytes_of(packet))
    data[place] ^= 1
    return bytes(data)


def of(packet: Packet, **fields: int) -> Packet:
    """A frame with other fields, sealed rightly."""
    return sealed(packet.having(**fields))


REFUSED: dict[str, tuple[str, Callable[[Scene], Packet | bytes]]] = {
    "cookie of another run": ("bad_cookie", lambda on: of(on.embed, cookie=1)),
    "cookie of another run, token": ("bad_cookie", lambda on: of(on.token, cookie=1)),
    "another version": ("bad_cookie", lambda on: of(on.embed, version=1)),
    "another group": ("bad_cookie", lambda on: of(on.embed, group=8)),
    "for another rank": ("bad_receiver", lambda on: of(on.embed, receiver=2)),
    "flooded by a switch": ("bad_receiver", lambda on: sealed(on.embed._replace(destination=2))),
    "in another rank's name": ("bad_rank", lambda on: of(on.embed, sender=2)),
    "in this rank's name": ("bad_rank", lambda on: of(on.embed, sender=0)),
    "of a rank that there is not": ("bad_rank", lambda on: of(on.embed, sender=16)),
    "of a host outside": ("bad_rank", lambda on: sealed(on.embed._replace(source=NOBODY))),
    "token of a host outside": ("bad_rank", lambda on: sealed(on.token._replace(source=NOBODY))),
    "no room for a check": ("bad_length", lambda on: of(on.embed, length=7)),
    "more than the frame has": ("bad_length", lambda on: of(on.embed, length=CHECK + 8 * 32)),
    "more than fits": ("bad_length", lambda on: long(on.embed)),
    "a wrong check": ("bad_checksum", lambda on: changed(on.embed, FRAME_BYTES)),
    "a wrong seal": ("bad_checksum", lambda on: on.embed._replace(checksum=1)),
    "other flags": ("bad_checksum", lambda on: on.embed.having(flags=3)),
    "a token that says it is a frame": (
        "bad_checksum",
        lambda on: on.token._replace(kind=PinchKind.EMBED),
    ),
    "a doorbell": ("bad_kind", lambda on: of(on.embed, kind=PinchKind.DOORBELL)),
    "rows of another format": ("bad_tensor", lambda on: of(on.embed, tag=0x5A5B)),
    "a frame behind the last": ("bad_chunk", lambda on: of(on.embed, number=3)),
    "a frame beyond everything": ("bad_chunk", lambda on: of(on.embed, number=0xFFFFFFFF)),
    "more frames than there can be": ("bad_chunk", lambda on: of(on.embed, frames=4)),
    "no frames": ("bad_chunk", lambda on: of(on.embed, frames=0)),
    "token of a frame never made": ("bad_chunk", lambda on: of(on.token, number=2)),
    "question for a frame never made": ("bad_chunk", lambda on: of(on.ask, number=2)),
    "the exchange before": ("bad_seq", lambda on: of(on.embed, seq=SEQ - 1)),
    "the exchange after the next": ("bad_seq", lambda on: of(on.embed, seq=SEQ + 2)),
    "half the range away": ("bad_seq", lambda on: of(on.embed, seq=SEQ + 0x80000000)),
    "no sequence number": ("bad_seq", lambda on: of(on.embed, seq=0)),
    "token of the exchange before": ("bad_seq", lambda on: of(on.token, seq=SEQ - 1)),
    "token of the next exchange": ("bad_seq", lambda on: of(on.token, seq=SEQ + 1)),
}


def long(packet: Packet) -> Packet:
    """A frame with more data than a slot has room for."""
    body = (*packet.body, *range(ROOM))
    return sealed(packet._replace(body=body, length=CHECK + 8 * 2 * ROOM))


@pytest.mark.parametrize("name", REFUSED)
def test_refused_frames_are_counted_and_change_nothing(fresh, name) -> None:
    reason, make = REFUSED[name]
    counted, before = fresh.counters(), fresh.memory()
    assert fresh.link(make(fresh)) == XDP_DROP
    assert fresh.memory() == before
    assert fresh.counters() == counted | {reason: counted.get(reason, 0) + 1}


def test_every_reason_is_met() -> None:
    assert {reason for reason, _ in REFUSED.values()} == {
        name for name in COUNTERS if name.startswith("bad")
    }


@pytest.mark.parametrize("kind", ["embed", "token", "ask", "status"])
def test_every_single_flipped_bit_of_a_header_is_refused(fresh, kind) -> None:
    """Or of the data's check: not even a duplicate is sent back then, nor a question answered."""
    before, good = fresh.memory(), bytes_of(getattr(fresh, kind))
    for place, width in (*ADDRESSES, *FIELDS, (FRAME_BYTES, CHECK)):
        for bit in range(8 * width):
            data = bytearray(good)
            data[place + bit // 8] ^= 1 << bit % 8
            assert fresh.link(bytes(data)) == XDP_DROP, (place, bit)
    assert fresh.memory() == before


class Mutations:
    """Valid frames of all kinds with flipped bits or other values in fields, truncated or extended;
    reproducible.
    """

    def __init__(self, scene: Scene, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        made = [packet for seq in (SEQ - 1, SEQ, SEQ + 1) for packet in scene.others(seq)]
        made += [scene.token, scene.ask, scene.status, scene.asking(2, 0)]
        frames = [bytes_of(packet) for packet in made]
        self.good = np.array([np.frombuffer(data.ljust(WIDTH, b"\0"), np.uint8) for data in frames])
        self.lengths = np.array([len(data) for data in frames])

    def draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = self.random.integers(len(self.good), size=count)
        frames, lengths = self.good[chosen], self.lengths[chosen]
        damage(self.random, frames, FRAME_BYTES + CHECK + 8 * ROOM, 5)
        cut = self.random.random(count) < 0.1
        lengths[cut] = self.random.integers(14, WIDTH + 1, count)[cut]
        return frames, lengths


def test_mutated_frames_leave_nothing_that_was_not_sent(scene) -> None:
    """What has landed is what was sent, once the process has verified it and asked again for what
    is damaged.
    """
    mutations, runner = Mutations(scene, seed=1), Runner(scene.member.program)
    others, verdicts, counted = scene.others(), set[int](), dict.fromkeys(COUNTERS, 0)
    partners = {
        rank: scene.message(rank, scene.configs[rank].pairs[0].frames_out)
        for rank in scene.configs[0].partners
    }
    damaged = 0
    for _ in range(max(FRAMES // BATCH, 1)):
        scene.enter()
        member = scene.member
        verdicts |= runner(*mutations.draw(BATCH))
        for packet in others:
            scene.link(packet)
        member.read()
        found = member.process.take()
        if found is None:
            damaged += 1
            member.write()
            for packet in others:
                scene.link(packet)
            member.read()
            found = member.process.take()
        assert found == partners
        for name, count in scene.counters().items():
            counted[name] += count
    assert verdicts <= {XDP_DROP, XDP_TX, XDP_PASS}  # never XDP_ABORTED
    reasons = {name for name in counted if name.startswith("bad") and counted[name]}
    assert reasons >= {"bad_cookie", "bad_receiver", "bad_rank", "bad_length", "bad_checksum"}
    assert counted["received"] > FRAMES // 100
    assert damaged


def test_mutated_frames_at_the_doorbell_send_only_what_is_ready(scene) -> None:
    """They find nothing to send, since tokens carry all, or are refused."""
    mutations, runner = Mutations(scene, seed=2), Runner(scene.member.doorbell)
    scene.enter()
    member = scene.member
    before = scene.memory()
    member.control.next = member.control.ready
    ready = scene.memory()
    assert ready != before
    assert runner(*mutations.draw(FRAMES // 10)) <= {XDP_DROP, XDP_PASS, XDP_REDIRECT}
    assert scene.memory() == ready
    assert "sent" not in scene.counters()
