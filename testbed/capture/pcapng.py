"""Files in the format pcapng (draft-ietf-opsawg-pcapng): several interfaces with names, times in
nanoseconds. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import BinaryIO, Final, NamedTuple

__all__ = ["INBOUND", "OUTBOUND", "Packet", "Writer"]

INBOUND, OUTBOUND = 1, 2
"""Directions of a packet, as in the option epb_flags."""

_SECTION, _INTERFACE, _STATISTICS, _PACKET = 0x0A0D0D0A, 1, 5, 6  # block types
_MAGIC, _ETHERNET, _NANOSECONDS = 0x1A2B3C4D, 1, 9
_IF_NAME, _IF_DESCRIPTION, _IF_TSRESOL, _APPLICATION = 2, 3, 9, 4  # options
_PACKET_FLAGS, _DROPPED = 2, 5
_UNKNOWN_LENGTH: Final = 0xFFFFFFFFFFFFFFFF


class Packet(NamedTuple):
    """A frame that was seen.

    :param time: Nanoseconds since 1970, UTC.
    :param interface: Index of the interface.
    :param direction: `INBOUND` or `OUTBOUND`, as the interface's node sees it.
    :param length: Of the frame, bytes; `data` may have fewer.
    """

    time: int
    interface: int
    direction: int
    length: int
    data: bytes


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + _padded(value)


def _padded(value: bytes) -> bytes:
    return value + bytes(-len(value) % 4)


def _block(kind: int, body: bytes) -> bytes:
    length = struct.pack("<I", 12 + len(body))
    return struct.pack("<I", kind) + length + body + length


class Writer:
    """Writes packets to a file.

    :param interfaces: Names and descriptions.
    :param snap: Bytes that are kept of a packet, at most.
    """

    def __init__(
        self, file: BinaryIO, interfaces: Sequence[tuple[str, str]], snap: int, application: str
    ) -> None:
        self._file = file
        section = struct.pack("<IHHQ", _MAGIC, 1, 0, _UNKNOWN_LENGTH)
        end = _option(0, b"")
        self._put(_SECTION, section + _option(_APPLICATION, application.encode()) + end)
        for name, description in interfaces:
            options = [
                _option(_IF_NAME, name.encode()),
                _option(_IF_DESCRIPTION, description.encode()),
                _option(_IF_TSRESOL, bytes([_NANOSECONDS])),
                end,
            ]
            self._put(_INTERFACE, struct.pack("<HHI", _ETHERNET, 0, snap) + b"".join(options))

    def write(self, packets: Sequence[Packet]) -> None:
        """Append packets, and let other programs see them."""
        for packet in packets:
            head = struct.pack(
                "<IIIII",
                packet.interface,
                packet.time >> 32,
                packet.time & 0xFFFFFFFF,
                len(packet.data),
                packet.length,
            )
            flags = _option(_PACKET_FLAGS, struct.pack("<I", packet.direction)) + _option(0, b"")
            self._put(_PACKET, head + _padded(packet.data) + flags)
        self._file.flush()

    def end(self, time: int, dropped: Mapping[int, int]) -> None:
        """Append how many packets were missed.

        :param dropped: By index of the interface.
        """
        for interface, number in dropped.items():
            head = struct.pack("<III", interface, time >> 32, time & 0xFFFFFFFF)
            options = _option(_DROPPED, struct.pack("<Q", number)) + _option(0, b"")
            self._put(_STATISTICS, head + options)
        self._file.flush()

    def _put(self, kind: int, body: bytes) -> None:
        self._file.write(_block(kind, body))
