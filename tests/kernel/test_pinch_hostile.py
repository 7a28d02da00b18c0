"""Forged or damaged frames: they are counted by reason and dropped, and change no map.

``TESTBED_HOSTILE_FRAMES`` is the number of mutated frames that a rank receives; default: 30,000.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from testbed.kernel import XDP_DROP, XDP_PASS, XDP_REDIRECT, XDP_TX
from testbed.protocol.wire import FRAME_BYTES, Endpoint, PinchKind, decode, encode
from testbed.testing.graphs import draw_partitioned, embeddings
from tests.support.kernel.damage import FIELDS, damage
from tests.support.kernel.pinch import SEQ, Loaded, ack, first_kick, frame, handshake
from tests.support.kernel.runner import Runner

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("one_cpu")]

FRAMES = int(os.environ.get("TESTBED_HOSTILE_FRAMES", "30_000"))
BATCH = 500
ROOM = 1024
GRAPH = draw_partitioned(0, 60, 500, 3)
SENDER = 1
ADDRESSES = [(26, 4), (30, 4)]
"""Offsets and widths of IPv4's addresses."""


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    with Loaded(GRAPH, embeddings(0, GRAPH, 30), lanes="int32", mtu=576) as made:
        yield made


@pytest.fixture
def fresh(loaded) -> Loaded:
    """A rank in the middle of an exchange: one frame has arrived, all have been sent, none is
    acknowledged.
    """
    enter(loaded)
    loaded.link(0, loaded.embed(SENDER, 0, 0))
    return loaded


def enter(loaded: Loaded) -> None:
    loaded.open(0, SEQ)
    loaded.ports[0].maps.flows["next"] = loaded.publish(0)


STRANGER = Endpoint("02:00:00:00:00:63", "10.0.0.99")


def outside(data: bytes) -> bytes:
    found = decode(data)
    assert found is not None
    return encode(replace(found, source=STRANGER))


def flooded(loaded: Loaded, data: bytes) -> bytes:
    """The frame as it also reaches rank 2 when a switch has no forwarding table."""
    found = decode(data)
    assert found is not None
    return encode(replace(found, destination=endpoint(loaded, 2)))


def endpoint(loaded: Loaded, rank: int) -> Endpoint:
    member = loaded.groups[0].members[rank]
    return Endpoint(member.mac, member.ip)


def renamed(loaded: Loaded, data: bytes) -> bytes:
    """A frame that claims to be another rank's, by two wrong fields that agree with each other."""
    found = decode(data)
    assert found is not None
    header = replace(found.header, sender=SENDER)
    return encode(replace(found, header=header, source=endpoint(loaded, SENDER)))


def changed(data: bytes, place: int, value: int) -> bytes:
    return data[:place] + bytes([value]) + data[place + 1 :]


def embed(loaded: Loaded, **fields: int) -> bytes:
    """The second frame of a rank that has sent one."""
    return loaded.embed(SENDER, 1, 0, **fields)


def sized(loaded: Loaded, length: int) -> bytes:
    """A frame with a payload of another length and the right checksum."""
    return frame(loaded.ports[0], np.zeros(length // 8, np.uint64), SENDER, number=1, seq=SEQ)


def answer(loaded: Loaded, **fields: int) -> bytes:
    return ack(
        loaded.ports[0], fields.pop("by", SENDER), fields.pop("number", 1), range(2), **fields
    )


def handshake_from(loaded: Loaded, **fields: int) -> bytes:
    return handshake(loaded.ports[0], fields.pop("by", SENDER), 3, **fields)


REFUSED: dict[str, tuple[str, Callable[[Loaded], bytes]]] = {
    "cookie of another run": ("bad_cookie", lambda on: embed(on, cookie=1)),
    "cookie of another run, acknowledgement": ("bad_cookie", lambda on: answer(on, cookie=1)),
    "another version": ("bad_cookie", lambda on: embed(on, version=1)),
    "the exchange before the last": ("bad_seq", lambda on: embed(on, seq=SEQ - 2)),
    "the next exchange": ("bad_seq", lambda on: embed(on, seq=SEQ + 1)),
    "half the range away": ("bad_seq", lambda on: embed(on, seq=SEQ + 0x80000000)),
    "no sequence number": ("bad_seq", lambda on: embed(on, seq=0)),
    "acknowledgement, exchange before": ("bad_seq", lambda on: answer(on, seq=SEQ - 1)),
    "acknowledgement, next exchange": ("bad_seq", lambda on: answer(on, seq=SEQ + 1)),
    "a frame beyond what its sender can have": ("bad_chunk", lambda on: embed(on, number=60)),
    "a frame beyond everything": ("bad_chunk", lambda on: embed(on, number=0xFFFFFFFF)),
    "acknowledgement of a frame never made": ("bad_chunk", lambda on: answer(on, number=60)),
    "handshake without a word": ("bad_length", lambda on: handshake_from(on)[:FRAME_BYTES]),
    "handshake of another length": ("bad_length", lambda on: handshake_from(on, length=16)),
    "handshake with a wrong sum": ("bad_checksum", lambda on: handshake_from(on, checksum=1)),
    "handshake, its word is of another": (
        "bad_checksum",
        lambda on: changed(handshake_from(on), FRAME_BYTES + 4, SEQ + 1),
    ),
    "handshake that promises more": (
        "bad_checksum",
        lambda on: changed(handshake_from(on), FRAME_BYTES + 2, 1),
    ),
    "handshake of another layout": (
        "bad_tensor",
        lambda on: handshake_from(on, tag=int(on.ports[0].maps.control.tag) ^ 1),
    ),
    "handshake in another rank's name": ("bad_rank", lambda on: handshake_from(on, sender=2)),
    "handshake of a host outside": ("bad_rank", lambda on: outside(handshake_from(on))),
    "no payload": ("bad_length", lambda on: sized(on, 0)),
    "no row": ("bad_length", lambda on: sized(on, 8)),
    "a row and a half": ("bad_length", lambda on: sized(on, 8 + 8 * 15 + 64)),
    "more rows than fit": (
        "bad_length",
        lambda on: sized(on, on.layout.length(on.layout.rows + 1)),
    ),
    "half a word": ("bad_length", lambda on: embed(on, length=132)),
    "payload that is not there": ("bad_length", lambda on: embed(on)[:-8]),
    "more payload than is there": ("bad_length", lambda on: embed(on, length=0xFFB0)),
    "acknowledgement with too little": ("bad_length", lambda on: answer(on)[:-8]),
    "acknowledgement of another length": ("bad_length", lambda on: answer(on, length=120)),
    "another layout": (
        "bad_tensor",
        lambda on: embed(on, tag=int(on.ports[0].maps.control.tag) ^ 1),
    ),
    "in another rank's name": ("bad_rank", lambda on: embed(on, sender=2)),
    "in this rank's own name": ("bad_rank", lambda on: embed(on, sender=0)),
    "a rank that there is not": ("bad_rank", lambda on: embed(on, sender=3)),
    "a rank beyond the mask": ("bad_rank", lambda on: embed(on, sender=255)),
    "a host outside": ("bad_rank", lambda on: outside(embed(on))),
    "acknowledgement of a host outside": ("bad_rank", lambda on: outside(answer(on))),
    "acknowledgement in another rank's name": ("bad_rank", lambda on: answer(on, sender=2)),
    "a kick that comes by the link": ("bad_kind", lambda on: embed(on, kind=PinchKind.DOORBELL)),
    "no kind": ("bad_kind", lambda on: embed(on, kind=0)),
    "another kind": ("bad_kind", lambda on: embed(on, kind=255)),
    "wrong sum": ("bad_checksum", lambda on: embed(on, checksum=1)),
    "acknowledgement with a wrong sum": ("bad_checksum", lambda on: answer(on, checksum=1)),
    "for another rank": ("bad_receiver", lambda on: embed(on, receiver=2)),
    "for another host": ("bad_receiver", lambda on: flooded(on, embed(on))),
    "for another rank and host": ("bad_receiver", lambda on: flooded(on, embed(on, receiver=2))),
    "acknowledgement for another rank": ("bad_receiver", lambda on: answer(on, receiver=2)),
    "acknowledgement for another host": ("bad_receiver", lambda on: flooded(on, answer(on))),
    "handshake for another rank": ("bad_receiver", lambda on: handshake_from(on, receiver=2)),
    "handshake for another host": ("bad_receiver", lambda on: flooded(on, handshake_from(on))),
    "another kind for another rank": ("bad_receiver", lambda on: embed(on, kind=255, receiver=2)),
    "another rank's, in name and address": (
        "bad_checksum",
        lambda on: renamed(on, on.embed(2, 0, 0)),
    ),
    "another rank's acknowledgement, in name and address": (
        "bad_checksum",
        lambda on: renamed(on, answer(on, by=2)),
    ),
    "another rank's handshake, in name and address": (
        "bad_checksum",
        lambda on: renamed(on, handshake_from(on, by=2)),
    ),
    "one that has come, but damaged": (
        "bad_checksum",
        lambda on: on.embed(SENDER, 0, 0, checksum=1),
    ),
    "late, and damaged": ("bad_checksum", lambda on: embed(on, seq=SEQ - 1, checksum=1)),
    "another frame's number": ("bad_checksum", lambda on: changed(embed(on), 60, 2)),
    "the next exchange, as if of this one": (
        "bad_checksum",
        lambda on: changed(embed(on, seq=9), 56, SEQ),
    ),
    "an acknowledgement that says it is a frame": (
        "bad_checksum",
        lambda on: changed(answer(on), 45, PinchKind.EMBED),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_frames_are_counted_and_change_nothing(fresh, name) -> None:
    reason, make = REFUSED[name]
    counted, before = fresh.counters(0), fresh.memory(0)
    assert fresh.link(0, make(fresh)).retval == XDP_DROP
    assert fresh.memory(0) == before
    assert fresh.counters(0) == counted | {reason: 1}


def test_every_reason_is_met(loaded) -> None:
    assert {reason for reason, _ in REFUSED.values()} == {
        name for name in loaded.ports[0].maps.counters() if is_refusal(name)
    }


@pytest.mark.parametrize("seq", [SEQ - 2, SEQ + 2])
def test_a_frame_of_a_distant_exchange_only_updates_what_is_known_of_its_sender(fresh, seq) -> None:
    counted, before, peers = fresh.counters(0), fresh.memory(0), fresh.ports[0].maps.peers.copy()
    assert (
        fresh.link(0, handshake_from(fresh, seq=seq, entered=seq, waits=0b101)).retval == XDP_DROP
    )
    assert fresh.counters(0) == counted | {"bad_seq": 1}
    peers["heard"][SENDER] += 1
    peers["at"][SENDER], peers["waits"][SENDER] = seq, 0b101
    assert (fresh.ports[0].maps.peers == peers).all()
    after = fresh.memory(0)
    assert {name for name in after if after[name] != before[name]} == {"peers"}


def is_refusal(counter: str) -> bool:
    return counter.startswith("bad")


def flip(random: np.random.Generator, data: bytes, places: list[int]) -> bytes:
    """Flip one to three bits in different bytes."""
    damaged = bytearray(data)
    for place in random.choice(places, random.integers(1, 4), replace=False).tolist():
        damaged[place] ^= 1 << random.integers(8)
    return bytes(damaged)


@pytest.mark.parametrize("kind", ["embed", "ack", "handshake"])
def test_flipped_bits_are_refused(fresh, kind) -> None:
    """Flipped bits in the header, the addresses, or the payload: not even a duplicate is answered
    then.
    """
    random = np.random.default_rng(0)
    header = [place + i for place, width in (*ADDRESSES, *FIELDS) for i in range(width)]
    before = fresh.memory(0)
    good = {"embed": embed, "ack": answer, "handshake": handshake_from}[kind](fresh)
    for turn in range(6000):
        places = (
            header
            if turn % 2
            else list(range(FRAME_BYTES, FRAME_BYTES + 8 if kind == "handshake" else len(good)))
        )
        assert fresh.link(0, flip(random, good, places)).retval == XDP_DROP
    assert fresh.memory(0) == before
    reasons = {name for name in fresh.counters(0) if is_refusal(name)}
    assert reasons >= {
        "bad_kind",
        "bad_length",
        "bad_checksum",
        "bad_cookie",
        "bad_rank",
        "bad_receiver",
    }
    assert kind == "handshake" or reasons >= {"bad_seq", "bad_chunk"}


@pytest.mark.parametrize("kind", ["embed", "ack", "handshake"])
def test_every_single_flipped_bit_of_a_header_is_refused(fresh, kind) -> None:
    before = fresh.memory(0)
    good = {"embed": embed, "ack": answer, "handshake": handshake_from}[kind](fresh)
    for place, width in (*ADDRESSES, *FIELDS):
        for bit in range(8 * width):
            data = bytearray(good)
            data[place + bit // 8] ^= 1 << bit % 8
            assert fresh.link(0, bytes(data)).retval == XDP_DROP, (place, bit)
    assert fresh.memory(0) == before


def test_damaged_kicks_send_nothing(fresh) -> None:
    """All kinds of kicks for the program that sends, from the field `kind` on."""
    port = fresh.ports[0]
    before = fresh.memory(0)
    for good in (first_kick(port), bytes(port.kicks.handshake)):
        for place, width in FIELDS[2:]:
            for bit in range(8 * width):
                data = bytearray(good)
                data[place + bit // 8] ^= 1 << bit % 8
                fresh.run(0, "pinch_send", bytes(data))
    assert fresh.memory(0) == before
    reasons = {name for name in fresh.counters(0) if is_refusal(name)}
    assert reasons == {"bad_cookie", "bad_kind", "bad_checksum", "bad_receiver"}
    assert "handshakes" not in fresh.counters(0)


class Mutations:
    """Valid frames of all kinds with flipped bits or other values in fields, truncated or extended;
    reproducible.
    """

    def __init__(self, loaded: Loaded, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        port = loaded.ports[0]
        made = [
            *loaded.frames_to(0),
            *loaded.frames_to(0, flags=1),
            *loaded.frames_to(0, seq=SEQ - 1),
        ]
        made += [ack(port, sender, chunk, range(9)) for sender in (1, 2) for chunk in range(4)]
        made += [
            handshake(port, sender, 4, seq=SEQ + late) for sender in (1, 2) for late in (-1, 0, 1)
        ]
        made += [first_kick(port), port.kicks.work]
        self.good = np.array([np.frombuffer(data.ljust(ROOM, b"\0"), np.uint8) for data in made])
        self.lengths = np.array([len(data) for data in made])

    def draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        random = self.random
        chosen = random.integers(len(self.good), size=count)
        frames, lengths = self.good[chosen], self.lengths[chosen]
        damage(random, frames, 600, 5)
        cut = random.random(count) < 0.1
        lengths[cut] = random.integers(14, ROOM + 1, count)[cut]
        return frames, lengths


def test_mutated_frames_add_nothing_that_was_not_sent(loaded) -> None:
    """A frame counts once if an unchanged copy is among them: after the other frames have arrived,
    the sums are right.
    """
    mutations = Mutations(loaded, seed=1)
    runner = Runner(loaded.program(0, "pinch_link"))
    numbers = loaded.numbers_to(0)
    good = loaded.frames_to(0)
    counted: dict[str, int] = {}
    verdicts: set[int] = set()
    for _ in range(max(FRAMES // BATCH, 1)):
        enter(loaded)
        verdicts |= runner(*mutations.draw(BATCH))
        port = loaded.ports[0]
        assert port.maps.control.received <= len(numbers)
        assert port.maps.control.acked <= int(port.maps.frames["copies"].sum())
        for name, count in loaded.counters(0).items():
            counted[name] = counted.get(name, 0) + count
        for data in good:
            loaded.link(0, data)
        assert port.maps.control.received == len(numbers)
        np.testing.assert_array_equal(loaded.results(0), loaded.expected(0))
    assert verdicts <= {XDP_DROP, XDP_TX, XDP_REDIRECT}  # never XDP_ABORTED
    assert all(counted[reason] for reason, _ in REFUSED.values())
    assert counted["received"] > FRAMES // 100


def test_mutated_frames_at_the_doorbell_change_nothing(loaded) -> None:
    mutations = Mutations(loaded, seed=2)
    enter(loaded)
    before = loaded.memory(0)
    for name in ("pinch_doorbell", "pinch_execute"):
        runner = Runner(loaded.program(0, name))
        assert runner(*mutations.draw(FRAMES // 10)) <= {XDP_DROP, XDP_PASS, XDP_REDIRECT}
        assert loaded.memory(0) == before
