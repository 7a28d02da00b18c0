"""What stands on the wire: frames from and to bytes. Twin of ``bpf/include/wire.h``.

A frame is Ethernet, IPv4, UDP, the ring's header of 46 bytes, and a payload of 64-bit words::

    0  Ethernet 14 | 14 IPv4 20 | 34 UDP 8 | 42 ring 46 | 88 payload

The ring's fields are little endian, as the lanes in the payload are; what lies below is big endian as everywhere. UDP's
checksum is 0 (RFC 768: none); the ring's own is the sum of the payload's words and the header's `seal`, modulo 2**64.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import astuple, dataclass, field, replace
from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

from testbed.protocol import weights

__all__ = [
    "BLOCK",
    "EARLIER",
    "FRAME_BYTES",
    "MAGIC",
    "MAX_CHUNKS",
    "MAX_PAYLOAD",
    "MAX_RANKS",
    "NOBODY",
    "NOTHING",
    "PORT",
    "RESTART",
    "RESULT",
    "SETTLED",
    "TOLD",
    "VERSION",
    "WEIGHTS",
    "Endpoint",
    "Frame",
    "Header",
    "Kind",
    "PinchKind",
    "Words",
    "checksum",
    "decode",
    "encode",
    "frame_seal",
    "ip_sum",
    "weigh",
]

Words = NDArray[np.uint64]

PORT = 17170
MAGIC = 0x4152
VERSION = 2
FRAME_BYTES = 88
"""Headers of a frame, from Ethernet's to the ring's."""

BLOCK = 64
"""Bytes that payloads are multiples of."""

MAX_PAYLOAD = 53 * BLOCK
"""What fits the largest MTU of single-buffer XDP on veth."""

MAX_RANKS = 32
MAX_CHUNKS = 2**23 - 1
"""Of a tensor: what fits the number of a chunk in ``prev``."""
RESULT = 1
"""Flag of a request: what is missing is the result, not the partial sum."""
SETTLED = 4
"""Flag of a probe and its answer: the sender's process has verified all results of this generation."""
TOLD = 16
"""Flag of an answer: the probe said that its sender has settled."""
EARLIER = 32
"""Flag: ``prev`` is of the generation before."""
RESTART = 8
"""Flag of a request: nobody keeps the partial sum, or the result was refused; lap one has to begin anew."""
NOTHING = 0xFFFFFFFF
"""In ``prev``: nothing of this generation was sent on the lane before."""

_BLOCK_WORDS = BLOCK // 8
_U64 = 0xFFFFFFFFFFFFFFFF


WEIGHTS = np.array(weights.WEIGHTS, np.uint64)
"""`weights.WEIGHTS`."""

_ETHERNET = struct.Struct("!6s6sH")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_UDP = struct.Struct("!HHHH")
_RING = struct.Struct("<HBBHQIIQBBBBBBHHHI")
_ETHERTYPE_IPV4, _VERSION_IHL, _DONT_FRAGMENT, _TTL, _UDP_PROTOCOL = 0x0800, 0x45, 0x4000, 64, 17


class Kind(IntEnum):
    """``enum ring_kind``."""

    REDUCE = 1
    RESULT = 2
    REQUEST = 3
    PROBE = 4
    ALIVE = 5
    BELL = 16


class PinchKind(IntEnum):
    """The kinds of ``enum ring_kind`` that an exchange uses."""

    EMBED = 6
    ACK = 7
    HELLO = 8
    ASK = 9
    BELL = 17
    WORK = 18
    GREET = 19


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host's addresses: colon-separated and dotted."""

    mac: str
    ip: str

    @property
    def mac_bytes(self) -> bytes:
        """As they stand in the frame."""
        return bytes.fromhex(self.mac.replace(":", ""))

    @classmethod
    def unpack(cls, mac: bytes, ip: bytes) -> Self:
        """From a frame's bytes."""
        return cls(mac.hex(":"), str(ipaddress.IPv4Address(ip)))


NOBODY = Endpoint("00:00:00:00:00:00", "0.0.0.0")


@dataclass(slots=True)
class Header:
    """The ring's header, in the order of the wire but for magic and version; meanings in ``struct ring_frame``.

    :param kind: A `Kind`, or any byte that has come in.
    :param length: Of the payload, bytes; zero for probes, else a multiple of `BLOCK`.
    """

    kind: int
    group: int = 0
    cookie: int = 0
    generation: int = 0
    chunk: int = 0
    checksum: int = 0
    lane: int = 0
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


@dataclass(slots=True)
class Frame:
    """A whole frame.

    :param payload: All whole words behind the header: ``header.length`` bytes in a frame that is what it says, but more where a
        frame shorter than its buffer carries the rest along, and fewer where it was cut.
    :param trailer: Up to 7 bytes behind those.
    """

    header: Header
    payload: Words = field(default_factory=lambda: np.zeros(0, np.uint64))
    source: Endpoint = NOBODY
    destination: Endpoint = NOBODY
    trailer: bytes = b""

    def copy(self) -> Frame:
        """One that shares nothing with this one."""
        return replace(self, header=replace(self.header), payload=self.payload.copy())

    def resize(self, length: int) -> None:
        """Cut or grow, with zeros, to ``length`` bytes of payload."""
        data = (self.payload.tobytes() + self.trailer)[:length].ljust(length, b"\0")
        self.payload, self.trailer = np.frombuffer(data, np.uint64).copy(), b""

    def fill(self, words: Words, length: int) -> None:
        """Lay ``length`` bytes into the payload, which is as long."""
        self.payload[:] = words[: length // 8]

    def take(self, length: int) -> Words:
        """The payload's first ``length`` bytes."""
        return self.payload[: length // 8].copy()

    def sum(self, length: int) -> int | None:
        """The `checksum` of the payload's first ``length`` bytes; None: it has fewer."""
        return None if self.payload.size < length // 8 else checksum(self.payload[: length // 8])

    def add(self, words: Words, length: int) -> None:
        """Add to the payload's first ``length`` bytes, as far as it has whole blocks."""
        count = min(length // 8, self.payload.size // _BLOCK_WORDS * _BLOCK_WORDS)
        self.payload[:count] += words[:count]


def checksum(words: Words) -> int:
    """Sum of the words modulo 2**64: sums of payloads have the sum of their checksums."""
    return int(words.sum(dtype=np.uint64))


def weigh(words: Words) -> int:
    """The check of some words: each half, lower ones first, times its place's weight, modulo 2**64; see `weights`.

    A chunk of the ring's has it as its last word, of those before it: halves of lanes never carry, so checks add up as lanes
    do. Unlike `checksum` it sees errors that cancel out, and words that have changed places. The ring's programs carry it like
    any other word, and the process looks at it; those of an exchange verify it in each frame.
    """
    halves = words.astype("<u8", copy=False).view("<u4").astype(np.uint64)
    return int((halves * WEIGHTS[: halves.size]).sum(dtype=np.uint64))


def frame_seal(header: Header) -> int:
    """What a checksum begins with: all of the header but the checksum (``frame_seal``).

    For each of its words a bijection, so an error within one word is always seen. Multipliers: splitmix64 (Steele, Lea, Flood,
    OOPSLA 2014).
    """
    x = (header.chunk << 32 | header.generation) * 0xBF58476D1CE4E5B9
    x += header.length << 48 | header.round << 40 | header.flags << 32
    x += header.receiver << 24 | header.sender << 16 | header.hop << 8 | header.lane
    x &= _U64
    x = (x ^ x >> 30) * 0x94D049BB133111EB + (header.prev << 32 | header.attempt << 16 | header.tag) & _U64
    x = (x ^ x >> 27) * 0x9E3779B97F4A7C15 + header.cookie + (header.kind << 16 | header.group) & _U64
    return x ^ x >> 31


def encode(frame: Frame) -> bytes:
    """A frame's bytes, from the Ethernet header on."""
    _, *fields, version = astuple(frame.header)
    source, destination, length = frame.source, frame.destination, frame.header.length
    total = FRAME_BYTES - _ETHERNET.size + length & 0xFFFF  # a length that is a lie may be too long
    # The sum is that of memory's order, hence the check's bytes come swapped.
    check = ~_fold(ip_sum(source.ip, destination.ip) + _swap(total)) & 0xFFFF
    return b"".join(
        (
            _ETHERNET.pack(destination.mac_bytes, source.mac_bytes, _ETHERTYPE_IPV4),
            _ipv4(source.ip, destination.ip, total, _swap(check)),
            _UDP.pack(PORT, PORT, total - _IPV4.size & 0xFFFF, 0),
            _RING.pack(MAGIC, version, frame.header.kind, *fields),
            frame.payload.astype("<u8", copy=False).tobytes(),
            frame.trailer,
        )
    )


def decode(data: bytes) -> Frame | None:
    """The frame that stands in ``data``, or None if it is none of the ring's: ``ring_parse`` of the twin.

    Nothing is checked beyond that: cookie, version, kind and lengths are the business of the rank that it reaches.
    """
    if len(data) < FRAME_BYTES:
        return None
    destination_mac, source_mac, ethertype = _ETHERNET.unpack_from(data)
    version_ihl, *_, protocol, _check, source_ip, destination_ip = _IPV4.unpack_from(data, _ETHERNET.size)
    port = _UDP.unpack_from(data, _ETHERNET.size + _IPV4.size)[1]
    magic, version, kind, *fields = _RING.unpack_from(data, FRAME_BYTES - _RING.size)
    found = (ethertype, version_ihl, protocol, port, magic)
    if found != (_ETHERTYPE_IPV4, _VERSION_IHL, _UDP_PROTOCOL, PORT, MAGIC):
        return None
    words = (len(data) - FRAME_BYTES) // 8
    header = Header(kind, *fields)
    header.version = version
    return Frame(
        header,
        np.frombuffer(data, "<u8", words, FRAME_BYTES).astype(np.uint64),
        Endpoint.unpack(source_mac, source_ip),
        Endpoint.unpack(destination_mac, destination_ip),
        data[FRAME_BYTES + 8 * words :],
    )


def ip_sum(source: str, destination: str) -> int:
    """One's complement sum of the IPv4 header between two hosts, without its total length (RFC 1071).

    In the byte order of memory, so that the kernel adds the length as it stands in the frame.
    """
    return _fold(sum(struct.unpack("<10H", _ipv4(source, destination, 0, 0))))


def _ipv4(source: str, destination: str, total: int, check: int) -> bytes:
    addresses = (ipaddress.IPv4Address(address).packed for address in (source, destination))
    return _IPV4.pack(_VERSION_IHL, 0, total, 0, _DONT_FRAGMENT, _TTL, _UDP_PROTOCOL, check, *addresses)


def _fold(total: int) -> int:
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _swap(value: int) -> int:
    return (value & 0xFF) << 8 | value >> 8
