"""Ranks of an exchange by tokens as a `System` to explore: their programs and processes, the frames
between them, and faults.

A state is a tuple of numbers: each rank's state, the frames in flight, those that a CPU has claimed
a slot for but not yet landed, and the faults left. What a rank does depends only on its own state
and on the event, so each reaction is computed once. States leave out counters and what only errors'
texts tell. Timers expire when nothing is in flight, because they are longer than round trips; one
that expires earlier is a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from testbed.protocol.pinch.packet import Packet
from testbed.protocol.sequence import seq_after
from testbed.protocol.token.memory import Config, pairs_of
from testbed.protocol.token.process import Process
from testbed.protocol.token.rank import Rank
from testbed.protocol.wire import PinchKind
from tests.support.explore import FAULT, System

__all__ = ["Scene", "Tokens", "make_config"]

COOKIE, GROUP, TAG = 0x5EED_C0DE, 3, 0x7A6
KEPT = ("heard", "news", "answers", "at", "waits")
"""What a peer's record has for errors only."""


@dataclass(frozen=True)
class Scene:
    """What happens in an exploration.

    :param frames: The number of frames that each rank sends to each other one, in each exchange;
        `later`: in every other, if that is not as many.
    :param exchanges: How many there are.
    :param faults: How many faults there may be in total; `kinds`: which ones.
    :param window: Frames in flight of each rank; `stride`: how many for each that returns.
    :param seq: The sequence number of the first exchange.
    :param one_way: Whether a rank is a partner even if it sends nothing.
    """

    frames: Sequence[Sequence[int]]
    exchanges: int = 2
    faults: int = 0
    kinds: frozenset[str] = frozenset()
    window: int = 1
    stride: int = 1
    seq: int = 5
    one_way: bool = True
    later: Sequence[Sequence[int]] | None = None

    @property
    def ranks(self) -> int:
        return len(self.frames)

    def count(self, sender: int, receiver: int) -> int:
        """Frames from one rank to another; a partner that sends nothing says so."""
        if self.frames[sender][receiver] or not self.one_way:
            return self.frames[sender][receiver]
        return 1 if self.frames[receiver][sender] else 0

    def message(self, turn: int, sender: int, receiver: int) -> list[tuple[int, ...]]:
        """The data of the frames from one rank to another."""
        table = self.later if self.later and turn % 2 else self.frames
        count = table[sender][receiver]
        if not count:
            return [()] * bool(self.count(sender, receiver))
        value = (turn + 1) << 16 | (sender + 1) << 8
        return [(value + number + 1,) for number in range(count)]


def make_config(scene: Scene, rank: int) -> Config:
    """The configuration of a rank."""
    pairs = pairs_of(
        (0, 0) if other == rank else (scene.count(other, rank), scene.count(rank, other))
        for other in range(scene.ranks)
    )
    return Config(COOKIE, rank, scene.ranks, GROUP, TAG, 1, pairs, scene.window, scene.stride)


class Parts(NamedTuple):
    """A rank's state.

    :param entered: Whether its process is in the exchange that is open.
    :param wrong: What is wrong with it; empty if nothing is.
    """

    memory: tuple[Any, ...]
    turn: int
    entered: bool
    wrong: str = ""


class State(NamedTuple):
    """A state of the system; frames and ranks' states are numbers.

    :param claimed: Rank, frame and the slot's word of before.
    """

    ranks: tuple[int, ...]
    in_flight: tuple[int, ...]
    claimed: tuple[tuple[int, int, int], ...]
    faults: int


Make = Callable[[Config], Rank]


@dataclass
class Tokens(System[State]):
    """The system.

    :param make: The program's class, or a mutant of it; `make_process` likewise.
    """

    scene: Scene
    make: Make = Rank
    make_process: Callable[[Rank], Process] = Process
    parts: list[Parts] = field(default_factory=list)
    packets: list[Packet] = field(default_factory=list)
    _numbers: dict[Any, int] = field(default_factory=dict)
    _known: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        scene = self.scene
        self.members = [self.make(make_config(scene, rank)) for rank in range(scene.ranks)]
        self.processes = [self.make_process(rank) for rank in self.members]
        self.seqs = [scene.seq]
        for _ in range(scene.exchanges):
            self.seqs.append(seq_after(self.seqs[-1]))

    def starts(self) -> Iterable[State]:
        states = []
        for rank, process in zip(self.members, self.processes, strict=True):
            rank.__init__(rank.config)  # type: ignore[misc]
            process.seq = 0
            process.open(self.scene.seq)
            states.append(self._save(rank, 0, False))
        return [State(tuple(states), (), (), self.scene.faults)]

    def check(self, state: State) -> str | None:
        for number in state.ranks:
            if self.parts[number].wrong:
                return self.parts[number].wrong
        tokens = sum(
            self.packets[each].kind in (PinchKind.EMBED, PinchKind.ACK) for each in state.in_flight
        )
        if tokens > self._most_tokens(state):
            return f"{tokens} tokens are in flight"
        return None

    def _most_tokens(self, state: State) -> int:
        """A window of each exchange, whose tokens may be late; what is asked for again makes
        more.
        """
        if self.scene.kinds & {"duplicate", "early", "lose", "damage"}:
            return 100
        return self.scene.exchanges * self.scene.window * self.scene.ranks

    def is_end(self, state: State) -> bool:
        return all(self.parts[number].turn == self.scene.exchanges for number in state.ranks)

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        for rank, number in enumerate(state.ranks):
            parts = self.parts[number]
            if parts.turn < self.scene.exchanges:
                for event in ("enter", "take", "go on"):
                    if (found := self._react(rank, number, event)) is not None:
                        yield f"{rank} {event}", self._after(state, rank, *found)
                if parts.entered and not state.in_flight and not state.claimed:
                    yield f"{rank} timer", self._after(state, rank, *self._timer(rank, number))
                elif parts.entered and state.faults and "early" in self.scene.kinds:
                    after = self._after(state, rank, *self._timer(rank, number))
                    yield f"{FAULT}{rank} timer is early", after._replace(faults=state.faults - 1)
        for place, number in enumerate(state.in_flight):
            if place and number == state.in_flight[place - 1]:
                continue
            rest = state._replace(in_flight=state.in_flight[:place] + state.in_flight[place + 1 :])
            rank = self.packets[number].destination
            text = self._describe(number)
            yield f"deliver {text}", self._after(rest, rank, *self._deliver(rest, rank, number))
            if state.faults:
                yield from self._faults(state, rest, rank, number, text)
        for place, (rank, number, before) in enumerate(state.claimed):
            rest = state._replace(claimed=state.claimed[:place] + state.claimed[place + 1 :])
            found = self._react(rank, rest.ranks[rank], "land", number, before)
            yield f"land {self._describe(number)}", self._after(rest, rank, *found)

    def _faults(
        self, state: State, rest: State, rank: int, number: int, text: str
    ) -> Iterator[tuple[str, State]]:
        kinds, less = self.scene.kinds, state.faults - 1
        if "lose" in kinds:
            yield f"{FAULT}lose {text}", rest._replace(faults=less)
        if "duplicate" in kinds:
            flight = tuple(sorted((*state.in_flight, number)))
            yield f"{FAULT}duplicate {text}", state._replace(in_flight=flight, faults=less)
        packet = self.packets[number]
        if "damage" in kinds and packet.kind == PinchKind.EMBED and len(packet.body) > 1:
            body = (packet.body[0], packet.body[1] ^ 1, *packet.body[2:])
            bad = self._number(packet._replace(body=body))
            flight = tuple(sorted((*rest.in_flight, bad)))
            yield f"{FAULT}damage {text}", rest._replace(in_flight=flight, faults=less)
        if "stall" in kinds and packet.kind == PinchKind.EMBED:
            found = self._react(rank, rest.ranks[rank], "claim", number)
            if found is not None:
                after, before = found
                ranks = (*rest.ranks[:rank], after, *rest.ranks[rank + 1 :])
                claimed = tuple(sorted((*rest.claimed, (rank, number, before))))
                stalled = rest._replace(ranks=ranks, claimed=claimed, faults=less)
                yield f"{FAULT}stall {text}", stalled

    def _deliver(self, state: State, rank: int, number: int) -> tuple[int, tuple[int, ...]]:
        return self._react(rank, state.ranks[rank], "link", number)  # type: ignore[no-any-return]

    def _timer(self, rank: int, number: int) -> tuple[int, tuple[int, ...]]:
        return self._react(rank, number, "timer")  # type: ignore[no-any-return]

    def _after(self, state: State, rank: int, after: int, sent: tuple[int, ...]) -> State:
        ranks = (*state.ranks[:rank], after, *state.ranks[rank + 1 :])
        return state._replace(ranks=ranks, in_flight=tuple(sorted((*state.in_flight, *sent))))

    def _react(self, *key: Any) -> Any:
        if key not in self._known:
            self._known[key] = self._compute(*key)
        return self._known[key]

    def _compute(
        self, index: int, number: int, event: str, packet: int = -1, before: int = 0
    ) -> Any:
        parts, rank, process = self.parts[number], self.members[index], self.processes[index]
        rank.restore(parts.memory)
        process.seq = rank.open
        turn, entered, wrong, out = parts.turn, parts.entered, parts.wrong, list[Packet]()
        match event:
            case "link" | "land" | "claim":
                frame = self.packets[packet]
                wrong = self._ahead(rank, frame, entered)
                if event == "claim":
                    claimed = rank.claim(frame) if rank.is_for_me(frame) else None
                    if claimed is None:
                        return None
                    return self._save(rank, turn, entered, wrong), claimed
                reply = rank.on_link(frame) if event == "link" else rank.land(frame, before)
                out = [reply] if reply is not None else []
            case "enter":
                if entered:
                    return None
                out = process.send(
                    {
                        other: self.scene.message(turn, index, other)
                        for other in range(self.scene.ranks)
                        if rank.config.pairs[other].frames_out
                    }
                )
                entered = True
            case "take":
                if not entered or not process.is_complete:
                    return None
                found = process.take()
                if found is not None:
                    expected = {
                        other: self.scene.message(turn, other, index)
                        for other in rank.config.partners
                    }
                    if found != expected:
                        wrong = f"rank {index} has {found} instead of {expected}"
                    process.open(self.seqs[turn + 1])
                    turn, entered = turn + 1, False
            case "go on":
                if not entered or rank.stalled or not process.unsent or self.scene.stride == 1:
                    return None
                out = process.go_on()
            case "timer":
                out = process.forgive() + [
                    process.ask(partner, each, 1)
                    for partner in rank.config.partners
                    for each in process.missing(partner)
                ]
        numbers = tuple(map(self._number, out))
        return self._save(rank, turn, entered, wrong), numbers

    def _ahead(self, rank: Rank, frame: Packet, entered: bool) -> str:
        """A partner cannot have finished an exchange that this rank has not entered."""
        if frame.kind == PinchKind.EMBED and frame.seq == seq_after(rank.open) and not entered:
            return f"rank {frame.sender} is ahead of rank {rank.config.rank}, which has not entered"
        return ""

    def _save(self, rank: Rank, turn: int, entered: bool, wrong: str = "") -> int:
        rank.peers = [peer._replace(**dict.fromkeys(KEPT, 0)) for peer in rank.peers]
        rank.waits = 0
        parts = Parts(rank.save(), turn, entered, wrong)
        number = self._numbers.setdefault(parts, len(self.parts))
        if number == len(self.parts):
            self.parts.append(parts)
        return number

    def _number(self, packet: Packet) -> int:
        number = self._numbers.setdefault(packet, len(self.packets))
        if number == len(self.packets):
            self.packets.append(packet)
        return number

    def _describe(self, number: int) -> str:
        packet = self.packets[number]
        kind = PinchKind(packet.kind).name.lower()
        return f"{kind} {packet.number} of {packet.sender} to {packet.receiver}, seq {packet.seq}"
