"""The testbed's headers for scapy: with this module imported, captures are dissected and frames can
be built layer by layer.

>>> from testbed.protocol.scapy_layers import RingHeader
>>> for packet in rdpcap("h1.pcapng"): packet.show()
"""

from __future__ import annotations

from typing import Any

from scapy.fields import (
    ByteEnumField,
    ByteField,
    Field,
    FieldListField,
    FlagsField,
    LEIntField,
    LEShortField,
    MultipleTypeField,
    XLELongField,
    XLEShortField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, Padding, bind_layers

from testbed.kernel.abi import constant, enum
from testbed.protocol.meanings import KINDS, MEANINGS, flags_of, members
from testbed.protocol.wire import (
    FRAME,
    JUMBO_OFFSET,
    LINEAR_PAYLOAD,
    MAGIC,
    NOTHING,
    PORT,
    VERSION,
    Kind,
)

__all__ = ["PinchBitmap", "PinchEmbeddings", "PinchHandshake", "RingHeader", "RingLanes"]


_DEFAULTS = {"magic": MAGIC, "version": VERSION, "kind": Kind.REDUCE, "prev": NOTHING}
_HEXADECIMAL = {"magic": XLEShortField, "tag": XLEShortField}
_BY_SIZE = {1: ByteField, 2: LEShortField, 4: LEIntField, 8: XLELongField}


def _field(name: str, size: int) -> Field[Any, Any] | MultipleTypeField:
    if name == "kind":
        return ByteEnumField(name, _DEFAULTS[name], KINDS)
    if name == "flags":
        pinch = FlagsField(name, 0, 8 * size, flags_of("pinch_flag"))
        return MultipleTypeField(
            [(pinch, lambda packet: _meaning_flags(packet.kind) == "pinch_flag")],
            FlagsField(name, 0, 8 * size, flags_of("ring_flag")),
        )
    return _HEXADECIMAL.get(name, _BY_SIZE[size])(name, _DEFAULTS.get(name, 0))


def _meaning_flags(kind: int) -> str:
    return MEANINGS[kind].flags if kind in MEANINGS else "ring_flag"


def _fields() -> list[Any]:
    """A scapy field for each field of ``struct ring_frame`` behind the UDP header; a union has the
    name of its first member.
    """
    return [_field(name, FRAME[name].itemsize) for name in (FRAME.names or ())[3:]]


class RingHeader(Packet):
    """The part of ``struct ring_frame`` behind UDP. No field is computed. `meanings` has a union's
    value under the name that it has in frames of this kind.
    """

    name = "Ring"
    fields_desc = _fields()

    @property
    def meanings(self) -> dict[str, int]:
        """The values of unions, by the members that frames of this kind have."""
        exponent = self.payload.exponent if isinstance(self.payload, PinchHandshake) else None
        found = members(self.kind, int(self.flags), self.hop, exponent)
        return {member: self.getfieldval(first) for first, member in found.items()}

    def mysummary(self) -> str:
        """Kind, sequence number, ranks, and the members that mean something."""
        kind = KINDS.get(self.kind, f"kind {self.kind}")
        parts = [f"{kind} seq {self.seq} rank {self.sender} > {self.receiver}"]
        parts += [f"{name} {value}" for name, value in self.meanings.items()]
        if reason := self.meanings.get("reason"):
            names = {each.value: each.name for each in enum("ring_reason")}
            parts.append(names.get(reason, "").removeprefix("RING_REASON_").lower())
        return " ".join(parts)

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """The payload by the kind of frame."""
        meaning = MEANINGS.get(self.kind)
        found: Any = _PAYLOADS.get(meaning.payload) if meaning and self.length else None
        if found is None or len(payload) < found.least:
            found = self.default_payload_class(payload)
        kind: type[Packet] = found
        return kind


class _Payload(Packet):
    """A payload, of the length that the header states."""

    least = 8  # bytes

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        """What follows is not the testbed's."""
        return b"", s

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """What follows is not the testbed's."""
        return Padding


_MOST = 1 << 13  # words of a payload


def _length(packet: Packet) -> int:
    header = packet.underlayer
    return header.length if isinstance(header, RingHeader) else 0


def _words(packet: Packet) -> int:
    return _length(packet) // 8


class RingLanes(_Payload):
    """Lanes, two or four to a word, and the check of a chunk in its last word. A large payload
    begins at the next block.
    """

    name = "Lanes"
    fields_desc = [
        FieldListField(
            "gap",
            [],
            ByteField("", 0),
            max_count=_MOST,
            count_from=lambda packet: (
                JUMBO_OFFSET - 14 - 20 - 8 - len(RingHeader())
                if _length(packet) > LINEAR_PAYLOAD
                else 0
            ),
        ),
        FieldListField("words", [], XLELongField("", 0), max_count=_MOST, count_from=_words),
    ]


class PinchEmbeddings(_Payload):
    """Numbers of vertices at their owner, in the lower halves of the first words, then rows; how
    many of each only the ranks know.
    """

    name = "Embeddings"
    fields_desc = [
        FieldListField("words", [], XLELongField("", 0), max_count=_MOST, count_from=_words)
    ]


class PinchBitmap(_Payload):
    """Which frames have arrived, 32 for each word, around the one that it answers."""

    name = "Bitmap"
    fields_desc = [
        FieldListField(
            "words",
            [],
            XLELongField("", 0),
            max_count=_MOST,
            count_from=lambda packet: min(_words(packet), constant("PINCH_ACK_WORDS")),
        ),
    ]


class PinchHandshake(_Payload):
    """The word that says what the sender brings."""

    name = "Handshake"
    fields_desc = [LEIntField("low", 0), LEIntField("entering", 0)]

    @property
    def exponent(self) -> int:
        """The exponent of the sender's largest value, or why there is none."""
        return int(self.low) & (1 << constant("PINCH_EXPONENT_BITS")) - 1

    @property
    def frames(self) -> int:
        """How many frames the sender has for the receiver."""
        return int(self.low) >> constant("PINCH_EXPONENT_BITS")

    def mysummary(self) -> Any:  # as scapy's own layers do that want to be shown with others
        """Its parts."""
        text = f"entering {self.entering} frames {self.frames} exponent {self.exponent}"
        return text, [RingHeader]


_PAYLOADS: dict[str, Any] = {
    "lanes": RingLanes,
    "embeddings": PinchEmbeddings,
    "bitmap": PinchBitmap,
    "handshake": PinchHandshake,
}

bind_layers(UDP, RingHeader, sport=PORT, dport=PORT)
