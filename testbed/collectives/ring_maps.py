"""What the ring's programs and their process share, as ctypes: twin of ``bpf/include/ring.h``; constants of the wire are in
`testbed.protocol.wire`.

A test compares every offset with the compiled object's BTF.
"""

from __future__ import annotations

import ctypes
import ipaddress
import struct
from ctypes import c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

from testbed.collectives.group import GroupSpec, Member
from testbed.collectives.lanes import NativeLanes
from testbed.protocol.memory import ASKS, COUNTERS, ORDERS, PARKING, Order
from testbed.protocol.wire import (
    BLOCK,
    FRAME_BYTES,
    MAGIC,
    MAX_PAYLOAD,
    MAX_RANKS,
    PORT,
    VERSION,
    Endpoint,
    Kind,
    ip_sum,
)

__all__ = [
    "BLOCK",
    "COUNTERS",
    "FAN_LARGE",
    "FAN_SMALL",
    "FRAME_BYTES",
    "MAGIC",
    "MAX_PAYLOAD",
    "MAX_RANKS",
    "ORDERS",
    "PARKING",
    "PORT",
    "VERSION",
    "Chunk",
    "Config",
    "Control",
    "Frame",
    "Kept",
    "Kind",
    "Lane",
    "NativeRing",
    "Order",
    "Parked",
    "Peer",
    "Rank",
    "RingAsk",
    "RingAsks",
    "RingOrder",
    "RingQueue",
    "Tensor",
    "make_bell",
    "peer",
]

FAN_SMALL = 8
FAN_LARGE = 32


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
        ("kept", c_uint32),
        ("upstream", c_uint32),
        ("gap", c_uint32),
        ("uplink", c_uint32),
        ("cpus", c_uint32),
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
        ("holdoff_us", c_uint32),
        ("settled", c_uint32),
        ("front", c_uint32),
        ("pad0", c_uint32 * 5),
        ("next", c_uint64),
        ("flushed", c_uint64),
        ("stored", c_uint32),
        ("taken", c_uint32),
        ("pad1", c_uint32 * 10),
    ]


class Chunk(ctypes.Structure):
    """``struct ring_chunk``."""

    _fields_ = [
        ("input_sum", c_uint64),
        ("result_sum", c_uint64),
        ("reduced", c_uint64),
        ("result", c_uint64),
        ("before", c_uint32 * 2),
        ("lost", c_uint32 * 2),
        ("asked_us", c_uint32),
        ("resent_us", c_uint32),
        ("attempt", c_uint32),
        ("pad", c_uint32),
    ]


class Kept(ctypes.Structure):
    """``struct ring_kept``."""

    _fields_ = [("owner", c_uint64), ("valid", c_uint64), ("sum", c_uint64), ("round", c_uint32), ("pad", c_uint32)]


class Lane(ctypes.Structure):
    """``struct ring_lane``."""

    _fields_ = [
        ("generation", c_uint32),
        ("prev", c_uint32),
        ("progress", c_uint64),
        ("heard", c_uint32 * MAX_RANKS),
        ("pad", c_uint32 * 12),
    ]


class Rank(ctypes.Structure):
    """``struct ring_rank``."""

    _fields_ = [("generation", c_uint32), ("settled", c_uint32), ("told", c_uint32), ("front", c_uint32)]


class RingOrder(ctypes.Structure):
    """``struct ring_order``."""

    _fields_ = [("kind", c_uint32), ("generation", c_uint32), ("chunk", c_uint32), ("attempt", c_uint16), ("extra", c_uint16)]


class RingAsk(ctypes.Structure):
    """``struct ring_ask``."""

    _fields_ = [
        ("generation", c_uint32),
        ("item", c_uint32),
        ("due_frame", c_uint32),
        ("due_us", c_uint32),
        ("tries", c_uint32),
        ("pad", c_uint32),
    ]


class RingQueue(ctypes.Structure):
    """``struct ring_queue``."""

    _fields_ = [
        ("taken", c_uint32),
        ("carried", c_uint32),
        ("given", c_uint32),
        ("pad", c_uint32),
        ("asks", RingAsk * ASKS),
    ]


class RingAsks(ctypes.Structure):
    """``struct ring_asks``."""

    _fields_ = [("frames", c_uint32), ("pad", c_uint32), ("fresh", RingQueue), ("again", RingQueue)]


class Parked(ctypes.Structure):
    """``struct ring_parked``."""

    _fields_ = [
        ("state", c_uint32),
        ("generation", c_uint32),
        ("chunk", c_uint32),
        ("attempt", c_uint16),
        ("hop", c_uint8),
        ("round", c_uint8),
        ("length", c_uint16),
        ("tag", c_uint16),
        ("pad", c_uint32),
        ("sum", c_uint64),
    ]


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
        ("lane", c_uint8),
        ("hop", c_uint8),
        ("sender", c_uint8),
        ("receiver", c_uint8),
        ("flags", c_uint8),
        ("round", c_uint8),
        ("length", c_uint16),
        ("tag", c_uint16),
        ("attempt", c_uint16),
        ("prev", c_uint32),
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
        ("cpus", c_void_p),
        ("peers", c_void_p),
        ("cpu_count", c_uint32),
        ("chasing", c_uint32),
        ("lanes", NativeLanes),
        ("chunk_bytes", c_uint32),
        ("window", c_uint32),
        ("yields", c_uint32),
        ("patience", c_uint32),
        ("slack", c_uint32),
        ("least_exponent", c_int32),
        ("exponents", c_uint32),
        ("timeout_ns", c_int64),
        ("consumer", c_void_p),
        ("producer", c_void_p),
        ("front", c_uint32),
        ("asked", c_uint32),
        ("allowed", c_uint32),
        ("stalls", c_uint32),
        ("probes", c_uint32),
        ("pad", c_uint32),
        ("quiet", c_void_p),
        ("refused", c_uint64),
        ("quantize_ns", c_uint64),
        ("communicate_ns", c_uint64),
        ("wait_ns", c_uint64),
        ("dequantize_ns", c_uint64),
        ("seen", c_int32),
        ("magnitude", c_uint32),
        ("error", c_int32),
    ]


def peer(me: Member, other: Member) -> Peer:
    """What rank ``me`` needs to address ``other``."""
    mac = Endpoint(other.mac, other.ip).mac_bytes
    address = int.from_bytes(ipaddress.IPv4Address(other.ip).packed, "little")
    return Peer((c_uint8 * 6)(*mac), ip_sum(me.ip, other.ip), address)


def make_bell(kind: int, group: GroupSpec, size: int, **fields: int) -> bytes:
    """A frame of a host's own, from its process to its programs; addresses and lengths are the programs' business.

    :param size: Bytes: as long as what it becomes, so that it need not grow.
    :param fields: Others of the header.
    """
    lower = struct.pack("!12xH BB7xB10x HHHH", 0x0800, 0x45, 0, 17, PORT, PORT, 0, 0)  # the dispatcher looks at these
    frame = Frame(magic=MAGIC, version=VERSION, kind=kind, group=group.group_id, cookie=group.cookie, **fields)
    ctypes.memmove(frame.lower, lower, len(lower))
    return bytes(frame).ljust(size, b"\0")
