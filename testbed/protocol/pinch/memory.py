"""What the programs of an exchange share with their process, as held by a rank in pure Python.

It consists of integers, and of tuples and lists of them, so that a rank can be copied, compared and
hashed (`Memory.snapshot`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from testbed.kernel.abi import counter_names
from testbed.protocol.pinch.packet import NOT_FINITE, U32, UNKNOWN

__all__ = [
    "COUNTERS",
    "Config",
    "Flow",
    "Frame",
    "Hub",
    "Memory",
    "Peer",
    "Row",
    "Sent",
    "Sink",
    "Source",
]

COUNTERS = counter_names("pinch_counter", "PINCH_")
"""The programs' counters: reasons to drop a frame, and ``enum pinch_counter``."""


class Source(NamedTuple):
    """``struct pinch_source``.

    :param vertices: Number of vertices that the rank owns.
    :param first: Index of the first of them in the table of vertices.
    :param seen: Index of its first word in `Memory.seen`.
    :param frames: Maximum number of frames that it may send.
    """

    vertices: int
    first: int
    seen: int
    frames: int


@dataclass(frozen=True)
class Config:
    """``struct pinch_config``: what is known when the programs are loaded.

    :param words: Words of a vertex in a frame.
    :param rows: Vertices in a full frame.
    :param payload: Bytes of a full frame's payload.
    :param slice: Neighbours to which one run adds a vertex.
    :param capacity: Maximum number of frames.
    :param home: Each rank's flow, which is the number of the CPU that adds for the rank.
    :param anywhere: Frames are added where they arrive, and there is one flow.
    :param lands: Frames are stored for the process, which adds up their rows.
    """

    cookie: int
    rank: int
    ranks: int
    group: int
    tag: int
    words: int
    rows: int
    payload: int
    slice: int
    capacity: int
    sources: tuple[Source, ...]
    home: tuple[int, ...]
    anywhere: bool = True
    lands: bool = False

    @cached_property
    def acked_words(self) -> int:
        """Words of each peer's bitmap of acknowledged frames."""
        return max(-(-self.capacity // 32), 1)

    def flow_to(self, rank: int) -> int:
        """The flow that frames to a rank belong to."""
        return 0 if self.anywhere else self.home[rank]

    @cached_property
    def fan(self) -> tuple[int, ...]:
        """The flows to which ranks belong."""
        return (0,) if self.anywhere else tuple(sorted(set(self.home)))

    def homes(self, flow: int) -> int:
        """The ranks of a flow, a bit each."""
        return sum(1 << rank for rank in range(self.ranks) if self.flow_to(rank) == flow)


class Frame(NamedTuple):
    """``struct pinch_frame``, and its payload."""

    to: int
    ask: int
    body: tuple[int, ...]

    @property
    def copies(self) -> int:
        """Number of ranks that need the frame."""
        return self.to.bit_count()


class Sent(NamedTuple):
    """``struct pinch_sent``."""

    seq: int
    serial: int
    sent_us: int
    stream: int
    attempt: int


class Hub(NamedTuple):
    """``struct pinch_hub``, and the queued row."""

    first: int
    neighbours: int
    part: int
    next: int
    body: tuple[int, ...] = ()


class Row(NamedTuple):
    """What a program did with a vertex's row in a frame.

    :param edges: Number of neighbours to which the row was added.
    :param hub: The hub as which the row was queued instead, in slot `slot`.
    :param bad: The sender has no such vertex.
    """

    edges: int = 0
    hub: Hub | None = None
    slot: int = 0
    bad: bool = False


class Sink(Protocol):
    """Adds rows to accumulators, or stores frames. The rules do not depend on the meaning of a
    payload.
    """

    def take(self, sender: int, body: tuple[int, ...], rows: int) -> Iterable[Row]:
        """Add the rows of a frame to their vertices' neighbours."""

    def add_slice(self, hub: Hub, number: int) -> int:
        """Add one slice of a queued row; return the number of neighbours in it."""


@dataclass(slots=True)
class Flow:
    """``struct pinch_flow``, the flow's schedule, and the work requests that no program has taken
    yet.

    :param schedule: Numbers of the flow's frames, ascending.
    """

    schedule: tuple[int, ...] = ()
    next: int = 0
    in_flight: int = 0
    sq: tuple[int, ...] = ()
    sq_head: int = 0

    @property
    def next_number(self) -> int:
        """The frame to send next; all ones once all have been sent."""
        return self.schedule[self.next] if self.next < len(self.schedule) else U32


@dataclass(slots=True)
class Peer:
    """``struct pinch_peer``."""

    received: int = 0
    acked: int = 0
    heard: int = 0
    news: int = 0
    answers: int = 0
    at: int = 0
    waits: int = 0
    ours: list[int] = field(default_factory=lambda: [0, 0])
    theirs: list[int] = field(default_factory=lambda: [0, 0])


def _make_peer(*state: Any) -> Peer:
    peer = Peer(*state[:7])
    peer.ours, peer.theirs = map(list, state[7:])
    return peer


_SCALARS = (
    "seq",
    "ready",
    "window",
    "copies",
    "lowest",
    "highest",
    "partners",
    "met",
    "unfit",
    "acked",
    "received",
    "owed",
    "queued",
    "served",
    "nonfinite",
    "gone",
    "late",
    "end_acked",
    "handed",
    "taken",
)
_scalars = attrgetter(*_SCALARS)
_flow = attrgetter("schedule", "next", "in_flight", "sq", "sq_head")
_peer = attrgetter("received", "acked", "heard", "news", "answers", "at", "waits")


class Memory:
    """All maps of one rank."""

    def __init__(self, config: Config, sink: Sink) -> None:
        self.config, self.sink = config, sink
        self.seq = self.ready = 0
        self.window, self.copies = 1, UNKNOWN
        self.lowest, self.highest, self.partners = 0, NOT_FINITE - 2, (1 << config.ranks) - 1
        #: seq << 32 | frames to expect, once all ranks have entered and the scale of the payloads
        #: fits.
        self.met = 0
        self.unfit = self.acked = self.received = self.owed = self.queued = self.served = 0
        self.nonfinite = self.gone = self.late = self.end_acked = self.handed = self.taken = 0
        flows = max(config.fan) + 1
        self.flows = [Flow() for _ in range(flows)]
        self.frames: tuple[Frame, ...] = ()
        self.sent: dict[tuple[int, int], Sent] = {}  # by flow and number
        self.peers = [Peer() for _ in range(config.ranks)]
        self.seen = [0] * max(sum(-(-source.frames // 32) for source in config.sources), 1)
        self.acks = [0] * (config.acked_words * config.ranks)
        self.wanted = [0] * (config.acked_words * config.ranks)
        self.hubs: dict[int, Hub] = {}  # by slot
        self.hub_queue: dict[int, int] = {}  # seq << 32 | slot, by place
        #: By CPU: number of frames sent on its stream.
        self.serials: dict[int, int] = {}
        #: By CPU: kicks made of the last missing handshake.
        self.fanned: dict[int, int] = {}
        # Not part of the state.
        self.cpu = 0  # on which the programs currently run
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.events: list[int] = []
        self.rtt_samples = self.rtt_sum_us = self.rtt_max_us = 0

    def snapshot(self) -> tuple[Any, ...]:
        """Return all state but the sink's, to be restored, compared or hashed."""
        return (
            _scalars(self),
            tuple(map(_flow, self.flows)),
            self.frames,
            tuple(sorted(self.sent.items())),
            tuple((*_peer(peer), tuple(peer.ours), tuple(peer.theirs)) for peer in self.peers),
            tuple(self.seen),
            tuple(self.acks),
            tuple(self.wanted),
            tuple(sorted(self.hubs.items())),
            tuple(sorted(self.hub_queue.items())),
            tuple(sorted(self.serials.items())),
            tuple(sorted(self.fanned.items())),
        )

    def restore(self, state: tuple[Any, ...]) -> None:
        """Restore what `snapshot` returned."""
        (
            scalars,
            flows,
            self.frames,
            sent,
            peers,
            seen,
            acks,
            wanted,
            hubs,
            hub_queue,
            serials,
            fanned,
        ) = state
        for name, value in zip(_SCALARS, scalars, strict=True):
            setattr(self, name, value)
        self.flows = [Flow(*flow) for flow in flows]
        self.peers = [_make_peer(*peer) for peer in peers]
        self.seen, self.acks, self.wanted = list(seen), list(acks), list(wanted)
        self.sent, self.hubs, self.hub_queue = dict(sent), dict(hubs), dict(hub_queue)
        self.serials, self.fanned = dict(serials), dict(fanned)

    @property
    def flow_here(self) -> int:
        """The flow that the current CPU sends."""
        return 0 if self.config.anywhere else self.cpu

    def count(self, counter: str, by: int = 1) -> None:
        """Increase a counter."""
        self.counters[counter] += by
