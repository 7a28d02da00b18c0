"""The ring's header for scapy: with this module imported, captures are dissected and frames can be
built layer by layer.

>>> from testbed.protocol.scapy_layers import RingHeader
>>> for packet in rdpcap("h1.pcap"): packet.show()
"""

from __future__ import annotations

from typing import Any

from scapy.fields import (
    ByteEnumField,
    ByteField,
    Field,
    FlagsField,
    LEIntField,
    LEShortField,
    XLELongField,
    XLEShortField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, bind_layers

from testbed.kernel.abi import enum
from testbed.protocol.wire import FRAME, MAGIC, NOTHING, PORT, VERSION, Kind, PinchKind

__all__ = ["RingHeader"]


_DEFAULTS = {"magic": MAGIC, "version": VERSION, "kind": Kind.REDUCE, "prev": NOTHING}
_HEXADECIMAL = {"magic": XLEShortField, "tag": XLEShortField}
_BY_SIZE = {1: ByteField, 2: LEShortField, 4: LEIntField, 8: XLELongField}
_KINDS = {kind.value: kind.name for kind in Kind} | {
    kind.value: f"PINCH_{kind.name}" for kind in PinchKind
}
_FLAGS = {flag.value: flag.name.removeprefix("RING_FLAG_").lower() for flag in enum("ring_flag")}


def _field(name: str, size: int) -> Field[Any, Any]:
    if name == "kind":
        return ByteEnumField(name, _DEFAULTS[name], _KINDS)
    if name == "flags":
        return FlagsField(name, 0, 8 * size, _FLAGS)
    return _HEXADECIMAL.get(name, _BY_SIZE[size])(name, _DEFAULTS.get(name, 0))


def _fields() -> list[Any]:
    """A scapy field for each field of ``struct ring_frame`` behind the UDP header; a union has the
    name of its first member.
    """
    return [_field(name, FRAME[name].itemsize) for name in (FRAME.names or ())[3:]]


class RingHeader(Packet):
    """The part of ``struct ring_frame`` behind UDP. The payload follows as raw bytes; no field is
    computed.
    """

    name = "Ring"
    fields_desc = _fields()

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """The payload is lanes, which scapy does not know."""
        return self.default_payload_class(payload)


bind_layers(UDP, RingHeader, sport=PORT, dport=PORT)
