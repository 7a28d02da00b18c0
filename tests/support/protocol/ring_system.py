"""Small rings for exploration: `testbed.protocol` with payloads that are numbers, stopped clocks,
and arbitrary faults.

Each rank's input has digits of its own in a payload, so a sum shows whose inputs it contains, and
how often. Bits above the 64 that programs add up stand for errors that they do not see, but a check
does. Attempts, counters and times are left out, because no decision depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

from testbed.protocol.ring.liveness import (
    End,
    Reason,
    silent,
    to_blame,
    unacknowledged,
    unverified,
)
from testbed.protocol.ring.memory import (
    Chunk,
    Config,
    Nack,
    NackQueue,
    Nacks,
    Peer,
    Saved,
    Stage,
    Stream,
    Tensor,
    WrKind,
)
from testbed.protocol.ring.process import PATIENCE, Process
from testbed.protocol.ring.rank import Rank
from testbed.protocol.ring.streams import Work
from testbed.protocol.sequence import seq_after
from testbed.protocol.wire import BLOCK, FRAME_BYTES, Frame, Header, Kind, frame_seal
from tests.support.explore import FAULT, System
from tests.support.protocol.network import COOKIE, GROUP, endpoints

__all__ = [
    "Budget",
    "RankState",
    "Reaction",
    "RingSystem",
    "Scene",
    "State",
    "TinyProcess",
    "TinyRank",
]

UNSEEN = 1 << 64
"""An error that a plain sum does not detect."""
ROUNDS = 3
"""How often all ranks are asked before one is called silent: more often than questions and answers
are lost.
"""
TAG = 7


class TinyFrame(Frame):
    """A frame whose payload is a number."""

    @property
    def size(self) -> int:
        return FRAME_BYTES

    def copy(self) -> TinyFrame:
        return TinyFrame(Header(*_values(self.header)), self.payload, self.source, self.destination)

    def resize(self, length: int) -> None:
        pass

    def fill(self, words: int, length: int) -> None:
        self.payload = words

    def take(self, length: int) -> int:
        return self.payload

    def sum(self, length: int) -> int:
        return self.payload & UNSEEN - 1

    def add(self, words: int, length: int) -> None:
        self.payload += words


_FIELDS = tuple(Header.__dataclass_fields__)


def _values(header: Header) -> tuple[int, ...]:
    return tuple(getattr(header, name) for name in _FIELDS)


FrozenFrame = tuple[Any, ...]


class EarlyFrames(dict):
    """The slots of the early-frame buffer; most are free."""

    def __missing__(self, slot: int) -> None:
        return None

    def __setitem__(self, slot: int, frame: Frame | None) -> None:
        if frame is None:
            self.pop(slot, None)
        else:
            super().__setitem__(slot, frame)


class TinyRank(Rank):
    """Programs without counters."""

    def _count(self, counter: str, by: int = 1) -> None:
        pass

    def _next_attempt(self, chunk: Chunk, seq: int) -> int:
        return 0

    def _next_nack(self, chunk: Chunk) -> int:
        return 0

    def _again(self) -> int:
        return 0

    def _enlist(self, w: Work, index: int, stage: Stage) -> None:
        w.frame.header.attempt = 0
        super()._enlist(w, index, stage)

    def _put(self, queue: NackQueue, nack: Nack) -> None:
        super()._put(queue, nack._replace(due_frame=0, due_us=0))

    def __post_init__(self) -> None:
        """Does nothing: `_thaw` sets all fields."""


class TinyProcess(Process):
    """A process that may request everything at any time, and detects errors that a sum does not."""

    def replay(self) -> None:
        memory = self.memory
        for slot, early in sorted(memory.early_frames.items()):
            if early.header.seq == memory.seq and early.header.chunk < memory.ready:
                self.post(WrKind.REPLAY, memory.seq, slot)
            elif early.header.seq < memory.seq:
                memory.early_frames[slot] = None

    def kick(self) -> Frame:
        config = self.memory.config
        return TinyFrame(Header(Kind.DOORBELL, group=config.group, cookie=config.cookie), 0)

    def probe(self, cpu: int, now_us: int) -> None:
        super().probe(cpu, now_us)
        self._probes = 0

    def _is_good(self, chunk: int) -> bool:
        return self.memory.results[chunk] < UNSEEN

    def _allowance(self) -> int:
        return 1 << 30


class RankState(NamedTuple):
    """The whole state of a rank, frozen."""

    seq: int = 1
    ready: int = 0
    next: tuple[int, int] = (0, 0)
    flushed: int = 0
    lossy: int = 0
    ended: int = 0
    stored: int = 0
    verified: int = 1
    tensors: tuple[tuple[int, ...], ...] = ((0,) * 6,) * 2
    inputs: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    chunks: tuple[tuple[Any, ...], ...] = ()
    retransmit: tuple[tuple[int, ...], ...] = ()
    stream: tuple[int, int] = (0, 0)
    fresh: tuple[tuple[Nack, ...], tuple[Nack, ...]] = ((), ())
    again: tuple[tuple[Nack, ...], tuple[Nack, ...]] = ((), ())
    peers: tuple[tuple[int, ...], ...] = ()
    early_frames: tuple[tuple[int, Any], ...] = ()
    #: The process: its phase and its collective; whether it has stalled since something arrived;
    #: its total.
    phase: str = "idle"
    turn: int = 0
    stalled: bool = False
    total: int = 0
    #: The wait: how often all ranks have been asked since something arrived, and since each rank
    #: was heard.
    rounds: int = 0
    ages: tuple[int, ...] = ()
    #: A frame with which a CPU is held up, after it has looked and before it acts.
    held: tuple[Any, ...] | None = None


GONE = ("left", "crashed", "failed")


class Budget(NamedTuple):
    """Faults that are left: of all kinds together, and the limits of two kinds among them."""

    any: int = 2
    crash: int = 1
    hold: int = 1


ANY_TWO = Budget()


class State(NamedTuple):
    """Numbers of the ranks' states, of the frames in flight by sender and receiver, in order, and
    of late frames; faults left; what is wrong.
    """

    ranks: tuple[int, ...]
    links: tuple[tuple[int, ...], ...]
    late: tuple[int, ...]
    budget: Budget
    wrong: str = ""


class Reaction(NamedTuple):
    """What a rank does: its state afterwards, the receivers and numbers of the frames that it
    sends, and what is wrong.
    """

    rank: RankState
    sent: tuple[tuple[int, int], ...] = ()
    wrong: str = ""


@dataclass(frozen=True)
class Scene:
    """The size of a ring, and what happens to it.

    :param totals: Chunks of each all-reduce.
    :param faults: Kinds of faults.
    :param flips: Fields in which bits are flipped.
    :param data: Whether faults apply only to frames with data.
    :param eager: Whether processes do at once whatever they can do, which leaves fewer orders of
        moves.
    :param late_looks: Whether they may nevertheless verify their results at any time.
    """

    ranks: int = 2
    totals: tuple[int, ...] = (1, 1)
    window: int = 1
    upstream: bool = True
    budget: Budget = ANY_TWO
    faults: tuple[str, ...] = (
        "lose",
        "duplicate",
        "delay",
        "flip",
        "stray",
        "unseen",
        "crash",
        "hold",
        "early",
    )
    flips: tuple[str, ...] = (
        "kind",
        "seq",
        "chunk",
        "hop",
        "sender",
        "receiver",
        "flags",
        "round",
        "prev",
        "tag",
    )
    data: bool = False
    eager: bool = False
    late_looks: bool = False


FLIPS = {
    "kind": 3,  # a partial sum becomes a result
    "seq": 1,
    "chunk": 1,
    "hop": 3,
    "sender": 1,
    "receiver": 1,
    "flags": 1,
    "round": 1,
    "prev": 1,
    "tag": 1,
}
"""Bits that a fault flips, by field."""


class RingSystem(System[State]):
    """A ring in which anything may happen.

    What a rank does depends only on its own state and on the event, so the protocol's core computes
    each reaction once, and afterwards it is looked up. A state is a tuple of numbers, because whole
    ranks take long to hash.
    """

    rank_class = TinyRank
    process_class = TinyProcess
    lingers = True
    tells = True
    rounds = ROUNDS

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.chunks = max(scene.totals)
        self.peers = endpoints(scene.ranks)
        self.by_ip = {peer.ip: rank for rank, peer in enumerate(self.peers)}
        self.configs = [
            Config(
                COOKIE,
                rank,
                scene.ranks,
                GROUP,
                BLOCK,
                self.chunks,
                self.peers,
                scene.upstream,
                1,
                1,
            )
            for rank in range(scene.ranks)
        ]
        self.parts: list[RankState] = []
        self.frames: list[FrozenFrame] = []
        self.shown: list[str] = []
        self._numbers: dict[RankState | FrozenFrame, int] = {}
        self._known: dict[tuple[Any, ...], tuple[int, Reaction]] = {}
        self._waits: dict[tuple[int, int], set[int]] = {}

    def _part(self, rank: RankState) -> int:
        """Return the number of a rank's state."""
        number = self._numbers.setdefault(rank, len(self.parts))
        if number == len(self.parts):
            self.parts.append(rank)
        return number

    def _frame(self, frame: FrozenFrame) -> int:
        """Return the number of a frame."""
        number = self._numbers.setdefault(frame, len(self.frames))
        if number == len(self.frames):
            self.frames.append(frame)
            self.shown.append(_show(frame))
        return number

    # States.

    def starts(self) -> Iterable[State]:
        rank = self._part(
            RankState(
                inputs=(0,) * self.chunks,
                results=(0,) * self.chunks,
                chunks=((0, 0, 0, 0, (0, 0), (0, 0)),) * self.chunks,
                retransmit=((0, 0, 0, 0, 0),),
                peers=((1, 1, 1, 0, 0),) * self.scene.ranks,
            )
        )
        ranks = self.scene.ranks
        yield State((rank,) * ranks, ((),) * ranks**2, (), self.scene.budget)

    def check(self, state: State) -> str | None:
        return state.wrong or None

    def is_end(self, state: State) -> bool:
        return all(self._is_gone(state, index) for index in range(self.scene.ranks))

    def _is_gone(self, state: State, index: int) -> bool:
        return self.parts[state.ranks[index]].phase in GONE

    # Moves.

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        for name, after in self._moves(state):
            yield name, self._hurry(after) if self.scene.eager else after

    def _hurry(self, state: State) -> State:
        """Let processes do everything for which they need not wait."""
        while not state.wrong:
            for index, number in enumerate(state.ranks):
                rank = self.parts[number]
                if rank.phase == "idle":
                    state = self._do(state, index, self._enter)
                elif rank.phase == "entered":
                    state = self._do(state, index, self._publish)
                elif (
                    rank.phase == "waiting"
                    and rank.stored >= rank.total
                    and not self.scene.late_looks
                ):
                    state = self._do(state, index, self._look)
                else:
                    continue
                break
            else:
                break
        return state

    def _moves(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._process_moves(state)
        for place, link in enumerate(state.links):
            if link:
                yield (
                    f"deliver {self.shown[link[0]]}",
                    self._deliver(_take(state, place), link[0]),
                )
        for frame in dict.fromkeys(state.late):
            late = list(state.late)
            late.remove(frame)
            yield (
                f"deliver late {self.shown[frame]}",
                self._deliver(state._replace(late=tuple(late)), frame),
            )
        for index, number in enumerate(state.ranks):
            if self.parts[number].held is not None:
                yield (
                    f"rank {index} goes on with what it was held up with",
                    self._do(state, index, self._resume),
                )
        if state.budget.any:
            yield from self._fault_moves(state)

    def _process_moves(self, state: State) -> Iterator[tuple[str, State]]:
        quiet = not any(state.links) and not state.late
        for index, number in enumerate(state.ranks):
            rank = self.parts[number]
            if rank.phase == "idle":
                yield f"rank {index} enters", self._do(state, index, self._enter)
            elif rank.phase == "entered":
                yield f"rank {index} publishes", self._do(state, index, self._publish)
            elif rank.phase == "waiting" and rank.stored >= rank.total:
                yield f"rank {index} looks at its results", self._do(state, index, self._look)
            elif rank.phase == "waiting" and rank.ended:
                yield (
                    f"rank {index} is told that another has given up",
                    self._end(state, index, rank.ended),
                )
            elif rank.phase == "waiting" and quiet:
                if rank.rounds < self.rounds or not self._given_up(rank, index):
                    yield f"rank {index} has waited", self._do(state, index, self._timer)
                else:
                    yield f"rank {index} gives up", self._give_up(state, index)
            elif rank.phase == "lingering":
                if self._may_leave(state, index):
                    yield f"rank {index} leaves", self._go(state, index, "left")
                elif quiet:
                    yield (
                        f"rank {index} asks who needs it",
                        self._do(state, index, self._ask_around),
                    )
            elif rank.phase == "ending":
                if all(self._is_gone(state, other) for other in self._untold(rank, index)):
                    yield f"rank {index} closes", self._go(state, index, "failed")
                elif quiet:
                    yield (
                        f"rank {index} says that it has given up",
                        self._do(state, index, self._tell),
                    )

    def _fault_moves(self, state: State) -> Iterator[tuple[str, State]]:
        spent = state._replace(budget=state.budget._replace(any=state.budget.any - 1))
        faults = self.scene.faults
        for place, link in enumerate(state.links):
            if not link:
                continue
            frame, shown = link[0], self.shown[link[0]]
            has_data = self.frames[frame][0][0] in (Kind.REDUCE, Kind.RESULT)
            if self.scene.data and not has_data:
                continue
            without = _take(spent, place)
            if "lose" in faults:
                yield f"{FAULT}lose {shown}", without
            if "duplicate" in faults:
                yield f"{FAULT}deliver and keep {shown}", self._deliver(spent, frame)
            if "delay" in faults:
                yield f"{FAULT}delay {shown}", _delay(without, frame)
            if "flip" in faults:
                for field in self.scene.flips:
                    yield (
                        f"{FAULT}flip {field} of {shown}",
                        self._deliver(without, self._flip(frame, field)),
                    )
            if "stray" in faults:
                for field in self.scene.flips:
                    yield (
                        f"{FAULT}copy {shown}, {field} flipped, to come any time",
                        _delay(spent, self._flip(frame, field)),
                    )
            if "unseen" in faults and has_data:
                header, payload, *addresses = self.frames[frame]
                damaged = self._frame((header, payload + UNSEEN, *addresses))
                yield (
                    f"{FAULT}damage {shown}, the sum unchanged",
                    self._deliver(without, damaged),
                )
            if "hold" in faults and state.budget.hold and has_data:
                to = self._receiver(frame)
                if self.parts[state.ranks[to]].held is None and not self._is_gone(state, to):
                    held = without._replace(
                        budget=without.budget._replace(hold=without.budget.hold - 1)
                    )
                    yield (
                        f"{FAULT}hold up a CPU with {shown}",
                        self._do(held, to, self._hold, frame),
                    )
        for index, number in enumerate(state.ranks):
            rank = self.parts[number]
            if "crash" in faults and state.budget.crash and rank.phase not in GONE:
                crashed = spent._replace(budget=spent.budget._replace(crash=spent.budget.crash - 1))
                yield f"{FAULT}rank {index} crashes", self._go(crashed, index, "crashed")
            if (
                "early" in faults
                and rank.phase == "waiting"
                and rank.stored < rank.total
                and any(state.links)
            ):
                yield (
                    f"{FAULT}rank {index} has waited, but not long enough",
                    self._do(spent, index, self._timer),
                )

    def _do(self, state: State, index: int, react: Callable[..., Reaction], *given: int) -> State:
        """Let a rank do something, and put the frames that it sends in flight."""
        key = react.__name__, state.ranks[index], index, *given
        if (known := self._known.get(key)) is None:
            reaction = react(self.parts[state.ranks[index]], index, *given)
            known = self._known[key] = self._part(reaction.rank), reaction
        number, (_, sent, wrong) = known
        if wrong:
            return state._replace(wrong=wrong)
        links = state.links
        if sent:
            filled = list(links)
            for to, frame in sent:
                if not self._is_gone(state, to):
                    filled[index * self.scene.ranks + to] += (frame,)
            links = tuple(filled)
        ranks = state.ranks
        return State((*ranks[:index], number, *ranks[index + 1 :]), links, state.late, state.budget)

    def _go(self, state: State, index: int, phase: str) -> State:
        """Remove a rank that has left, crashed or failed."""
        ranks, links = list(state.ranks), list(state.links)
        ranks[index] = self._part(RankState(phase=phase))  # nothing else about it matters any more
        # Frames on their way to a rank that is gone change nothing.
        for sender in range(self.scene.ranks):
            links[sender * self.scene.ranks + index] = ()
        late = tuple(frame for frame in state.late if self._receiver(frame) != index)
        return state._replace(ranks=tuple(ranks), links=tuple(links), late=late)

    # What processes do.

    def _enter(self, here: RankState, index: int) -> Reaction:
        rank, process = self._thaw(here, index)
        process.begin(seq_after(rank.seq), self.scene.totals[here.turn], BLOCK, TAG)
        ages = (0,) * self.scene.ranks
        return Reaction(_freeze(here, rank, process, phase="entered", rounds=0, ages=ages))

    def _publish(self, here: RankState, index: int) -> Reaction:
        rank, process = self._thaw(here, index)
        for chunk in range(process.total):
            rank.inputs[chunk] = rank.chunks[chunk].input_sum = self._input(here.turn, chunk, index)
        process.publish(process.total)
        return self._serve(here, rank, process, phase="waiting")

    def _look(self, here: RankState, index: int) -> Reaction:
        rank, process = self._thaw(here, index)
        if not process.verify():
            return self._serve(here, rank, process)
        got = list(rank.results[: process.total])
        expected = [
            sum(self._input(here.turn, chunk, other) for other in range(self.scene.ranks))
            for chunk in range(process.total)
        ]
        if got != expected:
            return Reaction(here, wrong=f"rank {index} has taken {got} for the sum of {expected}")
        last = here.turn + 1 == len(self.scene.totals)
        phase = ("lingering" if self.lingers else "left") if last else "idle"
        return Reaction(_freeze(here, rank, process, phase=phase, turn=here.turn + 1))

    def _timer(self, here: RankState, index: int) -> Reaction:
        """Probe the preceding rank on all streams, nack what is known to be lost, and ask all other
        ranks.
        """
        rank, process = self._thaw(here, index)
        process.on_timer(0)
        for other in range(self.scene.ranks):
            if other not in (index, rank.config.before):
                process.post(WrKind.PROBE, 0, other)
        rounds = min(here.rounds + 1, self.rounds)
        ages = tuple(min(age + 1, self.rounds) for age in here.ages)
        return self._serve(here, rank, process, rounds=rounds, ages=ages)

    def _given_up(self, here: RankState, index: int) -> list[int]:
        """The ranks that a rank would call silent."""
        peers = [Peer(*peer) for peer in here.peers]
        return to_blame(silent(index, here.ages, self.rounds), here.seq, peers)

    def _give_up(self, state: State, index: int) -> State:
        blamed = self._given_up(self.parts[state.ranks[index]], index)
        after = self._end(state, index, End(Reason.SILENT, tuple(blamed)).word)
        if not after.wrong and not any(self.parts[rank].phase == "crashed" for rank in state.ranks):
            return state._replace(wrong=f"rank {index} has been left alone")
        return after

    def _end(self, state: State, index: int, word: int) -> State:
        """A rank's collective fails, because of what it has found or been told. A rank that is up
        or has given up must not be called silent; a rank that was done may have left.
        """
        end = End.of(word)
        assert end is not None
        innocent = [
            other
            for other in end.ranks
            if self.parts[state.ranks[other]].phase not in ("crashed", "left")
        ]
        if innocent:
            return state._replace(wrong=f"rank {index} calls {innocent} silent")
        if not self.tells:
            return self._go(state, index, "failed")
        return self._do(state, index, self._tell, word)

    def _untold(self, here: RankState, index: int) -> list[int]:
        """The ranks that have not confirmed that they know that a rank has given up."""
        return [
            other
            for other, peer in enumerate(here.peers)
            if other != index and not Peer(*peer).ended
        ]

    def _tell(self, here: RankState, index: int, word: int = 0) -> Reaction:
        rank, process = self._thaw(here, index)
        rank.ended = word or rank.ended
        for other in self._untold(here, index):
            process.post(WrKind.PROBE, 0, other)
        return self._serve(here, rank, process, phase="ending")

    def _neighbours(self, index: int) -> tuple[list[int], list[int]]:
        """The ranks that may request data from a rank, and those from which it may request data."""
        others = [other for other in range(self.scene.ranks) if other != index]
        if not self.scene.upstream:
            return others, others
        return [(index + 1) % self.scene.ranks], [(index - 1) % self.scene.ranks]

    def _waits_for(self, number: int, index: int) -> set[int]:
        """The ranks for which a rank that is done lingers."""
        if (number, index) not in self._waits:
            rank = self.parts[number]
            peers = [Peer(*peer) for peer in rank.peers]
            askers, askees = self._neighbours(index)
            self._waits[number, index] = {
                *unverified(askers, rank.seq, peers),
                *unacknowledged(askees, rank.seq, peers),
            }
        return self._waits[number, index]

    def _may_leave(self, state: State, index: int) -> bool:
        """A rank does not wait for ranks that are gone: they are silent."""
        return all(
            self._is_gone(state, other) for other in self._waits_for(state.ranks[index], index)
        )

    def _ask_around(self, here: RankState, index: int) -> Reaction:
        rank, process = self._thaw(here, index)
        for other in sorted(self._waits_for(self._part(here), index)):
            process.post(WrKind.PROBE, 0, other)
        return self._serve(here, rank, process)

    # What programs do.

    def _deliver(self, state: State, frame: int) -> State:
        to = self._receiver(frame)
        return state if self._is_gone(state, to) else self._do(state, to, self._receive, frame)

    def _receive(self, here: RankState, index: int, frame: int) -> Reaction:
        rank, process = self._thaw(here, index)
        work = rank.look(_thaw_frame(self.frames[frame]))
        return Reaction(here) if work is None else self._act(here, rank, process, work)

    def _act(
        self, here: RankState, rank: TinyRank, process: TinyProcess, work: Work, **changes: Any
    ) -> Reaction:
        sound = _is_sound(work.frame)
        sent = [rank.act(work)]
        while rank.nack_due and sent[-1] is not None:
            sent.append(rank.on_wr(sent[-1]))
        if rank.streams[0].progress:
            changes |= {"rounds": 0, "stalled": False}
        heard = rank.streams[0].heard
        if heard and not sound:
            wrong = f"rank {rank.config.rank} takes a damaged frame for a sign of life"
            return Reaction(here, wrong=wrong)
        changes["ages"] = tuple(
            0 if heard.get(other) else age for other, age in enumerate(here.ages)
        )
        return Reaction(_freeze(here, rank, process, **changes), self._sent(sent))

    def _hold(self, here: RankState, index: int, frame: int) -> Reaction:
        rank, _ = self._thaw(here, index)
        work = rank.look(_thaw_frame(self.frames[frame]))
        assert work is not None
        held = (
            _freeze_frame(work.frame),
            work.seq,
            work.ready,
            work.index,
            work.length,
            work.reduced,
            work.result,
        )
        return Reaction(here._replace(held=held))

    def _resume(self, here: RankState, index: int) -> Reaction:
        assert here.held is not None
        rank, process = self._thaw(here, index)
        frame, seq, ready, chunk, length, reduced, result = here.held
        work = Work(_thaw_frame(frame), 0, 0, seq, ready, chunk, length, reduced, result)
        return self._act(here, rank, process, work, held=None)

    def _serve(
        self, here: RankState, rank: TinyRank, process: TinyProcess, **changes: Any
    ) -> Reaction:
        """Carry out all work requests; they come through the doorbell, which loses none here."""
        sent = []
        while rank.sq:
            sent.append(rank.on_wr(process.kick()))
        return Reaction(_freeze(here, rank, process, **changes), self._sent(sent))

    def _sent(self, frames: Iterable[Frame | None]) -> tuple[tuple[int, int], ...]:
        return tuple(
            (self.by_ip[frame.destination.ip], self._frame(_freeze_frame(frame)))
            for frame in frames
            if frame is not None
        )

    def _receiver(self, frame: int) -> int:
        return self.by_ip[self.frames[frame][3].ip]

    def _flip(self, frame: int, field: str) -> int:
        header, *rest = self.frames[frame]
        flipped = list(header)
        flipped[_FIELDS.index(field)] ^= FLIPS[field]
        return self._frame((tuple(flipped), *rest))

    def _input(self, turn: int, chunk: int, rank: int) -> int:
        return 1 << 4 * ((turn * self.chunks + chunk) * self.scene.ranks + rank)

    def _thaw(self, s: RankState, index: int) -> tuple[TinyRank, TinyProcess]:
        rank = object.__new__(self.rank_class)
        rank.config = self.configs[index]
        rank.seq, rank.ready, rank.verified = s.seq, s.ready, s.verified
        rank.flushed, rank.lossy, rank.stored = s.flushed, s.lossy, s.stored
        rank.ended = s.ended
        rank.next_seq, rank.next_slot = s.next
        rank.wake_at = rank.nack_holdoff_us = rank.front = 0
        rank.rto_us = rank.late_us = rank.widened_us = rank.answered_us = 0
        rank.tensors = [Tensor(*tensor) for tensor in s.tensors]
        rank.sq, rank.events = _Sq(), []
        rank.inputs, rank.results = list(s.inputs), list(s.results)
        rank.chunks = [Chunk(a, b, c, d, list(e), list(f)) for a, b, c, d, e, f in s.chunks]
        rank.retransmit = [Saved(*kept) for kept in s.retransmit]
        rank.streams = [Stream(*s.stream)]
        rank.nacks = [Nacks(0, _queue(s.fresh), _queue(s.again))]
        rank.ranks = [Peer(*peer) for peer in s.peers]
        rank.early_frames = EarlyFrames()
        for slot, frame in s.early_frames:
            rank.early_frames[slot] = _thaw_frame(frame)
        process = self.process_class(rank, self.scene.window)
        process.total, process.stalls = s.total, PATIENCE if s.stalled else 0
        return rank, process


def _freeze(here: RankState, rank: TinyRank, process: TinyProcess, **changes: Any) -> RankState:
    stream = rank.streams[0]
    frozen = here._replace(
        seq=rank.seq,
        ready=rank.ready,
        next=(rank.next_seq, rank.next_slot),
        flushed=rank.flushed,
        lossy=rank.lossy,
        ended=rank.ended,
        stored=rank.stored,
        verified=rank.verified,
        tensors=tuple(astuple(tensor) for tensor in rank.tensors),
        inputs=tuple(rank.inputs),
        results=tuple(rank.results),
        chunks=tuple(
            (c.input_sum, c.result_sum, c.reduced, c.result, tuple(c.before), tuple(c.lost))
            for c in rank.chunks
        ),
        retransmit=tuple(
            (kept.owner, kept.valid, kept.sum, kept.round, kept.data) for kept in rank.retransmit
        ),
        stream=(stream.seq, stream.prev),
        fresh=_frozen(rank.nacks[0].fresh),
        again=_frozen(rank.nacks[0].again),
        peers=tuple(
            (peer.seq, peer.verified, peer.verified_acked, 0, peer.ended) for peer in rank.ranks
        ),
        early_frames=tuple(
            (slot, _freeze_frame(frame)) for slot, frame in sorted(rank.early_frames.items())
        ),
        stalled=process.stalls > 0,
        total=process.total,
    )
    return frozen._replace(**changes)


class _Sq(list):
    def popleft(self) -> Any:
        return self.pop(0)


def _queue(frozen: tuple[tuple[Nack, ...], tuple[Nack, ...]]) -> NackQueue:
    queue = NackQueue()
    queue.carried.extend(frozen[0])
    queue.waiting.extend(frozen[1])
    return queue


def _frozen(queue: NackQueue) -> tuple[tuple[Nack, ...], tuple[Nack, ...]]:
    return tuple(queue.carried), tuple(queue.waiting)


def _freeze_frame(frame: Frame) -> tuple[Any, ...]:
    return _values(frame.header), frame.payload, frame.source, frame.destination


def _thaw_frame(frozen: tuple[Any, ...]) -> TinyFrame:
    header, payload, source, destination = frozen
    return TinyFrame(Header(*header), payload, source, destination)


def _take(state: State, place: int) -> State:
    """Return the state without the first frame of a link."""
    links = state.links
    return state._replace(links=(*links[:place], links[place][1:], *links[place + 1 :]))


def _delay(state: State, frame: int) -> State:
    """Return the state with one more late frame."""
    return state._replace(late=tuple(sorted((*state.late, frame))))


def _is_sound(frame: Frame) -> bool:
    """Whether the frame is as it was sent."""
    header = frame.header
    total = frame.sum(header.length) if header.kind in (Kind.REDUCE, Kind.RESULT) else 0
    return header.checksum == total + frame_seal(header) & UNSEEN - 1


def _show(frame: tuple[Any, ...]) -> str:
    header = Header(*frame[0])
    kind = Kind(header.kind).name if header.kind in list(Kind) else header.kind
    return (
        f"{kind} {header.seq}/{header.chunk}.{header.round} {header.sender}->{header.receiver}"
        f" flags {header.flags}"
    )
