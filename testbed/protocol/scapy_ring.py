"""The ring's header for scapy: with this module imported, captures are dissected and frames can be built layer by layer.

>>> from testbed.protocol.scapy_ring import RingHeader
>>> for packet in rdpcap("h1.pcap"): packet.show()
"""

from __future__ import annotations

from scapy.fields import (
    ByteEnumField,
    ByteField,
    FlagsField,
    LEIntField,
    LEShortField,
    XLELongField,
    XLEShortField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, bind_layers

from testbed.protocol.wire import MAGIC, NOTHING, PORT, VERSION, Kind

__all__ = ["RingHeader"]


class RingHeader(Packet):
    """``struct ring_frame`` behind UDP; the payload follows as raw bytes. No field is computed."""

    name = "Ring"
    fields_desc = [
        XLEShortField("magic", MAGIC),
        ByteField("version", VERSION),
        ByteEnumField("kind", Kind.REDUCE, {kind.value: kind.name for kind in Kind}),
        LEShortField("group", 0),
        XLELongField("cookie", 0),
        LEIntField("generation", 0),
        LEIntField("chunk", 0),
        XLELongField("checksum", 0),
        ByteField("lane", 0),
        ByteField("hop", 0),
        ByteField("sender", 0),
        ByteField("receiver", 0),
        FlagsField("flags", 0, 8, ["result", "spread", "settled", "restart", "told", "earlier"]),
        ByteField("round", 0),
        LEShortField("length", 0),
        XLEShortField("tag", 0),
        LEShortField("attempt", 0),
        LEIntField("prev", NOTHING),
    ]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """Lanes: nothing that scapy knows."""
        return self.default_payload_class(payload)


bind_layers(UDP, RingHeader, sport=PORT, dport=PORT)
