"""scapy and Wireshark show every kind of frame, with the names of the contract."""

import itertools
import json
import shutil
import subprocess

import numpy as np
import pytest
from scapy.layers.l2 import Ether

from testbed.capture.lua import dissector
from testbed.capture.pcapng import INBOUND, Packet, Writer
from testbed.kernel.abi import constant, dtype
from testbed.protocol.meanings import ENDED, KINDS, MEANINGS, PASSED_ON, members
from testbed.protocol.scapy_layers import PinchBitmap, PinchHandshake, RingHeader, RingLanes
from testbed.protocol.wire import (
    Endpoint,
    Frame,
    Header,
    Kind,
    PinchKind,
    encode,
    stored,
)

H1 = Endpoint("02:00:0a:00:00:01", "10.0.0.1")
H2 = Endpoint("02:00:0a:00:00:02", "10.0.0.2")
LAYOUT = dtype("ring_frame").fields
UNIONS = {
    name
    for one, other in itertools.permutations(list(LAYOUT), 2)
    for name in (one, other)
    if LAYOUT[one][1] == LAYOUT[other][1]
}
ENDING = constant("PINCH_ENDED")


def frame(kind, length=128, flags=0, hop=0, word=0x0000000700001234):
    payload = np.arange(length // 8, dtype=np.uint64)
    payload[:1] = word
    header = Header(
        kind, group=3, cookie=5, seq=9, chunk=77, stream=1, hop=hop, sender=1, receiver=2,
        flags=flags, round=4, length=length, tag=6, attempt=8, prev=99,
    )  # fmt: skip
    made = Frame(header, source=H1, destination=H2)
    made.resize(length)
    made.fill(payload, length)
    return encode(made)


FRAMES = [
    *(frame(kind) for kind in KINDS),
    *(
        frame(kind, 0, constant("RING_FLAG_ENDED") | constant("RING_FLAG_VERIFIED_ACK"))
        for kind in (Kind.PROBE, Kind.ALIVE)
    ),
    frame(Kind.NACK, 0, hop=1),
    frame(PinchKind.HANDSHAKE, word=7 << 32 | ENDING),
    frame(PinchKind.HANDSHAKE, flags=constant("PINCH_FLAG_LATE"), word=7 << 32 | ENDING),
    frame(99),
]


def test_every_kind_has_a_meaning_and_every_member_a_kind():
    assert set(MEANINGS) == set(KINDS)
    maps = [
        each
        for meaning in MEANINGS.values()
        for each in (meaning.members, *(switch.members for switch in meaning.switches))
    ]
    maps += [ENDED.members, PASSED_ON, {"prev": "late"}]
    for union, member in {pair for each in maps for pair in each.items()}:
        assert stored(**{member: 0}) == {union: 0}, member
    assert {member for each in maps for member in each.values()} == UNIONS


@pytest.mark.parametrize(
    ("kind", "flags", "hop", "exponent", "found"),
    [
        (Kind.PROBE, 0, 0, None, {"chunk": "front", "tag": "tag", "prev": "prev"}),
        (
            Kind.ALIVE,
            constant("RING_FLAG_ENDED"),
            0,
            None,
            {"chunk": "blamed", "round": "reason", "tag": "tag", "prev": "prev"},
        ),
        (PinchKind.HANDSHAKE, 2, 0, ENDING, {"chunk": "nonfinite", "tag": "tag", "prev": "late"}),
        (99, 0, 0, None, {}),
    ],
)
def test_members_of_a_frame(kind, flags, hop, exponent, found):
    assert members(kind, flags, hop, exponent) == found


def test_payloads():
    lanes = Ether(frame(Kind.REDUCE))[RingLanes]
    assert lanes.words == [0x0000000700001234, *range(1, 16)]
    assert Ether(frame(Kind.REDUCE, 4096))[RingLanes].words[-1] == 511
    assert Ether(frame(PinchKind.ACK))[PinchBitmap].words[2] == 2
    handshake = Ether(frame(PinchKind.HANDSHAKE, 64))[PinchHandshake]
    assert handshake.entering == 7
    assert handshake.frames << constant("PINCH_EXPONENT_BITS") | handshake.exponent == 0x1234


@pytest.mark.parametrize("data", FRAMES, ids=range(len(FRAMES)))
def test_dissecting_changes_no_byte(data):
    packet = Ether(data)
    assert packet.build() == data
    assert packet.summary()


@pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed")
def test_wireshark_shows_what_scapy_shows(tmp_path):
    script, capture = tmp_path / "testbed.lua", tmp_path / "x.pcapng"
    script.write_text(dissector())
    with capture.open("wb") as file:
        Writer(file, [("h1", "eth0 of h1")], 16384, "test").write(
            [Packet(index, 0, INBOUND, len(data), data) for index, data in enumerate(FRAMES)]
        )
    command = ["tshark", "-X", f"lua_script:{script}", "-r", str(capture), "-T", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    shown = [each["_source"]["layers"]["testbed"] for each in json.loads(done.stdout)]
    assert len(shown) == len(FRAMES)
    for data, fields in zip(FRAMES, shown, strict=True):
        header = Ether(data)[RingHeader]
        named = {name: header.getfieldval(name) for name in set(header.fields) - UNIONS}
        for name, value in (named | header.meanings).items():
            assert int(fields[f"testbed.{name}"], 0) == int(value), name
        absent = UNIONS - set(header.meanings)
        assert not absent & {name.removeprefix("testbed.") for name in fields}
        if isinstance(header.payload, PinchHandshake):
            assert int(fields["testbed.handshake.frames"]) == header.payload.frames
            assert int(fields["testbed.handshake.entering"]) == header.payload.entering
