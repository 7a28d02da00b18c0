"""What the programs of an exchange and their process share, as ctypes and numpy types: twin of ``bpf/include/pinch.h``.

A test compares every offset with the compiled object's BTF.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from enum import IntEnum

import numpy as np

from testbed.protocol.pinch_memory import COUNTERS
from testbed.protocol.pinch_packet import ACK_WORDS
from testbed.protocol.wire import FRAME_BYTES, MAX_RANKS

__all__ = [
    "ANYWHERE",
    "COUNTERS",
    "EDGE",
    "FLOW",
    "FRAME",
    "HUB",
    "LEAST_BYTES",
    "MAX_FLOWS",
    "PEER",
    "SENT",
    "VERTEX",
    "AckFrame",
    "Aggregation",
    "Config",
    "Control",
    "Format",
    "NativePinch",
    "Source",
    "Waited",
]

ANYWHERE = 0xFFFFFFFF
MAX_FLOWS = 64
LEAST_BYTES = FRAME_BYTES + 8 * ACK_WORDS

FRAME = np.dtype([("check", "<u8"), ("to", "<u4"), ("ask", "<u4"), ("length", "<u2"), ("copies", "<u2"), ("pad", "<u4")])
"""``struct pinch_frame``."""
VERTEX = np.dtype([("first", "<u4"), ("count", "<u4"), ("hub", "<u4"), ("pad", "<u4")])
"""``struct pinch_vertex``."""
EDGE = np.dtype([("target", "<u4"), ("weight", "<i4")])
"""``struct pinch_edge``."""
HUB = np.dtype([("first", "<u4"), ("count", "<u4"), ("part", "<u4"), ("next", "<u4")])
"""``struct pinch_hub``."""
FLOW = np.dtype(
    [("total", "<u4"), ("next", "<u4"), ("flying", "<u4"), ("ordered", "<u4"), ("taken", "<u4"), ("pad", "<u4", 11)]
)
"""``struct pinch_flow``."""
SENT = np.dtype(
    [("generation", "<u4"), ("serial", "<u4"), ("sent_us", "<u4"), ("lane", "u1"), ("attempt", "u1"), ("pad", "<u2")]
)
"""``struct pinch_sent``."""
PEER = np.dtype(
    [
        ("received", "<u4"),
        ("acked", "<u4"),
        ("heard", "<u8"),
        ("news", "<u8"),
        ("answers", "<u4"),
        ("at", "<u4"),
        ("waits", "<u4"),
        ("pad", "<u4"),
        ("ours", "<u8", 2),
        ("theirs", "<u8", 2),
    ]
)
"""``struct pinch_peer``."""


class Aggregation(IntEnum):
    """``enum pinch_aggregation``."""

    SUM = 0
    WEIGHTED = 1
    MAX = 2


class Address(ctypes.Structure):
    """``struct net_peer``."""

    _fields_ = [("mac", c_uint8 * 6), ("ip_sum", c_uint16), ("ip", c_uint32)]


class Source(ctypes.Structure):
    """``struct pinch_source``."""

    _fields_ = [("vertices", c_uint32), ("first", c_uint32), ("seen", c_uint32), ("frames", c_uint32)]


class Config(ctypes.Structure):
    """``struct pinch_config``."""

    _fields_ = [
        ("cookie", c_uint64),
        ("rank", c_uint32),
        ("ranks", c_uint32),
        ("group", c_uint32),
        ("words", c_uint32),
        ("parts", c_uint32),
        ("rows", c_uint32),
        ("payload", c_uint32),
        ("bits", c_uint32),
        ("aggregation", c_uint32),
        ("targets", c_uint32),
        ("banks", c_uint32),
        ("cpu", c_uint32),
        ("slice", c_uint32),
        ("capacity", c_uint32),
        ("acked_words", c_uint32),
        ("uplink", c_uint32),
        ("bell", c_uint32),
        ("fan", c_uint32),
        ("homes", c_uint32 * MAX_FLOWS),
        ("fan_cpu", c_uint8 * MAX_FLOWS),
        ("home", c_uint8 * MAX_RANKS),
        ("sources", Source * MAX_RANKS),
        ("peers", Address * MAX_RANKS),
    ]


class Control(ctypes.Structure):
    """``struct pinch_control``."""

    _fields_ = [
        ("progress", c_uint64),
        ("tag", c_uint32),
        ("window", c_uint32),
        ("copies", c_uint32),
        ("lowest", c_uint32),
        ("highest", c_uint32),
        ("partners", c_uint32),
        ("pad0", c_uint32 * 8),
        ("met", c_uint64),
        ("unfit", c_uint32),
        ("sending", c_uint32),
        ("acked", c_uint32),
        ("received", c_uint32),
        ("owed", c_uint32),
        ("queued", c_uint32),
        ("served", c_uint32),
        ("rtt_samples", c_uint32),
        ("rtt_sum_us", c_uint64),
        ("rtt_max_us", c_uint32),
        ("odd", c_uint32),
        ("gone", c_uint32),
        ("late", c_uint32),
        ("told", c_uint32),
        ("handed", c_uint32),
        ("taken", c_uint32),
    ]


class AckFrame(ctypes.LittleEndianStructure):
    """``struct pinch_ack``, its headers as raw bytes."""

    _pack_ = 1
    _fields_ = [("head", c_uint8 * FRAME_BYTES), ("words", c_uint64 * ACK_WORDS)]


class Waited(IntEnum):
    """How ``pinch_wait`` of ``testbed/native/pinch.c`` has ended."""

    TIME_UP = 0
    COMPLETE = 1
    UNFIT = 2
    """All ranks have entered, and payloads do not hold."""
    ENDED = 3
    """There will be no more exchanges."""


class Format(ctypes.Structure):
    """``struct pinch_format`` of ``testbed/native/pinch.c``."""

    _fields_ = [
        ("bytes", c_uint32),
        ("dim", c_uint32),
        ("words", c_uint32),
        ("parts", c_uint32),
        ("rows", c_uint32),
        ("stride", c_uint32),
        ("maximum", c_uint32),
        ("limit", c_int32),
    ]


class NativePinch(ctypes.Structure):
    """``struct pinch`` of ``testbed/native/pinch.c``."""

    _fields_ = [
        ("format", Format),
        ("control", c_void_p),
        ("payloads", c_void_p),
        ("frames", c_void_p),
        ("bells", c_void_p),
        ("greeting", c_void_p),
        ("peers", c_void_p),
        ("flows", c_void_p),
        ("frames_to", c_void_p),
        ("seen", c_void_p),
        ("acked", c_void_p),
        ("hub_queue", c_void_p),
        ("sent", c_void_p),
        ("consumer", c_void_p),
        ("producer", c_void_p),
        ("bell_count", c_uint32),
        ("bell_length", c_uint32),
        ("greeting_length", c_uint32),
        ("rank", c_uint32),
        ("ranks", c_uint32),
        ("flow_count", c_uint32),
        ("seen_words", c_uint32),
        ("acked_words", c_uint32),
        ("hub_places", c_uint32),
        ("sent_records", c_uint32),
        ("doorbell", c_int32),
        ("events", c_int32),
        ("quantize_ns", c_uint64),
        ("send_ns", c_uint64),
        ("wait_ns", c_uint64),
    ]
