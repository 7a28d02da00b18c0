"""The wire format: frames from and to bytes, as laid out in ``bpf/shared/wire_abi.h``.

Reference model of ``bpf/lib/frame.h``.

A frame is Ethernet, IPv4, UDP, the ring's header of 46 bytes, and a payload of 64-bit words::

    0  Ethernet 14 | 14 IPv4 20 | 34 UDP 8 | 42 ring 46 | 88 payload

The ring's payloads of more than `LINEAR_PAYLOAD` bytes begin at `JUMBO_OFFSET` instead.

The ring's fields are little endian, like the lanes in the payload; the headers in front of them are
big endian, as usual. UDP's checksum is 0 (none, RFC 768); the ring's own is the sum of the
payload's words and of the header's seal (`frame_seal`), modulo 2**64.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from testbed.kernel.abi import constant, dtype
from testbed.protocol import check_weights

__all__ = [
    "AGAIN",
    "BLOCK",
    "CHUNK_SHIFT",
    "EARLIER",
    "ENDED",
    "FRAME",
    "FRAME_BYTES",
    "JUMBO_OFFSET",
    "LINEAR_PAYLOAD",
    "MAGIC",
    "MAX_CHUNKS",
    "MAX_PAYLOAD",
    "MAX_RANKS",
    "NOBODY",
    "NOTHING",
    "PORT",
    "RESTART",
    "RESULT",
    "ROUND_SHIFT",
    "VERIFIED",
    "VERIFIED_ACK",
    "VERSION",
    "WEIGHTS",
    "Endpoint",
    "Frame",
    "Header",
    "Kind",
    "Member",
    "PinchKind",
    "Words",
    "checksum",
    "decode",
    "encode",
    "frame_seal",
    "ip_sum",
    "net_peer",
    "offset_of",
    "stored",
    "weigh",
]

Words = NDArray[np.uint64]

PORT = constant("RING_PORT")
MAGIC = constant("RING_MAGIC")
VERSION = constant("RING_VERSION")
MAX_RANKS = constant("RING_MAX_RANKS")
MAX_CHUNKS = constant("RING_MAX_CHUNKS")
"""Maximum number of chunks of a tensor: as many as ``prev`` can number."""
NOTHING = constant("RING_NOTHING")
"""Value of ``prev``: nothing of this sequence number was sent on the stream before."""
FRAME_BYTES = dtype("ring_frame").itemsize
"""Bytes of a frame's headers, from Ethernet's to the ring's."""
BLOCK = constant("RING_BLOCK")
"""The length of every payload is a multiple of this, in bytes."""
LINEAR_PAYLOAD = constant("RING_LINEAR_BYTES")
"""Maximum bytes of a payload that fits into the linear part of a frame on veth."""
MAX_PAYLOAD = constant("RING_MAX_BLOCKS") * BLOCK
"""Maximum bytes of a payload: as many as fit into the largest MTU of multi-buffer XDP on veth."""
JUMBO_OFFSET = constant("RING_JUMBO_OFFSET")
"""Where a payload begins that does not fit into the linear part: at a block boundary, like pages.
"""

ROUND_SHIFT, CHUNK_SHIFT = constant("RING_ROUND_SHIFT"), constant("RING_CHUNK_SHIFT")
"""Positions of round and chunk in ``prev``, above `memory.Stage`."""

RESULT = constant("RING_FLAG_RESULT")
"""Flag of a nack: the result is missing, not the partial sum."""
VERIFIED = constant("RING_FLAG_VERIFIED")
"""Flag of a probe and its answer: the sender's process has verified all results of this sequence
number.
"""
VERIFIED_ACK = constant("RING_FLAG_VERIFIED_ACK")
"""Flag of an answer: the sender knows that the receiver has verified all results."""
EARLIER = constant("RING_FLAG_EARLIER")
AGAIN = constant("RING_FLAG_AGAIN")
"""Flag: ``prev`` belongs to the previous sequence number."""
ENDED = constant("RING_FLAG_ENDED")
"""Flag of a probe and its answer: the sender has given up, for a ``reason``, and because of ranks
that are ``blamed``, a bit each.
"""
RESTART = constant("RING_FLAG_RESTART")
"""Flag of a nack: no buffer has the partial sum, or the result was refused, so the reduce-scatter
phase has to start over.
"""

_BLOCK_WORDS = BLOCK // 8
_U64 = 0xFFFFFFFFFFFFFFFF


WEIGHTS = np.array(check_weights.WEIGHTS, np.uint64)
"""`check_weights.WEIGHTS` as an array."""

_FRAME = dtype("ring_frame")
_ETHERNET, _IPV4 = dtype("net_eth"), dtype("net_ipv4")
_ETHERTYPE, _PROTOCOL = constant("NET_ETHERTYPE_IPV4"), constant("NET_PROTOCOL_UDP")
_VERSION_IHL, _DONT_FRAGMENT, _TTL = (
    constant(f"NET_IPV4_{name}") for name in ("VERSION_IHL", "DONT_FRAGMENT", "TTL")
)
_OFFSETS = {name: offset for name, (_, offset, *_) in (_FRAME.fields or {}).items()}
_STORED = {
    name: next(first for first, place in _OFFSETS.items() if place == offset)
    for name, offset in _OFFSETS.items()
}
#: The fields behind the magic number, by their names in `Header`: the first members of unions.
_FIELDS = list(dict.fromkeys(_STORED.values()))[4:]
FRAME: np.dtype[Any] = _FRAME[["eth", "ip", "udp", "magic", *_FIELDS]]
"""``struct ring_frame``, of each union only the first member."""


class Kind(IntEnum):
    """``enum ring_kind``."""

    REDUCE = constant("RING_REDUCE")
    RESULT = constant("RING_RESULT")
    NACK = constant("RING_NACK")
    PROBE = constant("RING_PROBE")
    ALIVE = constant("RING_ALIVE")
    DOORBELL = constant("RING_DOORBELL")


class PinchKind(IntEnum):
    """``enum pinch_kind``."""

    EMBED = constant("PINCH_EMBED")
    ACK = constant("PINCH_ACK")
    HANDSHAKE = constant("PINCH_HANDSHAKE")
    ASK = constant("PINCH_ASK")
    DOORBELL = constant("PINCH_DOORBELL")
    WORK = constant("PINCH_WORK")
    SEND_HANDSHAKES = constant("PINCH_SEND_HANDSHAKES")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host's addresses, in colon-separated and dotted notation."""

    mac: str
    ip: str

    @property
    def mac_bytes(self) -> bytes:
        """The MAC address as in a frame."""
        return bytes.fromhex(self.mac.replace(":", ""))

    @classmethod
    def unpack(cls, mac: bytes, ip: bytes | int) -> Self:
        """From the addresses in a frame."""
        return cls(mac.hex(":"), str(ipaddress.IPv4Address(ip)))


NOBODY = Endpoint("00:00:00:00:00:00", "0.0.0.0")


class Member:
    """Another member of a union in ``struct ring_frame``, as an attribute of what has the first."""

    def __init__(self, name: str) -> None:
        self._stored = _STORED[name]

    def __get__(self, header: Any, owner: type) -> int:
        found: int = getattr(header, self._stored)
        return found

    def __set__(self, header: Any, value: int) -> None:
        setattr(header, self._stored, value)


def stored(**members: int) -> dict[str, int]:
    """Members of ``struct ring_frame`` by their names in `Header`."""
    return {_STORED[name]: value for name, value in members.items()}


@dataclass(slots=True)
class Header:
    """The ring's header, without magic number and version, in the order of the wire. ``struct
    ring_frame`` explains the fields, and which of a union's members each kind of frame has.

    :param kind: A `Kind`, or any other byte that was received.
    :param length: Bytes of the payload: 0 for probes, else a multiple of `BLOCK`.
    """

    kind: int
    group: int = 0
    cookie: int = 0
    seq: int = 0
    chunk: int = 0
    checksum: int = 0
    stream: int = 0
    hop: int = 0
    sender: int = 0
    receiver: int = 0
    flags: int = 0
    round: int = 0
    length: int = 0
    tag: int = 0
    attempt: int = 0
    prev: int = NOTHING
    version: int = VERSION

    front, blamed, reason = Member("front"), Member("blamed"), Member("reason")
    acked, summed = Member("acked"), Member("summed")
    number, serial, flow = Member("number"), Member("serial"), Member("flow")
    waits, entered, frames = Member("waits"), Member("entered"), Member("frames")
    nonfinite, gone, late = Member("nonfinite"), Member("gone"), Member("late")


@dataclass(slots=True)
class Frame:
    """A whole frame.

    :param payload: All whole words behind the header: ``header.length`` bytes in a correct frame,
        after the padding of `offset_of`; more if the frame does not fill its buffer and the rest
        travels along, fewer if the frame was cut.
    :param trailer: Up to 7 bytes behind the last whole word.
    """

    header: Header
    payload: Words = field(default_factory=lambda: np.zeros(0, np.uint64))
    source: Endpoint = NOBODY
    destination: Endpoint = NOBODY
    trailer: bytes = b""

    def copy(self) -> Frame:
        """A copy that shares nothing with this frame."""
        return replace(self, header=replace(self.header), payload=self.payload.copy())

    @property
    def size(self) -> int:
        """Bytes of the whole frame."""
        return FRAME_BYTES + self.payload.nbytes + len(self.trailer)

    def resize(self, length: int) -> None:
        """Cut the payload to ``length`` bytes, or extend it with zeros."""
        length += _padding(length)
        data = (self.payload.tobytes() + self.trailer)[:length].ljust(length, b"\0")
        self.payload, self.trailer = np.frombuffer(data, np.uint64).copy(), b""

    def fill(self, words: Words, length: int) -> None:
        """Write ``length`` bytes into the payload, which must have this length."""
        self.payload[_padding(length) // 8 :] = words[: length // 8]

    def take(self, length: int) -> Words:
        """The payload's first ``length`` bytes."""
        return self._words(length).copy()

    def sum(self, length: int) -> int | None:
        """The `checksum` of the payload's first ``length`` bytes; None: it has fewer."""
        words = self._words(length)
        return None if words.size < length // 8 else checksum(words)

    def add(self, words: Words, length: int) -> None:
        """Add words to the payload's first ``length`` bytes, as far as it has whole blocks."""
        own = self._words(length)
        count = own.size // _BLOCK_WORDS * _BLOCK_WORDS
        own[:count] += words[:count]

    def _words(self, length: int) -> Words:
        """Where the payload's first ``length`` bytes are, as far as it has them."""
        start = _padding(length) // 8
        return self.payload[start : start + length // 8]


def checksum(words: Words) -> int:
    """Sum of the words modulo 2**64. So the checksum of a sum of payloads is the sum of their
    checksums.
    """
    return int(words.sum(dtype=np.uint64))


def offset_of(length: int) -> int:
    """Where a payload of ``length`` bytes begins in its frame."""
    return JUMBO_OFFSET if length > LINEAR_PAYLOAD else FRAME_BYTES


def _padding(length: int) -> int:
    return offset_of(length) - FRAME_BYTES


def weigh(words: Words) -> int:
    """The check of some words: the sum of all half words, the lower half of each word first, times
    the weights of their positions, modulo 2**64; see `check_weights`.

    In the ring, the last word of a chunk is the check of the words before it. Lanes never carry, so
    checks add up like lanes. Unlike `checksum`, the check detects errors that cancel out and words
    that have changed places. The ring's programs sum it like any other word, and the process
    verifies it; the programs of an exchange verify it in each frame.
    """
    halves = words.astype("<u8", copy=False).view("<u4").astype(np.uint64)
    parts = [
        (halves[start : start + check_weights.HALVES] * WEIGHTS[: halves.size - start]).sum(
            dtype=np.uint64
        )
        for start in range(0, halves.size, check_weights.HALVES)
    ]
    return (
        sum(
            int(part) * factor for part, factor in zip(parts, check_weights.factors(), strict=False)
        )
        & _U64
    )


def frame_seal(header: Header) -> int:
    """The header's part of a checksum, made of all fields but the checksum itself (``frame_seal``).

    It is a bijection of each word of the header, so an error within one word is always detected.
    The multipliers are those of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
    """
    x = (header.chunk << 32 | header.seq) * 0xBF58476D1CE4E5B9
    x += header.length << 48 | header.round << 40 | header.flags << 32
    x += header.receiver << 24 | header.sender << 16 | header.hop << 8 | header.stream
    x &= _U64
    x = (x ^ x >> 30) * 0x94D049BB133111EB + (
        header.prev << 32 | header.attempt << 16 | header.tag
    ) & _U64
    x = (x ^ x >> 27) * 0x9E3779B97F4A7C15 + header.cookie + (
        header.kind << 16 | header.group
    ) & _U64
    return x ^ x >> 31


def encode(frame: Frame, whole: bool = False) -> bytes:
    """A frame's bytes, from the Ethernet header on.

    :param whole: The packet is as long as the frame, even if its header says that less counts.
    """
    source, destination, header = frame.source, frame.destination, frame.header
    size = frame.size if whole else offset_of(header.length) + header.length
    total = size - _ETHERNET.itemsize & 0xFFFF  # a wrong length may be too large
    # The sum is in memory order, in which the bytes of the total length are swapped.
    check = ~_fold(ip_sum(source.ip, destination.ip) + _swap(total)) & 0xFFFF
    ethernet = (list(destination.mac_bytes), list(source.mac_bytes), _ETHERTYPE)
    udp = (PORT, PORT, total - _IPV4.itemsize & 0xFFFF, 0)
    fields = (getattr(header, name) for name in _FIELDS)
    head = np.array(
        (ethernet, _ipv4(source.ip, destination.ip, total, check), udp, MAGIC, *fields), FRAME
    )
    return b"".join(
        (head.tobytes(), frame.payload.astype("<u8", copy=False).tobytes(), frame.trailer)
    )


def decode(data: bytes) -> Frame | None:
    """Parse a frame; None: it is not one of the ring's. Reference model of ``frame_parse``.

    Nothing else is checked here: the rank that receives the frame checks cookie, version, kind and
    lengths.
    """
    if len(data) < FRAME_BYTES:
        return None
    ethernet, ip, udp, magic, *fields = np.frombuffer(data, FRAME, 1).item()
    destination_mac, source_mac, ethertype = ethernet
    version_ihl, *_, protocol, _check, source_ip, destination_ip = ip
    if (ethertype, version_ihl, protocol, udp[1], magic) != (
        _ETHERTYPE,
        _VERSION_IHL,
        _PROTOCOL,
        PORT,
        MAGIC,
    ):
        return None
    words = (len(data) - FRAME_BYTES) // 8
    return Frame(
        Header(**dict(zip(_FIELDS, fields, strict=True))),
        np.frombuffer(data, "<u8", words, FRAME_BYTES).astype(np.uint64),
        Endpoint.unpack(bytes(source_mac), source_ip),
        Endpoint.unpack(bytes(destination_mac), destination_ip),
        data[FRAME_BYTES + 8 * words :],
    )


def ip_sum(source: str, destination: str) -> int:
    """One's complement sum of the IPv4 header between two hosts, without its total length (RFC
    1071).

    It is in memory order, so that the kernel can add the length as it is in the frame.
    """
    header = np.array(_ipv4(source, destination, 0, 0), _IPV4)
    return _fold(int(np.frombuffer(header.tobytes(), "<u2").sum(dtype=np.uint32)))


def net_peer(me: Endpoint, other: Endpoint) -> tuple[list[int], int, int]:
    """``struct net_peer``: what ``me`` needs to address ``other``."""
    return list(other.mac_bytes), ip_sum(me.ip, other.ip), int(ipaddress.IPv4Address(other.ip))


def _ipv4(source: str, destination: str, total: int, check: int) -> tuple[int, ...]:
    addresses = (int(ipaddress.IPv4Address(address)) for address in (source, destination))
    return (_VERSION_IHL, 0, total, 0, _DONT_FRAGMENT, _TTL, _PROTOCOL, check, *addresses)


def _fold(total: int) -> int:
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _swap(value: int) -> int:
    return (value & 0xFF) << 8 | value >> 8
