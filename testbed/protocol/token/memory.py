"""The memory that one rank's programs and process share (``bpf/shared/token_abi.h``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from testbed.kernel.abi import constant, counter_names

__all__ = ["COUNTERS", "FLAGS", "Config", "Memory", "Out", "Pair", "Peer", "Slot", "pairs_of"]

COUNTERS = counter_names("token_counter", "TOKEN_")


class FLAGS:
    """``enum pinch_flag``."""

    NONFINITE = constant("PINCH_FLAG_NONFINITE")
    LARGE = constant("PINCH_FLAG_LARGE")
    ENDED = constant("PINCH_FLAG_ENDED")
    LATE = constant("PINCH_FLAG_LATE")
    RETURN = constant("PINCH_FLAG_RETURN")


class Pair(NamedTuple):
    """``struct token_pair``."""

    slot: int = 0
    frames_in: int = 0
    out: int = 0
    frames_out: int = 0


def pairs_of(counts: Iterable[tuple[int, int]]) -> tuple[Pair, ...]:
    """Number the frames of a rank.

    :param counts: By rank, frames that come from it, and frames for it; none: it is no partner.
    """
    pairs, slot, out = [], 0, 0
    for into, away in counts:
        pairs.append(Pair(slot, into, out, away) if into or away else Pair())
        slot, out = slot + into, out + away
    return tuple(pairs)


class Out(NamedTuple):
    """``struct token_out``, and the words of its data."""

    check: int = 0
    seq: int = 0
    receiver: int = 0
    number: int = 0
    frames: int = 0
    flags: int = 0
    acked: int = 0
    token: int = 0
    data: tuple[int, ...] = ()


class Slot(NamedTuple):
    """``struct token_slot``, and the words of its data."""

    claim: int = 0
    check: int = 0
    flags: int = 0
    data: tuple[int, ...] = ()


class Peer(NamedTuple):
    """``struct token_peer``."""

    landed: tuple[int, int] = (0, 0)
    frames: tuple[int, int] = (0, 0)
    heard: int = 0
    news: int = 0
    answers: int = 0
    at: int = 0
    waits: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Config:
    """``struct token_config``.

    :param room: Words of data in a frame, at most.
    :param pairs: By rank.
    :param window: Frames in flight, at most.
    :param stride: Frames for each that returns; 1: tokens carry all frames but the first.
    """

    cookie: int
    rank: int
    ranks: int
    group: int
    tag: int
    room: int
    pairs: tuple[Pair, ...]
    window: int
    stride: int = 1

    @property
    def slots(self) -> int:
        """Frames that arrive in an exchange, at most."""
        return sum(pair.frames_in for pair in self.pairs)

    @property
    def outs(self) -> int:
        """Frames that are sent in an exchange, at most."""
        return sum(pair.frames_out for pair in self.pairs)

    @property
    def partners(self) -> tuple[int, ...]:
        """Ranks with which this one exchanges frames."""
        return tuple(rank for rank, pair in enumerate(self.pairs) if pair.frames_in)


@dataclass
class Memory:
    """``struct token_control`` and the maps.

    :ivar orders: By parity, frames in the order in which they are sent.
    """

    config: Config
    open: int = 0
    entered: int = 0
    waits: int = 0
    gone: int = 0
    late: int = 0
    ended: int = 0
    foreign: int = 0  # for an error's text
    ready: int = 0
    next: int = 0
    returned: int = 0
    stalled: int = 0
    complete: list[int] = field(default_factory=lambda: [0, 0])
    orders: list[tuple[int, ...]] = field(default_factory=lambda: [(), ()])
    outs: list[Out] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    wakes: int = 0
    cpu: int = 0  # on which the program runs

    def __post_init__(self) -> None:
        self.outs = self.outs or [Out()] * (2 * self.config.outs)
        self.slots = self.slots or [Slot()] * (2 * self.config.slots)
        self.peers = self.peers or [Peer()] * self.config.ranks

    def save(self) -> tuple[Any, ...]:
        """All that decides what happens next: neither counters nor wake-ups."""
        words = self.open, self.entered, self.waits, self.gone, self.late, self.ended
        tokens = self.ready, self.next, self.returned, self.stalled
        tables = tuple(self.outs), tuple(self.slots), tuple(self.peers)
        return (*words, *tokens, tuple(self.complete), tuple(self.orders), *tables)

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Go back to a saved state."""
        self.open, self.entered, self.waits, self.gone, self.late, self.ended = saved[:6]
        self.ready, self.next, self.returned, self.stalled = saved[6:10]
        tables = map(list, saved[10:])
        self.complete, self.orders, self.outs, self.slots, self.peers = tables
