"""Ranks of an exchange as a `System` to explore: their programs and processes, the frames between
them, and faults.

A state is a tuple of numbers, which stand for: each rank's state, the frames in flight, those that
are held back, those that a CPU has verified but not yet claimed, and the faults left. What a rank
does depends only on its own state and on the event, so the protocol's core computes each reaction
once (`Ranks.react`), and afterwards it is looked up.

States leave out what no move can observe: clocks and counters; the number of frames heard, except
whether there are new ones; the positions that ranks report, which are only for the texts of errors;
what an exchange that is over has sent. Timers expire when nothing is in flight, because they are
longer than round trips; a timer that expires earlier is a fault. Kicks within a host are carried
out at once, or are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from testbed.protocol.pinch.memory import Config, Hub, Row, Source
from testbed.protocol.pinch.packet import NOBODY, U32, Packet
from testbed.protocol.pinch.policy import Policy, Seen
from testbed.protocol.pinch.process import Process
from testbed.protocol.pinch.rank import Next, Rank
from testbed.protocol.sequence import seq_after
from testbed.protocol.wire import PinchKind
from tests.support.explore import FAULT, System

__all__ = ["FIELDS", "Exchanges", "Parts", "Ranks", "Scene"]

COOKIE, GROUP, TAG = 0x5EED_C0DE, 3, 0x7A6
ROW = 1  # words per vertex
HUB = 1 << 40  # flag of a value: its vertex has two slices of neighbours
CAP = 2  # no move can distinguish numbers of attempts above this
FIELDS = [name for name in Packet._fields if name not in ("version", "body")]


@dataclass(frozen=True)
class Scene:
    """What happens in an exploration.

    :param frames: For each exchange, the number of frames that each rank sends to each other one.
    :param faults: How many faults there may be in total; `kinds`: which ones; `flips`: the fields
        in which bits flip.
    :param holds: For each exchange, whether the scale holds.
    :param nonfinite: A rank with a value beyond the known scale in its last exchange; NOBODY: no
        rank.
    :param partners: Whether only ranks that share frames meet.
    :param seq: The sequence number of the first exchange.
    :param crash: Whether one rank may die.
    :param hubs: Whether each frame has a vertex of many neighbours.
    :param before: The exchange in which the bitmaps' words were last used; None: the one before the
        first.
    :param brisk: Whether ranks have their frames ready as soon as they send a handshake.
    :param slow: Whether frames are filled and published one by one.
    :param only: Kinds of frames that faults apply to.
    """

    frames: Sequence[Sequence[Sequence[int]]]
    faults: int = 0
    kinds: frozenset[str] = frozenset()
    flips: Sequence[str] = ()
    holds: Sequence[bool] = ()
    nonfinite: int = NOBODY
    partners: bool = False
    seq: int = 5
    crash: bool = False
    hubs: bool = False
    before: int | None = None
    brisk: bool = False
    slow: bool = False
    only: frozenset[int] = frozenset(PinchKind)

    @property
    def ranks(self) -> int:
        return len(self.frames[0])

    def value(self, turn: int, sender: int, number: int) -> int:
        """The value in a frame."""
        return (turn + 1) << 16 | (sender + 1) << 8 | number + 1 | HUB * self.hubs

    def to(self, turn: int, sender: int) -> list[int]:
        """The receivers of each of a rank's frames, as bit masks: frame n is for the ranks that get
        more than n frames.
        """
        counts = self.frames[turn][sender]
        return [
            sum(1 << rank for rank in range(self.ranks) if counts[rank] > number)
            for number in range(max(counts))
        ]

    def expected(self, turn: int, rank: int) -> tuple[int, ...]:
        """The values that a rank must have added after an exchange."""
        values = [
            self.value(turn, sender, number)
            for sender in range(self.ranks)
            for number, to in enumerate(self.to(turn, sender))
            if to >> rank & 1
        ]
        return tuple(sorted(values * (2 if self.hubs else 1)))


class Added:
    """The `Sink` of a rank: all values that were added, sorted; those of hubs once per slice."""

    def __init__(self) -> None:
        self.values: tuple[int, ...] = ()

    def take(self, sender: int, body: tuple[int, ...], rows: int) -> Iterable[Row]:
        for place, value in enumerate(body[(rows + 1) // 2 :]):
            if value & HUB:
                yield Row(hub=Hub(place, 2, 0, 0, (value,)), slot=value & U32)
            else:
                self.values = tuple(sorted((*self.values, value)))
                yield Row(edges=1)

    def add_slice(self, hub: Hub, number: int) -> int:
        self.values = tuple(sorted((*self.values, *hub.body)))
        return 1


class Parts(NamedTuple):
    """A rank's state.

    :param phase: ``opened``, ``entered``, ``filling``, ``waiting``, ``lingering``, and in the end
        ``closed``, ``failed`` or ``dead``.
    :param turn: The exchange that the rank is in.
    :param wrong: What is wrong with the rank; empty if nothing is.
    """

    memory: tuple[Any, ...]
    added: tuple[int, ...]
    phase: str
    turn: int
    policy: tuple[Any, ...] | None
    wrong: str = ""


class Outlook(NamedTuple):
    """What a rank's process can do next: take the sums, hear of the end, close, give up."""

    may_finish: bool
    has_ended: bool
    may_close: bool
    may_give_up: bool


GONE = frozenset({"closed", "failed", "dead"})
Make = Callable[[Config, Added], Rank]


class Ranks:
    """What each rank does in each of its states.

    :param make: The programs' class, or a mutant of it; `make_process` and `make_policy` likewise.
    """

    def __init__(
        self,
        scene: Scene,
        make: Make = Rank,
        make_process: type[Process] = Process,
        make_policy: Callable[..., Policy] = Policy,
        linger: bool = True,
    ) -> None:
        self.scene, self.make_policy, self.linger = scene, make_policy, linger
        most = max(
            len(scene.to(turn, sender))
            for turn in range(len(scene.frames))
            for sender in range(scene.ranks)
        )
        self.sinks = [Added() for _ in range(scene.ranks)]
        self.ranks = []
        for rank in range(scene.ranks):
            sources = tuple(Source(1, 0, sender, most) for sender in range(scene.ranks))
            config = Config(
                COOKIE,
                rank,
                scene.ranks,
                GROUP,
                TAG,
                ROW,
                1,
                16,
                1,
                most,
                sources,
                home=(0,) * scene.ranks,
            )
            self.ranks.append(make(config, self.sinks[rank]))
        self.processes = [make_process(rank, every=1) for rank in self.ranks]
        self.parts: list[Parts] = []
        self.packets: list[Packet] = []
        self._numbers: dict[Any, int] = {}
        self._known: dict[tuple[Any, ...], tuple[int, tuple[int, ...]]] = {}
        self._outlooks: dict[tuple[int, int], Outlook] = {}

    def packet(self, packet: Packet) -> int:
        """Return the number of a frame."""
        number = self._numbers.setdefault(packet, len(self.packets))
        if number == len(self.packets):
            self.packets.append(packet)
        return number

    def start(self, index: int) -> int:
        """Return the state of a rank that has just opened its first exchange."""
        scene, rank = self.scene, self.ranks[index]
        rank.__init__(rank.config, rank.sink)  # type: ignore[misc]
        self.sinks[index].values = ()
        rank.window, rank.seq = 8, scene.seq - 1
        if scene.partners:
            rank.partners = sum(
                1 << other
                for other in range(scene.ranks)
                if other == index or self._share(index, other)
            )
        for peer in rank.peers:  # the exchange before is over
            for words in (peer.ours, peer.theirs):
                words[rank.seq & 1] = rank.seq << 32
        before = scene.seq - 1 if scene.before is None else scene.before
        rank.seen = [before << 32] * len(rank.seen)
        self.processes[index].open(scene.seq)
        return self._save(index, "opened", 0, None)

    def _share(self, one: int, other: int) -> bool:
        return any(turn[one][other] or turn[other][one] for turn in self.scene.frames)

    def outlook(self, number: int, index: int) -> Outlook:
        """What the process of a rank in some state can do next."""
        key = number, index
        if key not in self._outlooks:
            parts, rank, process = self.parts[number], self.ranks[index], self.processes[index]
            rank.restore(parts.memory)
            policy = self.policy(index, parts)
            self._outlooks[key] = Outlook(
                process.is_done or (process.is_unfit and not rank.has_ended),
                rank.has_ended,
                process.may_go,
                policy is not None and _is_sure(policy, process.seen()),
            )
        return self._outlooks[key]

    def react(
        self, number: int, index: int, event: str, packet: int = -1, lose_kicks: bool = False
    ) -> tuple[int, tuple[int, ...]]:
        """What a rank in some state does on an event: its state afterwards, and the frames that it
        sends.
        """
        key = number, index, event, packet, lose_kicks
        if key not in self._known:
            self._known[key] = self._react(*key)
        return self._known[key]

    def _react(
        self, number: int, index: int, event: str, packet: int, lose_kicks: bool
    ) -> tuple[int, tuple[int, ...]]:
        parts, rank = self.parts[number], self.ranks[index]
        rank.restore(parts.memory)
        self.sinks[index].values = parts.added
        policy = self.policy(index, parts)
        out: list[Packet] = []
        phase, turn, wrong, kicks = (
            parts.phase,
            parts.turn,
            parts.wrong,
            list[tuple[Next, Packet | None]](),
        )
        if event == "link":
            kicks.append(rank.on_link(self.packets[packet], 1))
        elif event == "claim":
            kicks.append(rank.claim(self.packets[packet], late=False))
        elif event == "timer":
            self._renumber(rank)
            kicks += self._on_timer(index, phase, policy)
        else:
            phase, turn, policy, wrong, kicked = getattr(self, f"_{event}")(index, parts, policy)
            kicks += [] if lose_kicks else [(Next.DOORBELL, kick) for kick in kicked]
        self._ring(rank, kicks, out, lose_kicks)
        return self._save(index, phase, turn, policy, wrong), tuple(map(self.packet, out))

    @staticmethod
    def _ring(
        rank: Rank, todo: list[tuple[Next, Packet | None]], out: list[Packet], lose_kicks: bool
    ) -> None:
        """Carry out the kicks within the host."""
        while todo:
            where, packet = todo.pop(0)
            if packet is None:
                continue
            if where in (Next.LINK, Next.BOTH):
                out.append(packet)
            if where in (Next.DOORBELL, Next.BOTH) and not lose_kicks:
                todo.append(rank.on_doorbell(packet))
            if where is Next.FAN and not lose_kicks:
                todo += [rank.on_doorbell(packet)] * len(rank.config.fan)
            if where is Next.SEND:
                todo += rank.on_send(packet, 1)

    def _renumber(self, rank: Rank) -> None:
        """Renumber what was put on the stream, unless frames in flight may contain such numbers:
        only their order matters.
        """
        if self.scene.kinds & {"hold", "early"}:
            return
        order = sorted(sent.serial for sent in rank.sent.values())
        rank.sent = {
            key: sent._replace(serial=1 + order.index(sent.serial))
            for key, sent in rank.sent.items()
        }
        rank.serials = {rank.cpu: len(order)} if order else {}

    def _on_timer(
        self, index: int, phase: str, policy: Policy | None
    ) -> list[tuple[Next, Packet | None]]:
        process = self.processes[index]
        if phase == "lingering":
            return [(Next.DOORBELL, process.handshake_kick(1))]
        assert policy is not None
        seen = process.seen()
        policy.look(seen)
        kicked = process.act(policy.act(seen))
        policy.attempt = min(policy.attempt, CAP)
        policy.asked = {
            rank: (heard, min(times, policy.tries)) for rank, (heard, times) in policy.asked.items()
        }
        return [(Next.DOORBELL, kick) for kick in kicked]

    # Moves of a process. Each returns the phase, the turn, the policy, what is wrong, and kicks.

    def _enter(self, index: int, parts: Parts, policy: Policy | None) -> tuple[Any, ...]:
        scene, process, turn = self.scene, self.processes[index], parts.turn
        bodies = [
            (0, scene.value(turn, index, number)) for number in range(len(scene.to(turn, index)))
        ]
        process.address(list(zip(scene.to(turn, index), bodies, strict=True)))
        holds = not scene.holds or scene.holds[turn]
        kicked = [process.enter(3, 0 if holds else 4, 9)]
        if not scene.brisk:
            return "entered", turn, None, "", kicked
        phase, turn, policy, wrong, more = self._send(index, parts, policy)
        return phase, turn, policy, wrong, kicked + more

    def _send(self, index: int, parts: Parts, policy: Policy | None) -> tuple[Any, ...]:
        process = self.processes[index]
        if self.scene.nonfinite == index and parts.turn == len(self.scene.frames) - 1:
            return "lingering", parts.turn, None, "", [process.end(nonfinite=1 << index)]
        kicked = process.send(1 if self.scene.slow else None)
        return self._sent(index, parts.turn, kicked)

    def _fill(self, index: int, parts: Parts, policy: Policy | None) -> tuple[Any, ...]:
        kicked = self.processes[index].publish(self.ranks[index].ready + 1)
        return self._sent(index, parts.turn, kicked)

    def _sent(self, index: int, turn: int, kicked: list[Packet]) -> tuple[Any, ...]:
        rank, process = self.ranks[index], self.processes[index]
        if rank.ready < len(rank.frames):
            return "filling", turn, None, "", kicked
        return "waiting", turn, self.make_policy(process.seen(), CAP), "", kicked

    def _finish(self, index: int, parts: Parts, policy: Policy | None) -> tuple[Any, ...]:
        """Take the sums, and open what comes next: another exchange, or the last one, in which all
        ranks linger.
        """
        process, sink, turn = self.processes[index], self.sinks[index], parts.turn
        rank, wrong = self.ranks[index], ""
        expected = () if process.is_unfit else self.scene.expected(turn, index)
        if sink.values != expected:
            wrong = (
                f"rank {index} has {[hex(value) for value in sink.values]}, not"
                f" {[hex(value) for value in expected]}"
            )
        sink.values = ()
        rank.sent, rank.serials, rank.hubs, rank.hub_queue = (
            {},
            {},
            {},
            {},
        )  # none of it is read any more
        process.open(seq_after(rank.seq))
        if turn + 1 < len(self.scene.frames):
            return "opened", turn + 1, None, wrong, []
        if not self.linger:
            return "closed", turn, None, wrong, []
        process.address([])
        return "lingering", turn, None, wrong, [process.linger()]

    def _fail(self, index: int, parts: Parts, policy: Policy | None) -> tuple[Any, ...]:
        """Another rank has said that exchanges have ended: a rank with nonfinite values lingers
        until all ranks know.
        """
        rank = self.ranks[index]
        return ("lingering" if rank.nonfinite else "failed"), parts.turn, None, parts.wrong, []

    def _give_up(self, index: int, parts: Parts, policy: Policy | None) -> tuple[Any, ...]:
        """Time is up: name who is to blame, and tell the others."""
        process = self.processes[index]
        assert policy is not None
        verdict = policy.verdict(process.seen())
        gone = sum(1 << rank for rank in verdict.silent)
        late = 0 if gone else sum(1 << up.rank for up in verdict.up) or 1 << index
        wrong = "" if verdict.silent or verdict.up else f"rank {index} names nobody"
        return "failed", parts.turn, None, wrong, [process.end(gone=gone, late=late)]

    def _close(self, index: int, parts: Parts, policy: Policy | None) -> tuple[Any, ...]:
        return "closed", parts.turn, None, parts.wrong, []

    def _crash(self, index: int, parts: Parts, policy: Policy | None) -> tuple[Any, ...]:
        return "dead", parts.turn, None, "", []

    # States of ranks as numbers.

    def policy(self, index: int, parts: Parts) -> Policy | None:
        if parts.policy is None:
            return None
        policy = self.make_policy(self.processes[index].seen(), CAP)
        policy.news, policy.heard, policy.attempt, asked, left_open = parts.policy
        policy.asked, policy.open = dict(asked), dict(left_open)
        return policy

    def _save(
        self, index: int, phase: str, turn: int, policy: Policy | None, wrong: str = ""
    ) -> int:
        rank = self.ranks[index]
        rank.events.clear()
        if phase in GONE:  # nothing else about it matters than what it has said about others
            parts = Parts((rank.gone, rank.late, rank.nonfinite), (), phase, turn, None, wrong)
        else:
            self._forget_counts(rank, policy)
            plain = policy and (
                policy.news,
                policy.heard,
                policy.attempt,
                *map(_items, (policy.asked, policy.open)),
            )
            parts = Parts(rank.snapshot(), self.sinks[index].values, phase, turn, plain, wrong)
        key = index, parts
        number = self._numbers.setdefault(key, len(self.parts))
        if number == len(self.parts):
            self.parts.append(parts)
        return number

    def _forget_counts(self, rank: Rank, policy: Policy | None) -> None:
        """Reduce counts of frames heard to what the policy compares with what it has noted."""
        for peer in rank.peers:
            peer.at = peer.waits = 0
        rank.end_acked = rank.end_acked if rank.has_ended else 0
        rank.fanned = {}
        for flow in rank.flows:
            flow.sq_head = 0
        rank.sent = {
            key: sent._replace(attempt=min(sent.attempt, CAP)) for key, sent in rank.sent.items()
        }
        if policy is None:
            for peer in rank.peers:
                peer.heard = peer.news = peer.answers = 0
            return
        for index, peer in enumerate(rank.peers):
            heard, times = policy.asked.get(index, (policy.heard[index], 0))
            steps = sorted({policy.heard[index], heard, peer.heard})
            policy.heard = _with(policy.heard, index, steps.index(policy.heard[index]))
            if index in policy.asked:
                policy.asked[index] = steps.index(heard), times
            peer.heard = steps.index(peer.heard)
            new = peer.news != policy.news[index]
            policy.news, peer.news = _with(policy.news, index, 0), int(new)
            if index in policy.open:
                acked, answers, left = policy.open[index]
                policy.open[index], peer.answers = (acked, 0, left), int(peer.answers != answers)
            else:
                peer.answers = 0


def _items(found: dict[Any, Any]) -> tuple[Any, ...]:
    return tuple(sorted(found.items()))


def _with(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return *values[:place], value, *values[place + 1 :]


class State(NamedTuple):
    """Numbers of the ranks' states; of the frames in flight, held back, and verified by a CPU;
    faults left.
    """

    ranks: tuple[int, ...]
    in_flight: tuple[int, ...]
    held: tuple[int, ...]
    verified: tuple[tuple[int, int], ...]
    faults: int


@dataclass
class Exchanges(System[State]):
    """All ranks, and the frames between them. See `Scene`."""

    ranks: Ranks
    scene: Scene = field(init=False)
    _over: dict[tuple[int, int], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scene = self.ranks.scene

    def starts(self) -> Iterable[State]:
        yield State(
            tuple(map(self.ranks.start, range(self.scene.ranks))), (), (), (), self.scene.faults
        )

    def is_end(self, state: State) -> bool:
        return all(self.ranks.parts[number].phase in GONE for number in state.ranks)

    def check(self, state: State) -> str | None:
        parts = [self.ranks.parts[number] for number in state.ranks]
        left = sum(1 << rank for rank, each in enumerate(parts) if each.phase in ("dead", "failed"))
        for rank, each in enumerate(parts):
            if each.wrong:
                return each.wrong
            if each.phase == "failed":
                gone, _, nonfinite = each.memory
                if gone & ~left:
                    return f"rank {rank} says that {gone:b} have gone, while {left:b} have"
                if nonfinite & ~(
                    1 << self.scene.nonfinite if self.scene.nonfinite != NOBODY else 0
                ):
                    return f"rank {rank} says that {nonfinite:b} have nonfinite values"
        return None

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        """See `System.moves`. The resulting states omit frames that can have no effect any more."""
        for name, after in self._moves(state):
            yield name, self._settle(after)

    def _settle(self, state: State) -> State:
        in_flight, held = (
            tuple(number for number in frames if not self._is_over(number, state.ranks))
            for frames in (state.in_flight, state.held)
        )
        verified = tuple(
            each
            for each in state.verified
            if self.ranks.parts[state.ranks[each[0]]].phase not in GONE
        )
        return State(state.ranks, in_flight, held, verified, state.faults)

    def _is_over(self, number: int, ranks: tuple[int, ...]) -> bool:
        """Whether a frame has no effect any more: its receiver has left, or has gone past the
        exchange that it belongs to.
        """
        to = self.ranks.packets[number].destination
        if not 0 <= to < len(ranks):
            return True
        key = number, ranks[to]
        if key not in self._over:
            packet, there = self.ranks.packets[number], self.ranks.parts[ranks[to]]
            self._over[key] = there.phase in GONE or self._is_past(packet, there.memory[0][0])
        return self._over[key]

    def _is_past(self, packet: Packet, seq: int) -> bool:
        if packet.kind in (PinchKind.EMBED, PinchKind.ASK):
            return packet.seq + 1 < seq
        if (
            self.scene.flips or self.scene.crash
        ):  # a frame may be damaged, or tell only that its sender is alive
            return False
        return packet.seq < seq and not packet.flags

    def _moves(self, state: State) -> Iterator[tuple[str, State]]:
        parts = [self.ranks.parts[number] for number in state.ranks]
        for place, number in enumerate(state.in_flight):
            if place and number == state.in_flight[place - 1]:
                continue
            yield from self._frame(state, place, number, parts)
        for place, number in enumerate(state.held):
            without = state._replace(held=_without(state.held, place))
            yield from self._deliver(without, f"late {self.say(number)}", number, parts)
        for place, (rank, number) in enumerate(state.verified):
            without = state._replace(verified=_without(state.verified, place))
            yield self._do(without, f"rank {rank} claims {self.say(number)}", rank, "claim", number)
        for rank, each in enumerate(parts):
            yield from self._process(state, rank, each, parts)

    def say(self, number: int) -> str:
        """A frame in words."""
        packet = self.ranks.packets[number]
        kind = (
            PinchKind(packet.kind).name.lower()
            if packet.kind in set(PinchKind)
            else str(packet.kind)
        )
        asks = f" asks({packet.attempt})" if packet.flags else ""
        return f"{kind} {packet.number} of {packet.seq}: {packet.sender} to {packet.receiver}{asks}"

    def _do(
        self, state: State, name: str, rank: int, event: str, packet: int = -1, lose: bool = False
    ) -> tuple[str, State]:
        number, sent = self.ranks.react(state.ranks[rank], rank, event, packet, lose)
        in_flight = tuple(sorted((*state.in_flight, *sent))) if sent else state.in_flight
        return name, state._replace(ranks=_with(state.ranks, rank, number), in_flight=in_flight)

    def _deliver(
        self, state: State, name: str, number: int, parts: list[Parts]
    ) -> Iterator[tuple[str, State]]:
        to = self.ranks.packets[number].destination
        if not 0 <= to < len(parts) or parts[to].phase in GONE:
            yield name, state
        else:
            yield self._do(state, name, to, "link", number)

    def _frame(
        self, state: State, place: int, number: int, parts: list[Parts]
    ) -> Iterator[tuple[str, State]]:
        """Everything that can happen to a frame."""
        gone = state._replace(in_flight=_without(state.in_flight, place))
        yield from self._deliver(gone, self.say(number), number, parts)
        packet = self.ranks.packets[number]
        if not state.faults or packet.kind not in self.scene.only:
            return
        faulty, say = gone._replace(faults=state.faults - 1), self.say(number)
        alive = parts[packet.destination].phase not in GONE
        kinds = self.scene.kinds
        if "lose" in kinds:
            yield f"{FAULT}lose {say}", faulty
        if "duplicate" in kinds:
            yield (
                f"{FAULT}duplicate {say}",
                faulty._replace(in_flight=tuple(sorted((*state.in_flight, number)))),
            )
        if "hold" in kinds:
            yield (
                f"{FAULT}hold back {say}",
                faulty._replace(held=tuple(sorted((*state.held, number)))),
            )
        if "kick" in kinds and alive:
            yield self._do(
                faulty,
                f"{FAULT}{say}, and its kick is lost",
                packet.destination,
                "link",
                number,
                True,
            )
        if "stall" in kinds and alive and packet.kind == PinchKind.EMBED:
            yield from self._stall(faulty, packet, number, parts)
        if "flood" in kinds:
            for rank, each in enumerate(parts):
                if rank not in (packet.destination, packet.sender) and each.phase not in GONE:
                    flooded = faulty._replace(in_flight=state.in_flight)
                    yield self._do(
                        flooded, f"{FAULT}{say} comes to {rank} as well", rank, "link", number
                    )
        for name in self.scene.flips:
            damaged = self.ranks.packet(packet._replace(**{name: getattr(packet, name) ^ 1}))
            yield from self._deliver(faulty, f"{FAULT}flip {name} of {say}", damaged, parts)
        if "rename" in kinds:
            other = packet.sender ^ 1
            damaged = self.ranks.packet(packet._replace(sender=other, source=other))
            yield from self._deliver(faulty, f"{FAULT}rename the sender of {say}", damaged, parts)
        if "damage" in kinds and packet.body:
            place = max(packet.length // 8 - 1, 0)
            damaged = self.ranks.packet(
                packet._replace(body=_with(packet.body, place, packet.body[place] ^ 1))
            )
            yield from self._deliver(faulty, f"{FAULT}damage {say}", damaged, parts)

    def _stall(
        self, state: State, packet: Packet, number: int, parts: list[Parts]
    ) -> Iterator[tuple[str, State]]:
        """A CPU verifies the frame, and is then held up."""
        rank = self.ranks.ranks[packet.destination]
        rank.restore(parts[packet.destination].memory)
        if rank.is_for_me(packet) and rank.verify(packet) and not rank.is_late(packet.seq):
            verified = tuple(sorted((*state.verified, (packet.destination, number))))
            yield (
                f"{FAULT}rank {packet.destination} verifies {self.say(number)}",
                state._replace(verified=verified),
            )

    def _process(
        self, state: State, rank: int, each: Parts, parts: list[Parts]
    ) -> Iterator[tuple[str, State]]:
        """What a rank's process can do."""
        if each.phase in GONE:
            return
        dead = any(other.phase == "dead" for other in parts)
        if self.scene.crash and not dead:
            yield self._do(state, f"rank {rank} dies", rank, "crash")
        if each.phase in ("opened", "entered", "filling"):
            event = {"opened": "enter", "entered": "send", "filling": "fill"}[each.phase]
            yield self._do(state, f"rank {rank}: {event}", rank, event)
            if state.faults and "kick" in self.scene.kinds:
                lost = state._replace(faults=state.faults - 1)
                yield self._do(
                    lost,
                    f"{FAULT}rank {rank}: {event}, and its kicks are lost",
                    rank,
                    event,
                    lose=True,
                )
            return
        outlook = self.ranks.outlook(state.ranks[rank], rank)
        quiet = not state.in_flight
        if each.phase == "waiting":
            if outlook.may_finish:
                yield self._do(state, f"rank {rank} is done", rank, "finish")
                return
            if outlook.has_ended:
                yield self._do(state, f"rank {rank} hears of the end", rank, "fail")
                return
        elif outlook.may_close:
            yield self._do(state, f"rank {rank} closes", rank, "close")
            return
        elif quiet and all(other.phase in GONE or other.phase == "lingering" for other in parts):
            yield self._do(state, f"rank {rank} closes, having lingered", rank, "close")
        if dead and quiet and each.phase == "waiting" and outlook.may_give_up:
            yield self._do(state, f"rank {rank}: time is up", rank, "give_up")
        elif quiet:
            yield self._do(state, f"rank {rank}: timer", rank, "timer")
        elif state.faults and "early" in self.scene.kinds:
            early = state._replace(faults=state.faults - 1)
            yield self._do(early, f"{FAULT}rank {rank}: timer, early", rank, "timer")


def _is_sure(policy: Policy, seen: Seen) -> bool:
    """The timeout is long enough for every rank that can answer."""
    return not policy.look(seen) and policy.has_asked and policy.is_sure(seen)


def _without(numbers: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return numbers[:place] + numbers[place + 1 :]
