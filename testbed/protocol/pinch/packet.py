"""The frames of an exchange as seen by its rules: addresses, header and words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from testbed.kernel.abi import constant
from testbed.protocol.check_weights import weigh_halves
from testbed.protocol.sequence import seq_of
from testbed.protocol.wire import NOTHING, VERSION, Header, Member, frame_seal, stored

__all__ = [
    "ACK_BEHIND",
    "ACK_WORDS",
    "ANYWHERE",
    "ASK",
    "BATCH",
    "ENDED",
    "EXPONENT_BITS",
    "FIRST",
    "KICK_ALL",
    "LATE",
    "LEAST_BYTES",
    "LEAST_WORDS",
    "MAX_WORDS",
    "NOBODY",
    "NOT_FINITE",
    "NO_STREAM",
    "SQ_ENTRIES",
    "U32",
    "U64",
    "UNKNOWN",
    "WR_ASK",
    "Packet",
    "ack_first",
    "bits_of",
    "check_of",
    "exponent_in",
    "frames_in",
    "word_in",
]

MAX_WORDS = constant("PINCH_MAX_WORDS")
"""Maximum words of a payload: as many as fit into the largest MTU of single-buffer XDP on veth."""
ACK_WORDS = constant("PINCH_ACK_WORDS")
"""Bitmap words of an acknowledgement, 32 frames each."""
ACK_BEHIND = constant("PINCH_ACK_BEHIND")
"""The number of these that precede the word of the frame that asked for the acknowledgement."""
ANYWHERE = constant("PINCH_ANYWHERE")
"""In place of a rank's CPU: the rank adds frames where they arrive."""
LEAST_BYTES = constant("PINCH_LEAST_BYTES")
"""Minimum bytes of a frame, so that it can be sent back as an acknowledgement."""
LEAST_WORDS = ACK_WORDS
"""Minimum words behind the header of a frame, so that it can be sent back as an acknowledgement."""
BATCH = constant("PINCH_BATCH")
"""Maximum number of frames that one kick sends."""
SQ_ENTRIES = constant("PINCH_SQ_ENTRIES")
"""Entries of a flow's submission queue."""
WR_ASK = constant("PINCH_WR_ASK")
"""Bit of a work request: ask whether the frame has arrived, instead of retransmitting it."""
UNKNOWN = constant("PINCH_UNKNOWN")
"""Number of acknowledgements to expect while it is unknown what will be sent. No count reaches it.
"""
FIRST = constant("PINCH_FIRST")
"""The sequence number in which all ranks meet."""
KICK_ALL = constant("PINCH_FLAG_ALL")
"""Flag of a kick: it is one of several, one for each flow."""
EXPONENT_BITS = constant("PINCH_EXPONENT_BITS")
NOT_FINITE = constant("PINCH_NOT_FINITE")
"""In place of a handshake's exponent: a value is NaN or infinite."""
ENDED = constant("PINCH_ENDED")
"""In place of a handshake's exponent: exchanges have ended, for the reason in the header."""
NOBODY = -1
"""In place of a rank: the address belongs to none."""
ASK = constant("PINCH_FLAG_ASK")
"""Flag: an answer is wanted."""
NO_STREAM = constant("PINCH_NO_STREAM")
"""Stream of an acknowledgement that does not indicate losses: frames missing from it may be late.
"""
LATE = constant("PINCH_FLAG_LATE")
"""Flag of a handshake with `ENDED`: ranks are `late`, not `gone`."""

U32 = 0xFFFFFFFF
U64 = 0xFFFFFFFFFFFFFFFF


class _Fields(NamedTuple):
    source: int
    destination: int
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
    body: tuple[int, ...] = ()


class Packet(_Fields):
    """A frame: the ranks to which its addresses belong, the header in the order of `wire.Header`,
    and all words behind the header. ``struct ring_frame`` explains the fields, and which of a
    union's members each kind of frame has.

    :param source: The rank that has the source IP address, or `NOBODY`.
    :param destination: The rank that has the destination IP address, or `NOBODY`.
    """

    __slots__ = ()

    number, serial, flow = Member("number"), Member("serial"), Member("flow")
    waits, entered, frames = Member("waits"), Member("entered"), Member("frames")
    nonfinite, gone, late = Member("nonfinite"), Member("gone"), Member("late")

    def having(self, **members: int) -> Packet:
        """The same frame with other values of members of the header, by any of their names."""
        changes: dict[str, Any] = {**stored(**members)}
        return self._replace(**changes)

    @property
    def header(self) -> Header:
        """The header, as a `wire.Header`."""
        return Header(*self[2:19])

    @property
    def seal(self) -> int:
        """The seal of the header."""
        return frame_seal(self.header)

    @property
    def good_checksum(self) -> int:
        """The correct checksum. The body must have at least the length in the header."""
        return check_of(self.body[: self.length // 8]) + self.seal & U64

    def sealed(self) -> Packet:
        """The same frame with the correct checksum."""
        return self._replace(checksum=self.good_checksum)


def check_of(words: Iterable[int]) -> int:
    """The check of a payload; see `testbed.protocol.check_weights`."""
    return weigh_halves([half for word in words for half in (word & U32, word >> 32)])


def bits_of(word: int, seq: int) -> int:
    """The bits of a bitmap's word, if it carries this sequence number; else none."""
    return word & U32 if seq_of(word) == seq else 0


def frames_in(word: int) -> int:
    """The number of frames that a handshake announces."""
    return (word & U32) >> EXPONENT_BITS


def exponent_in(word: int) -> int:
    """The exponent of the largest value, as a handshake encodes it."""
    return word & (1 << EXPONENT_BITS) - 1


def word_in(pair: list[int], seq: int) -> int:
    """The word of a sequence number in a pair of words, for even and for odd numbers; 0: there is
    none.
    """
    word = pair[seq & 1]
    return word if seq_of(word) == seq else 0


def ack_first(number: int) -> int:
    """The first bitmap word in an acknowledgement of this frame."""
    return max(number // 32 - ACK_BEHIND, 0)
