"""What the bytes of a header mean in frames of each kind: which members of the unions of ``struct
ring_frame``, which flags, which payload. Pure.

The struct's layout, kinds, flags and reasons are read from the contract; only which member a kind
has is here, because a struct cannot say it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from testbed.kernel.abi import constant, enum
from testbed.protocol.wire import Kind, PinchKind

__all__ = ["ENDED", "KINDS", "MEANINGS", "PASSED_ON", "Meaning", "Switch", "flags_of", "members"]


@dataclass(frozen=True)
class Switch:
    """Members that a flag switches on, by the first member of the union.

    :param flag: An enumerator.
    """

    flag: str
    members: Mapping[str, str]


@dataclass(frozen=True)
class Meaning:
    """What a kind of frame has.

    :param members: The member of each union, by the union's first; a union that is not listed has
        none, and its bytes mean nothing.
    :param switches: What flags change, the last one last.
    :param payload: ``lanes``, ``embeddings``, ``bitmap``, ``handshake`` or ``none``.
    """

    members: Mapping[str, str]
    switches: Sequence[Switch] = ()
    payload: str = "none"
    flags: str = "ring_flag"


_DATA: Final = Meaning(
    {"chunk": "chunk", "stream": "stream", "round": "round", "tag": "tag", "prev": "prev"},
    payload="lanes",
)
_PROBE: Final = Meaning(
    {"chunk": "front", "tag": "tag", "prev": "prev"},
    (
        Switch("RING_FLAG_ENDED", {"chunk": "blamed", "round": "reason"}),
        Switch("RING_FLAG_VERIFIED_ACK", {"tag": "acked"}),
    ),
)
_NUMBERED: Final = {"chunk": "number", "stream": "stream", "tag": "tag", "prev": "serial"}

MEANINGS: Final[Mapping[int, Meaning]] = {
    Kind.REDUCE: _DATA,
    Kind.RESULT: _DATA,
    Kind.NACK: Meaning(
        {"chunk": "chunk", "stream": "stream", "round": "round", "tag": "tag", "prev": "summed"}
    ),
    Kind.PROBE: _PROBE,
    Kind.ALIVE: _PROBE,
    Kind.DOORBELL: Meaning({"chunk": "target"}),
    PinchKind.EMBED: Meaning(
        _NUMBERED,
        (Switch("PINCH_FLAG_TOKEN", {"prev": "frames"}),),
        payload="embeddings",
        flags="pinch_flag",
    ),
    PinchKind.ACK: Meaning(_NUMBERED, payload="bitmap", flags="pinch_flag"),
    PinchKind.HANDSHAKE: Meaning(
        {"chunk": "waits", "tag": "tag", "prev": "entered"},
        (
            Switch("PINCH_FLAG_ENDED", {"prev": "gone"}),
            Switch("PINCH_FLAG_LATE", {"prev": "late"}),
        ),
        payload="handshake",
        flags="pinch_flag",
    ),
    PinchKind.ASK: Meaning(_NUMBERED, flags="pinch_flag"),
    PinchKind.DOORBELL: Meaning({"stream": "flow"}, flags="pinch_flag"),
    PinchKind.WORK: Meaning({}, flags="pinch_flag"),
    PinchKind.SEND_HANDSHAKES: Meaning({}, flags="pinch_flag"),
}
"""By kind."""

KINDS: Final = {int(kind): kind.name for kind in Kind} | {
    int(kind): f"PINCH_{kind.name}" for kind in PinchKind
}
"""Names of all kinds."""

ENDED: Final = Switch("PINCH_ENDED", {"chunk": "nonfinite", "prev": "gone"})
"""What a handshake has whose exponent is `PINCH_ENDED`; with PINCH_FLAG_LATE `prev` is ``late``."""

PASSED_ON: Final = {"prev": "prev"}
"""What a nack has whose ``hop`` is 1: the previous rank has passed it on."""


def flags_of(name: str) -> dict[int, str]:
    """Names of the flags of ``ring_flag`` or ``pinch_flag``, in lower case, by bit mask."""
    return {flag.value: flag.name.partition("_FLAG_")[2].lower() for flag in enum(name)}


def members(kind: int, flags: int, hop: int = 0, exponent: int | None = None) -> dict[str, str]:
    """The member that each union has in a frame, by the union's first.

    :param exponent: Of a handshake.
    """
    meaning = MEANINGS.get(kind)
    if meaning is None:
        return {}
    found = dict(meaning.members)
    for switch in meaning.switches:
        if flags & constant(switch.flag):
            found |= switch.members
    if kind == Kind.NACK and hop:
        found |= PASSED_ON
    if kind == PinchKind.HANDSHAKE and exponent == constant(ENDED.flag):
        found |= ENDED.members
        if flags & constant("PINCH_FLAG_LATE"):
            found["prev"] = "late"
    return found
