"""What the ring's programs share with the process of their host. As a rank of pure Python holds it.

``bpf/shared/ring_abi.h`` says what it is in memory, and what each of these is.
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
    "ASKS",
    "COUNTERS",
    "LOSSY_FOR",
    "ORDERS",
    "PARKING",
    "PARKING_TRIES",
    "Ask",
    "Asks",
    "Chunk",
    "Config",
    "Kept",
    "Lane",
    "Memory",
    "Order",
    "OrderEntry",
    "Peer",
    "Queue",
    "ResultState",
    "Stage",
    "Tensor",
    "is_done",
    "item_of",
    "parts_of",
    "slots_of",
]

PARKING = constant("RING_PARKING")
"""Frames that may wait for the local gradient."""

PARKING_TRIES = constant("RING_PARKING_TRIES")
"""Slots that a chunk may wait in."""

ASKS = constant("RING_ASKS")
"""Requests that a CPU may have to send."""

LOSSY_FOR = constant("RING_LOSSY_FOR")
"""Collectives for which partial sums are kept after a sign of loss."""

ORDERS = constant("RING_ORDERS")
"""Orders that may wait to be taken."""

ANYWHERE = constant("RING_ANYWHERE")
"""Of a probe: on whichever CPU takes the order."""

_STAGE_BIT = constant("RING_STAGE_BIT")

COUNTERS = counter_names("ring_counter", "RING_")
"""What the programs count: reasons to drop a frame, and ``enum ring_counter``."""


class Order(IntEnum):
    """``enum ring_order_kind``."""

    LAUNCH = constant("RING_ORDER_LAUNCH")
    REPLAY = constant("RING_ORDER_REPLAY")
    REQUEST = constant("RING_ORDER_REQUEST")
    RESTART = constant("RING_ORDER_RESTART")
    PROBE = constant("RING_ORDER_PROBE")


class Stage(IntEnum):
    """``enum ring_stage``: what a frame with data is about."""

    PARTIAL = constant("RING_STAGE_PARTIAL")
    RESULT = constant("RING_STAGE_RESULT")


class ResultState(IntEnum):
    """``enum ring_result_state``: the lowest byte of a chunk's result word."""

    NONE = constant("RING_RESULT_NONE")
    CLAIMED = constant("RING_RESULT_CLAIMED")
    DONE = constant("RING_RESULT_DONE")
    REFUSED = constant("RING_RESULT_REFUSED")
    VERIFIED = constant("RING_RESULT_VERIFIED")


class OrderEntry(NamedTuple):
    """``struct ring_order``."""

    kind: int
    generation: int
    chunk: int
    attempt: int = 0
    extra: int = 0


class Ask(NamedTuple):
    """``struct ring_ask``, without its time."""

    generation: int
    item: int
    due_frame: int
    due_us: int
    tries: int = 0


@dataclass(frozen=True)
class Config:
    """``struct ring_config``.

    :param chunk_bytes: Payload of a frame of a tensor of more than one chunk; a multiple of `BLOCK`.
    :param chunks: Capacity.
    :param peers: Addresses of all ranks.
    :param upstream: Who lacks a frame asks the rank before it, not the chunk's owner.
    :param gap: Later frames of the same lane that must have come before a missing one is asked for; 0: only the timer asks.
    :param kept: Slots for partial sums that have been sent; a power of two.
    :param cpus: CPUs that carry frames, each a lane.
    """

    cookie: int
    rank: int
    ranks: int
    group: int
    chunk_bytes: int
    chunks: int
    peers: tuple[Endpoint, ...]
    upstream: bool = True
    gap: int = 0
    kept: int = 16
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


@dataclass(slots=True)
class Chunk:
    """``struct ring_chunk``; `before` and `lost` are by `Stage`."""

    input_sum: int = 0
    result_sum: int = 0
    reduced: int = 0
    result: int = 0
    before: list[int] = field(default_factory=lambda: [0, 0])
    lost: list[int] = field(default_factory=lambda: [0, 0])
    asked_us: int = 0
    resent_us: int = 0
    attempt: int = 0


@dataclass(slots=True)
class Kept:
    """``struct ring_kept``, and its data."""

    owner: int = 0
    valid: int = 0
    sum: int = 0
    round: int = 0
    data: Any = None


@dataclass(slots=True)
class Lane:
    """``struct ring_lane``."""

    generation: int = 0
    prev: int = 0
    progress: int = 0
    heard: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Peer:
    """``struct ring_rank``."""

    generation: int = 0
    settled: int = 0
    told: int = 0
    front: int = 0


@dataclass(slots=True)
class Queue:
    """``struct ring_queue``: requests for which a frame is under way, and those that wait."""

    carried: deque[Ask] = field(default_factory=deque)
    waiting: deque[Ask] = field(default_factory=deque)


@dataclass(slots=True)
class Asks:
    """``struct ring_asks``."""

    frames: int = 0
    fresh: Queue = field(default_factory=Queue)
    again: Queue = field(default_factory=Queue)


@dataclass
class Memory:
    """The maps of one rank; what is not said otherwise has its name in ``struct ring_control``.

    :param config: Set once.
    :param generation: Upper half of ``progress``: the collective that the process has entered.
    :param ready: Lower half: chunks whose input is ready.
    :param next_generation: Upper half of ``next``.
    :param next_slot: Lower half: slot ``s`` is chunk ``rank + ranks * s``.
    :param holdoff_us: Between two requests for a frame, the first time; owners ignore what comes sooner.
    :param settled: Generation of which the process has verified all results.
    :param front: First chunk whose result is missing, as far as the process has looked.
    :param lossy: Generation in which this rank last saw a sign of loss; 0: it has not.
    :param flushed: CPUs, a bit each, on which the rank before has answered.
    :param events: Generations of which the last result that was waited for has been stored.
    :param orders: Given and not taken.
    :param parking: What is parked in each slot.
    """

    config: Config
    generation: int = 0
    ready: int = 0
    next_generation: int = 0
    next_slot: int = 0
    flushed: int = 0
    lossy: int = 0
    stored: int = 0
    wake_at: int = 0
    holdoff_us: int = 0
    settled: int = 0
    front: int = 0
    tensors: list[Tensor] = field(default_factory=lambda: [Tensor(), Tensor()])
    orders: deque[OrderEntry] = field(default_factory=deque)
    events: list[int] = field(default_factory=list)
    parking: list[Frame | None] = field(default_factory=lambda: [None] * PARKING)

    def __post_init__(self) -> None:
        config, words = self.config, self.config.chunk_bytes // 8
        self.inputs: list[Any] = [np.zeros(words, np.uint64) for _ in range(config.chunks)]
        self.results: list[Any] = [np.zeros(words, np.uint64) for _ in range(config.chunks)]
        self.chunks = [Chunk() for _ in range(config.chunks)]
        self.kept = [Kept() for _ in range(config.kept)]
        self.lanes = [Lane() for _ in range(config.cpus)]
        self.asks = [Asks() for _ in range(config.cpus)]
        self.ranks = [Peer() for _ in range(config.ranks)]
        self.counters = dict.fromkeys(COUNTERS, 0)


def is_done(word: int) -> bool:
    """Does a result word say that the whole result is here?"""
    return word & 0xFF in (ResultState.DONE, ResultState.VERIFIED)


def item_of(index: int, round_: int, stage: Stage) -> int:
    """What a frame with data is about, as a later frame's ``prev`` names it."""
    item = index << CHUNK_SHIFT | round_ << ROUND_SHIFT | stage
    assert item < NOTHING
    return item


def parts_of(item: int) -> tuple[int, int, Stage]:
    """Chunk, round and stage of what `item_of` names."""
    return item >> CHUNK_SHIFT, item >> ROUND_SHIFT & 0xFF, Stage(item & _STAGE_BIT)


def slots_of(rank: int, ranks: int, total: int) -> int:
    """Chunks below ``total`` that a rank owns: its slots."""
    return max(0, -(-(total - rank) // ranks))
