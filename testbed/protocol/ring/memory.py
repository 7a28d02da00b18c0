"""What the ring's programs share with the process of their host, as held by a rank in pure Python.

``bpf/shared/ring_abi.h`` has the layout in memory, and the meaning of each field.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from testbed.kernel.abi import constant, counter_names
from testbed.protocol.wire import CHUNK_SHIFT, NOTHING, ROUND_SHIFT, Endpoint, Frame

__all__ = [
    "ANYWHERE",
    "COUNTERS",
    "EARLY_SLOTS",
    "EARLY_TRIES",
    "LOSSY_FOR",
    "NACK_ENTRIES",
    "RETURNED",
    "SQ_ENTRIES",
    "UNTIMED",
    "Chunk",
    "Config",
    "Memory",
    "Nack",
    "NackQueue",
    "Nacks",
    "Peer",
    "ResultState",
    "Saved",
    "Stage",
    "Stream",
    "Tensor",
    "WorkRequest",
    "is_done",
    "item_of",
    "parts_of",
    "slots_of",
]

EARLY_SLOTS = constant("RING_EARLY_SLOTS")
"""Slots of the early-frame buffer."""

EARLY_TRIES = constant("RING_EARLY_TRIES")
"""Slots in which a chunk's frame may be saved."""

NACK_ENTRIES = constant("RING_NACK_ENTRIES")
"""Entries of a CPU's nack queue."""

LOSSY_FOR = constant("RING_LOSSY_FOR")
"""Collectives for which partial sums are saved after a sign of loss."""

SQ_ENTRIES = constant("RING_SQ_ENTRIES")
"""Entries of the submission queue."""

ANYWHERE = constant("RING_ANYWHERE")
"""CPU of a probe: whichever takes the work request."""

_STAGE_BIT = constant("RING_STAGE_BIT")
_MOST_DOUBLINGS = 4
"""Of the holdoff between two nacks, while the previous rank answers others."""
_MOST_PATIENCE = 0x7FFFFFFF

UNTIMED = constant("RING_UNTIMED")
"""Added to the attempt of a probe that measures no round trip."""

RETURNED = constant("RING_RETURNED")
"""In `Chunk.reduced` at the root of a broadcast: the chunk's frame has come back."""

COUNTERS = counter_names("ring_counter", "RING_")
"""The programs' counters: reasons to drop a frame, and ``enum ring_counter``."""


class WrKind(IntEnum):
    """``enum ring_wr_kind``."""

    LAUNCH = constant("RING_WR_LAUNCH")
    REPLAY = constant("RING_WR_REPLAY")
    NACK = constant("RING_WR_NACK")
    RESTART = constant("RING_WR_RESTART")
    PROBE = constant("RING_WR_PROBE")


class Stage(IntEnum):
    """``enum ring_stage``: what a frame with data carries."""

    PARTIAL = constant("RING_STAGE_PARTIAL")
    RESULT = constant("RING_STAGE_RESULT")


class ResultState(IntEnum):
    """``enum ring_result_state``: the lowest byte of a chunk's result word."""

    NONE = constant("RING_RESULT_NONE")
    CLAIMED = constant("RING_RESULT_CLAIMED")
    DONE = constant("RING_RESULT_DONE")
    REFUSED = constant("RING_RESULT_REFUSED")
    VERIFIED = constant("RING_RESULT_VERIFIED")


class WorkRequest(NamedTuple):
    """``struct ring_wr``."""

    kind: int
    seq: int
    chunk: int
    attempt: int = 0
    extra: int = 0


class Nack(NamedTuple):
    """``struct ring_nack``."""

    seq: int
    item: int
    due_frame: int
    due_us: int


@dataclass(frozen=True)
class Config:
    """``struct ring_config``.

    :param chunk_bytes: Payload of a frame if the tensor has more than one chunk; a multiple of
        `BLOCK`.
    :param chunks: Capacity of the maps.
    :param peers: Addresses of all ranks.
    :param upstream: The previous rank retransmits, not the chunk's owner.
    :param reorder_threshold: Later frames of the same stream that must arrive before a missing one
        is nacked; 0: only the timer nacks.
    :param retransmit_slots: Slots of the retransmit buffer; a power of two.
    :param cpus: CPUs that carry frames; each has a stream.
    """

    cookie: int
    rank: int
    ranks: int
    group: int
    chunk_bytes: int
    chunks: int
    peers: tuple[Endpoint, ...]
    upstream: bool = True
    reorder_threshold: int = 0
    retransmit_slots: int = 16
    cpus: int = 1

    @property
    def after(self) -> int:
        """The rank that this one sends to."""
        return (self.rank + 1) % self.ranks

    @property
    def before(self) -> int:
        """The rank that this one receives from."""
        return (self.rank - 1) % self.ranks


@dataclass(slots=True)
class Tensor:
    """``struct ring_tensor``."""

    total: int = 0
    length: int = 0
    tag: int = 0
    scattered: int = 0
    gathered: int = 0
    root: int = 0


@dataclass(slots=True)
class Chunk:
    """``struct ring_chunk``; `before` and `lost` are by `Stage`, `attempt` by the parity of seq."""

    input_sum: int = 0
    result_sum: int = 0
    reduced: int = 0
    result: int = 0
    before: list[int] = field(default_factory=lambda: [0, 0])
    lost: list[int] = field(default_factory=lambda: [0, 0])
    nacked_us: int = 0
    resent_us: int = 0
    attempt: list[int] = field(default_factory=lambda: [0, 0])
    nacks: int = 0
    tries: int = 0


@dataclass(slots=True)
class Saved:
    """``struct ring_retransmit``, and its data."""

    owner: int = 0
    valid: int = 0
    sum: int = 0
    round: int = 0
    data: Any = None


@dataclass(slots=True)
class Stream:
    """``struct ring_stream``."""

    seq: int = 0
    prev: int = 0
    progress: int = 0
    heard: dict[int, int] = field(default_factory=dict)
    answer: int = 0


@dataclass(slots=True)
class Peer:
    """``struct ring_rank``."""

    seq: int = 0
    verified: int = 0
    verified_acked: int = 0
    front: int = 0
    ended: int = 0


@dataclass(slots=True)
class NackQueue:
    """``struct ring_nack_queue``: entries for which a frame is under way that will nack them, and
    entries that wait.
    """

    carried: deque[Nack] = field(default_factory=deque)
    waiting: deque[Nack] = field(default_factory=deque)


@dataclass(slots=True)
class Nacks:
    """``struct ring_nacks``."""

    frames: int = 0
    fresh: NackQueue = field(default_factory=NackQueue)
    again: NackQueue = field(default_factory=NackQueue)


@dataclass
class Memory:
    """The maps of one rank; names are those of ``struct ring_control``.

    :param config: Set when the programs are loaded.
    :param seq: Upper half of ``progress``: the collective that the process has entered.
    :param ready: Lower half: chunks whose input is ready.
    :param next_seq: Upper half of ``next``.
    :param next_slot: Lower half: slot ``s`` is chunk ``rank + ranks * s``.
    :param nack_holdoff_us: Least time between the first two nacks for a frame, then doubled; owners
        ignore nacks that come sooner.
    :param rto_us: Retransmission timeout of RFC 6298, from answers to probes; 0: there are none.
    :param late_us: Reordering window: how late frames have come that a later one overtook.
    :param widened_us: When the reordering window last grew.
    :param answered_us: When the previous rank last answered a nack or a probe.
    :param verified: Latest sequence number whose results the process has verified.
    :param front: First chunk whose result is missing, as far as the process has looked.
    :param lossy: Sequence number in which this rank last saw a sign of loss; 0: none yet.
    :param flushed: Streams, a bit each, whose answers to probes have come from the previous rank.
    :param ended: Why a rank has given up, as `testbed.protocol.ring.liveness.End` packs it; 0: no
        rank is known to have given up.
    :param events: Sequence numbers, each added when the last result that the process waited for is
        stored.
    :param sq: Work requests that have been posted and not yet taken.
    :param early_frames: The early frame in each slot.
    """

    config: Config
    seq: int = 0
    ready: int = 0
    next_seq: int = 0
    next_slot: int = 0
    flushed: int = 0
    lossy: int = 0
    ended: int = 0
    stored: int = 0
    wake_at: int = 0
    nack_holdoff_us: int = 0
    rto_us: int = 0
    late_us: int = 0
    widened_us: int = 0
    answered_us: int = 0
    verified: int = 0
    front: int = 0
    tensors: list[Tensor] = field(default_factory=lambda: [Tensor(), Tensor()])
    sq: deque[WorkRequest] = field(default_factory=deque)
    events: list[int] = field(default_factory=list)
    early_frames: list[Frame | None] = field(default_factory=lambda: [None] * EARLY_SLOTS)

    def __post_init__(self) -> None:
        config, words = self.config, self.config.chunk_bytes // 8
        self.inputs: list[Any] = [np.zeros(words, np.uint64) for _ in range(config.chunks)]
        self.results: list[Any] = [np.zeros(words, np.uint64) for _ in range(config.chunks)]
        self.chunks = [Chunk() for _ in range(config.chunks)]
        self.retransmit = [Saved() for _ in range(config.retransmit_slots)]
        self.streams = [Stream() for _ in range(config.cpus)]
        self.nacks = [Nacks() for _ in range(config.cpus)]
        self.ranks = [Peer() for _ in range(config.ranks)]
        self.counters = dict.fromkeys(COUNTERS, 0)

    @property
    def reorder_window_us(self) -> int:
        """Frames that arrive this much later than their successor are late, not lost. It is no
        longer than a round trip takes (RFC 8985): after that, asking is as good as waiting.
        """
        return min(self.late_us, self.rto_us)

    def patience_us(self, tries: int, now_us: int) -> int:
        """How long to wait since a frame was found missing, or since it was nacked the last of
        ``tries`` times (``ring_patience``).

        The time doubles some times, and then up to a quarter of the time for which the previous
        rank has answered nothing: round trips may have become longer than those that were measured.
        """
        if not tries:
            return self.reorder_window_us
        unanswered = now_us - self.answered_us & 0xFFFFFFFF
        most = max(self.nack_holdoff_us << _MOST_DOUBLINGS, unanswered // 4)
        return min(self.nack_holdoff_us << min(tries - 1, 15), most, _MOST_PATIENCE)

    def waits(self, chunk: Chunk, now_us: int) -> bool:
        """Has a frame that this rank lacks been nacked, or found missing, so recently that it is
        not the time to nack it?
        """
        since = now_us - chunk.nacked_us & 0xFFFFFFFF
        return chunk.nacked_us != 0 and since < self.patience_us(chunk.tries, now_us)

    def is_lossy(self, seq: int) -> bool:
        """Have there been losses lately? If not, nobody will nack a partial sum."""
        return self.lossy != 0 and (seq - self.lossy & 0xFFFFFFFF) < LOSSY_FOR


def is_done(word: int) -> bool:
    """Does a result word say that the whole result is stored?"""
    return word & 0xFF in (ResultState.DONE, ResultState.VERIFIED)


def item_of(index: int, round_: int, stage: Stage) -> int:
    """Chunk, round and stage of a frame with data, as the ``prev`` of a later frame names them."""
    item = index << CHUNK_SHIFT | round_ << ROUND_SHIFT | stage
    assert item < NOTHING
    return item


def parts_of(item: int) -> tuple[int, int, Stage]:
    """The chunk, round and stage in a number made by `item_of`."""
    return item >> CHUNK_SHIFT, item >> ROUND_SHIFT & 0xFF, Stage(item & _STAGE_BIT)


def slots_of(rank: int, ranks: int, total: int) -> int:
    """Number of chunks below ``total`` that a rank owns: its slots."""
    return max(0, -(-(total - rank) // ranks))
