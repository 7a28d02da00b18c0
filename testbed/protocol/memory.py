"""What the ring's programs share with the process of their host. Twin of ``bpf/include/ring.h`` and ``ring_maps.h``."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from testbed.protocol.wire import Endpoint, Frame

__all__ = [
    "ASKS",
    "COUNTERS",
    "ORDERS",
    "PARKING",
    "PARKING_TRIES",
    "Chunk",
    "Config",
    "Event",
    "EventKind",
    "Front",
    "Memory",
    "Order",
    "OrderEntry",
    "Tensor",
]

PARKING = 256
"""Frames that may wait for the local gradient."""

PARKING_TRIES = 4
"""Slots that a chunk may wait in."""

ASKS = 32
"""Chunks that a CPU may have to ask for."""

ORDERS = 1024
"""Orders that may wait to be taken."""

COUNTERS = (
    "sent",
    "sent_bytes",
    "resent",
    "stored",
    "answered",
    "duplicate",
    "parked",
    "bad_cookie",
    "bad_generation",
    "bad_chunk",
    "bad_length",
    "bad_tensor",
    "bad_rank",
    "bad_kind",
    "bad_checksum",
    "parking_full",
    "spread",
    "gaps",
    "overtaken",
)
"""``enum ring_counter``."""


class Order(IntEnum):
    """``enum ring_order_kind``."""

    LAUNCH = 1
    REPLAY = 2
    REQUEST = 3
    PROBE = 4


class EventKind(IntEnum):
    """``enum ring_event_kind``."""

    STORED = 1
    ALIVE = 2


class OrderEntry(NamedTuple):
    """``struct ring_order``."""

    kind: int
    generation: int
    chunk: int
    attempt: int = 0


class Event(NamedTuple):
    """``struct ring_event``."""

    kind: EventKind
    rank: int
    generation: int
    stored: int


@dataclass(frozen=True)
class Config:
    """``struct ring_config``.

    :param chunk_bytes: Payload of a frame of a tensor of more than one chunk; a multiple of `BLOCK`.
    :param chunks: Capacity.
    :param peers: Addresses of all ranks.
    :param upstream: Who lacks a chunk asks the rank before it, not the chunk's owner.
    :param gap: Slots by which a result may be late before it is asked for; 0: only the timer asks.
    """

    cookie: int
    rank: int
    ranks: int
    group: int
    chunk_bytes: int
    chunks: int
    peers: tuple[Endpoint, ...]
    upstream: bool = False
    gap: int = 0

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
class Front:
    """``struct ring_front``."""

    generation: int = 0
    slot: int = 0


@dataclass(slots=True)
class Chunk:
    """``struct ring_chunk``."""

    input_sum: int = 0
    result_sum: int = 0
    claimed: int = 0
    done: int = 0  # the complement of a generation: its result has been refused
    sent_us: int = 0
    attempt: int = 0


@dataclass
class Memory:
    """The maps of one rank; what is not said otherwise has its name in ``struct ring_control``.

    :param config: Set once.
    :param generation: Upper half of ``progress``: the collective that the process has entered.
    :param ready: Lower half: chunks whose input is ready.
    :param next_generation: Upper half of ``next``.
    :param next_slot: Lower half: slot ``s`` is chunk ``rank + ranks * s``.
    :param quench_us: Requests for a chunk that was sent or asked for less than this ago are ignored; 0: none is.
    :param settled: Generation of which the process has found all results that it needs to be what their checks say.
    :param orders: Given and not taken.
    :param asks: What the programs want sent: launches and requests.
    :param carried: For so many of these a frame is under way that takes one.
    :param fronts: By owner, how far its results have come without a hole.
    :param parking: What is parked in each slot.
    """

    config: Config
    generation: int = 0
    ready: int = 0
    next_generation: int = 0
    next_slot: int = 0
    stored: int = 0
    wake_at: int = 0
    rtt_samples: int = 0
    rtt_sum_us: int = 0
    rtt_max_us: int = 0
    quench_us: int = 0
    settled: int = 0
    tensors: list[Tensor] = field(default_factory=lambda: [Tensor(), Tensor()])
    orders: deque[OrderEntry] = field(default_factory=deque)
    carried: int = 0
    asks: deque[OrderEntry] = field(default_factory=deque)
    events: list[Event] = field(default_factory=list)
    parking: list[Frame | None] = field(default_factory=lambda: [None] * PARKING)

    def __post_init__(self) -> None:
        shape = self.config.chunks, self.config.chunk_bytes // 8
        self.inputs = np.zeros(shape, np.uint64)
        self.results = np.zeros(shape, np.uint64)
        self.fronts = [Front() for _ in range(self.config.ranks)]
        self.chunks = [Chunk() for _ in range(self.config.chunks)]
        self.counters = dict.fromkeys(COUNTERS, 0)
