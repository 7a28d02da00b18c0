"""Frames to bytes and back, against bytes written by hand and against scapy's lower layers."""

from dataclasses import asdict, fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from testbed.protocol.scapy_layers import RingHeader
from testbed.protocol.wire import (
    EARLIER,
    FRAME_BYTES,
    PORT,
    RESULT,
    Endpoint,
    Frame,
    Header,
    Kind,
    checksum,
    decode,
    encode,
    frame_seal,
    ip_sum,
)

U8, U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64))
ENDPOINTS = st.builds(
    Endpoint.unpack, st.binary(min_size=6, max_size=6), st.binary(min_size=4, max_size=4)
)
LENGTHS = st.integers(0, 54).map(lambda blocks: 64 * blocks)
HEADERS = st.builds(
    Header, U8, U16, U64, U32, U32, U64, U8, U8, U8, U8, U8, U8, LENGTHS, U16, U16, U32, U8
)
WORDS = st.lists(U64, max_size=40).map(lambda words: np.array(words, np.uint64))

H1 = Endpoint("02:00:00:00:00:01", "10.0.0.1")
H2 = Endpoint("02:00:00:00:00:02", "10.0.0.2")
FRAME = Frame(
    Header(
        Kind.RESULT,
        group=0x0102,
        cookie=0x1122334455667788,
        seq=7,
        chunk=9,
        checksum=0xFFFFFFFFFFFFFFFF,
        stream=0x11,
        hop=2,
        sender=3,
        receiver=4,
        flags=EARLIER | RESULT,
        round=5,
        length=64,
        tag=0xBEEF,
        attempt=0x0607,
        prev=0x08090A0B,
    ),
    np.array([1, 2**64 - 2, 0, 0, 0, 0, 0, 0], np.uint64),
    H1,
    H2,
)
GOLDEN = """
    020000000002 020000000001 0800
    45 00 008a 0000 4000 40 11 2661 0a000001 0a000002
    4312 4312 0076 0000
    5241 02 02 0201 8877665544332211 07000000 09000000 ffffffffffffffff
    11 02 03 04 21 05 4000 efbe 0706 0b0a0908
    0100000000000000 feffffffffffffff 0000000000000000 0000000000000000
    0000000000000000 0000000000000000 0000000000000000 0000000000000000
"""


def same(one: Frame, other: Frame) -> bool:
    parts = ("header", "source", "destination", "trailer")
    alike = all(getattr(one, name) == getattr(other, name) for name in parts)
    return alike and np.array_equal(one.payload, other.payload)


def test_golden_bytes() -> None:
    assert encode(FRAME).hex() == "".join(GOLDEN.split())
    found = decode(bytes.fromhex(GOLDEN))
    assert found is not None
    assert same(found, FRAME)
    assert checksum(FRAME.payload) == FRAME.header.checksum


@given(HEADERS, WORDS, ENDPOINTS, ENDPOINTS, st.binary(max_size=7))
def test_what_is_encoded_is_decoded(header, payload, source, destination, trailer) -> None:
    frame = Frame(header, payload, source, destination, trailer)
    data = encode(frame)
    assert len(data) == FRAME_BYTES + 8 * payload.size + len(trailer)
    found = decode(data)
    assert found is not None
    assert same(found, frame)


@given(HEADERS, WORDS, ENDPOINTS, ENDPOINTS)
def test_scapy_builds_and_dissects_the_same_bytes(header, payload, source, destination) -> None:
    """scapy is an independent codec, which computes the IPv4 checksum and the lengths itself."""
    header.length = 8 * payload.size
    data = encode(Frame(header, payload, source, destination))
    said = asdict(header)
    packet = Ether(data)
    assert {name: packet[RingHeader].getfieldval(name) for name in said} == said
    built = (
        Ether(dst=destination.mac, src=source.mac)
        / IP(src=source.ip, dst=destination.ip, id=0, flags="DF", ttl=64)
        / UDP(sport=PORT, dport=PORT, chksum=0)
        / RingHeader(**said)
        / Raw(payload.tobytes())
    )
    assert bytes(built) == data


WIDTHS = {
    "seq": 32,
    "chunk": 32,
    "length": 16,
    "tag": 16,
    "attempt": 16,
    "prev": 32,
    "group": 16,
    "cookie": 64,
}
SEALED = ("kind", "stream", "hop", "sender", "receiver", "flags", "round", *WIDTHS)


def test_the_seal_covers_every_field_but_the_checksum_and_the_version() -> None:
    """Frames of another version are refused before any other field is read."""
    assert {*SEALED, "checksum", "version"} == {field.name for field in fields(Header)}


@given(HEADERS, st.sampled_from(SEALED), st.integers(0, 63))
def test_a_flipped_bit_breaks_the_seal(header, field, bit) -> None:
    seal = frame_seal(header)
    changed = replace(header, **{field: getattr(header, field) ^ 1 << bit % WIDTHS.get(field, 8)})
    assert frame_seal(changed) != seal
    assert frame_seal(replace(header, checksum=header.checksum ^ 1)) == seal


@pytest.mark.parametrize("length", range(FRAME_BYTES))
def test_truncated_headers_are_no_frame(length) -> None:
    assert decode(encode(FRAME)[:length]) is None


@pytest.mark.parametrize(
    ("what", "offset"),
    [
        ("ethertype", 12),
        ("IP version", 14),
        ("protocol", 23),
        ("destination port", 36),
        ("magic", 42),
    ],
)
def test_other_protocols_are_no_frame(what, offset) -> None:
    data = bytearray(encode(FRAME))
    data[offset] ^= 0x01
    assert decode(bytes(data)) is None, what


@given(WORDS, WORDS)
def test_checksums_add_up(one, other) -> None:
    """This lets a rank update the checksum without reading the payload twice."""
    size = min(one.size, other.size)
    added = checksum(one[:size]) + checksum(other[:size])
    assert checksum(one[:size] + other[:size]) == added % 2**64


@given(ENDPOINTS, ENDPOINTS)
def test_ip_sum_is_never_zero(one, other) -> None:
    """Hence the kernel's single fold of sum and length yields the checksum of RFC 1071, without
    negative zeros.
    """
    assert 0 < ip_sum(one.ip, other.ip) <= 0xFFFF


@pytest.mark.parametrize("length", [0, 8, 13, 16, 40])
def test_resize(length) -> None:
    frame = Frame(Header(0), np.array([1, 2], np.uint64), trailer=b"\x03")
    frame.resize(length // 8 * 8)
    expected = np.array([1, 2, 3, 0, 0][: length // 8], np.uint64)
    np.testing.assert_array_equal(frame.payload, expected)
    assert frame.trailer == b""
