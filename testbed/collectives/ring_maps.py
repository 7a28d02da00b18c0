"""What the ring's programs and their process share, as ctypes: twin of ``bpf/include/ring.h`` and ``wire.h``.

A test compares every offset with the compiled object's BTF.
"""

from __future__ import annotations

import ctypes
import ipaddress
import struct
from ctypes import c_int32, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from enum import IntEnum

from testbed.collectives.group import Member
from testbed.collectives.lanes import NativeLanes

__all__ = [
    "BLOCK",
    "COUNTERS",
    "FRAME_BYTES",
    "MAX_PAYLOAD",
    "PARKING",
    "PORT",
    "Chunk",
    "Config",
    "Control",
    "Event",
    "EventKind",
    "Frame",
    "Kind",
    "NativeRing",
    "Order",
    "Parked",
    "Peer",
    "RingOrder",
    "Tensor",
    "ip_sum",
    "peer",
]

PORT = 17170
MAGIC = 0x4152
VERSION = 1
BLOCK = 64
MAX_PAYLOAD = 54 * BLOCK
PARKING = 256
ORDERS = 1024
FAN_SMALL = 8
FAN_LARGE = 32
MAX_RANKS = 32
FRAME_BYTES = 80
USEFUL = 1


class Kind(IntEnum):
    """``enum ring_kind``."""

    REDUCE = 1
    RESULT = 2
    REQUEST = 3
    PROBE = 4
    ALIVE = 5
    BELL = 16


class Order(IntEnum):
    """``enum ring_order_kind``."""

    LAUNCH = 1
    REPLAY = 2
    REQUEST = 3
    PROBE = 4


class EventKind(IntEnum):
    """``enum ring_event_kind``."""

    STORED = 1
    ALIVE = 2


COUNTERS = (
    "sent",
    "sent_bytes",
    "resent",
    "stored",
    "answered",
    "duplicate",
    "parked",
    "bad_cookie",
    "bad_generation",
    "bad_chunk",
    "bad_length",
    "bad_tensor",
    "bad_rank",
    "bad_kind",
    "bad_checksum",
    "parking_full",
    "overtaken",
)
"""``enum ring_counter``."""


class Peer(ctypes.Structure):
    """``struct ring_peer``."""

    _fields_ = [("mac", c_uint8 * 6), ("ip_sum", c_uint16), ("ip", c_uint32)]


class Config(ctypes.Structure):
    """``struct ring_config``."""

    _fields_ = [
        ("cookie", c_uint64),
        ("rank", c_uint32),
        ("ranks", c_uint32),
        ("group", c_uint32),
        ("chunk_bytes", c_uint32),
        ("chunks", c_uint32),
        ("quench_us", c_uint32),
        ("uplink", c_uint32),
        ("reserved", c_uint32),
        ("peers", Peer * MAX_RANKS),
    ]


class Tensor(ctypes.Structure):
    """``struct ring_tensor``."""

    _fields_ = [("total", c_uint32), ("length", c_uint16), ("tag", c_uint16)]


class Control(ctypes.Structure):
    """``struct ring_control``."""

    _fields_ = [
        ("progress", c_uint64),
        ("tensors", Tensor * 2),
        ("wake_at", c_uint32),
        ("ordered", c_uint32),
        ("pad0", c_uint32 * 8),
        ("next", c_uint64),
        ("stored", c_uint32),
        ("taken", c_uint32),
        ("park", c_uint32),
        ("rtt_samples", c_uint32),
        ("rtt_max_us", c_uint32),
        ("pad2", c_uint32),
        ("rtt_sum_us", c_uint64),
        ("pad1", c_uint32 * 6),
    ]


class Chunk(ctypes.Structure):
    """``struct ring_chunk``."""

    _fields_ = [
        ("input_sum", c_uint64),
        ("result_sum", c_uint64),
        ("claimed", c_uint32),
        ("done", c_uint32),
        ("sent_us", c_uint32),
        ("attempt", c_uint32),
    ]


class RingOrder(ctypes.Structure):
    """``struct ring_order``."""

    _fields_ = [("kind", c_uint32), ("generation", c_uint32), ("chunk", c_uint32), ("attempt", c_uint32)]


class Parked(ctypes.Structure):
    """``struct ring_parked``."""

    _fields_ = [
        ("state", c_uint32),
        ("generation", c_uint32),
        ("chunk", c_uint32),
        ("attempt", c_uint8),
        ("hop", c_uint8),
        ("length", c_uint16),
        ("tag", c_uint16),
        ("reserved", c_uint16 * 3),
        ("checksum", c_uint64),
    ]


class Event(ctypes.Structure):
    """``struct ring_event``."""

    _fields_ = [("kind", c_uint32), ("rank", c_uint32), ("generation", c_uint32), ("stored", c_uint32)]


class Frame(ctypes.LittleEndianStructure):
    """``struct ring_frame``: a frame's headers; the lower ones as raw bytes."""

    _pack_ = 1
    _fields_ = [
        ("lower", c_uint8 * 42),
        ("magic", c_uint16),
        ("version", c_uint8),
        ("kind", c_uint8),
        ("group", c_uint16),
        ("cookie", c_uint64),
        ("generation", c_uint32),
        ("chunk", c_uint32),
        ("checksum", c_uint64),
        ("attempt", c_uint8),
        ("hop", c_uint8),
        ("last", c_uint8),
        ("flags", c_uint8),
        ("length", c_uint16),
        ("tag", c_uint16),
    ]


class NativeRing(ctypes.Structure):
    """``struct ring`` of ``testbed/native/ring.c``."""

    _fields_ = [
        ("control", c_void_p),
        ("parking", c_void_p),
        ("bell", c_void_p),
        ("bell_length", c_uint64),
        ("doorbell", c_int32),
        ("events", c_int32),
        ("rank", c_uint32),
        ("ranks", c_uint32),
        ("syscalls", c_uint64),
        ("orders", c_void_p),
        ("inputs", c_void_p),
        ("results", c_void_p),
        ("records", c_void_p),
        ("lanes", NativeLanes),
        ("chunk_bytes", c_uint32),
        ("window", c_uint32),
        ("yields", c_uint32),
        ("quantize_ns", c_uint64),
        ("communicate_ns", c_uint64),
        ("wait_ns", c_uint64),
    ]


def ip_sum(source: str, destination: str) -> int:
    """One's complement sum of the IPv4 header that the programs write, without its total length (RFC 1071).

    In the byte order of memory, so that the kernel adds the length as it stands in the frame.
    """
    header = struct.pack(
        "!BBHHHBBH4s4s",
        0x45,
        0,
        0,
        0,
        0x4000,
        64,
        17,
        0,
        ipaddress.IPv4Address(source).packed,
        ipaddress.IPv4Address(destination).packed,
    )
    total: int = sum(struct.unpack("<10H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def peer(me: Member, other: Member) -> Peer:
    """What rank ``me`` needs to address ``other``."""
    mac = bytes.fromhex(other.mac.replace(":", ""))
    address = int.from_bytes(ipaddress.IPv4Address(other.ip).packed, "little")
    return Peer((c_uint8 * 6)(*mac), ip_sum(me.ip, other.ip), address)
