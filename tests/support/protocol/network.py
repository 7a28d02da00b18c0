"""A network of ranks in memory: tests deliver, lose, duplicate, reorder and damage the frames in a
list of those in flight.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from testbed.protocol.ring.memory import Config
from testbed.protocol.ring.process import Process
from testbed.protocol.ring.rank import Rank
from testbed.protocol.sequence import seq_after
from testbed.protocol.wire import BLOCK, Endpoint, Frame, Words, weigh

COOKIE = 0x5EED_C0DE_F00D_D00D
GROUP = 3
TICK_US = 10


def endpoints(ranks: int) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(f"02:00:00:00:00:{rank + 1:02x}", f"10.0.0.{rank + 1}") for rank in range(ranks)
    )


def config(
    rank: int,
    ranks: int,
    *,
    chunk_bytes: int = BLOCK,
    chunks: int = 8,
    upstream: bool = True,
    reorder_threshold: int = 1,
    retransmit_slots: int = 4,
) -> Config:
    peers = endpoints(ranks)
    return Config(
        COOKIE,
        rank,
        ranks,
        GROUP,
        chunk_bytes,
        chunks,
        peers,
        upstream,
        reorder_threshold,
        retransmit_slots,
    )


@dataclass(frozen=True)
class Collective:
    """One collective: the words that each rank contributes, ``(ranks, total, words of a chunk)``.

    An all-reduce; a reduce-scatter whose chunks before ``scattered`` are scattered; or an
    all-gather whose chunks from ``gathered`` on are gathered.
    """

    seq: int
    inputs: Words
    scattered: int = 0
    gathered: int = 0
    root: int = 0

    @property
    def total(self) -> int:
        return int(self.inputs.shape[1])

    @property
    def length(self) -> int:
        return 8 * int(self.inputs.shape[2])

    @property
    def sums(self) -> Words:
        found: Words = self.inputs.sum(axis=0, dtype=np.uint64)
        if self.gathered:
            for chunk in range(self.gathered, self.total):
                owner = self.root - 1 if self.root else chunk % len(self.inputs)
                found[chunk] = self.inputs[owner, chunk]
        return found

    def results(self, rank: int) -> list[int]:
        """The chunks whose results a rank gets."""
        ranks = len(self.inputs)
        return [
            chunk
            for chunk in range(self.total)
            if chunk >= self.scattered or (chunk - 1) % ranks == rank
        ]


PHASES = ("all-reduce", "reduce-scatter", "all-gather", "broadcast")


def collectives(
    ranks: int,
    totals: Sequence[int],
    *,
    after: int = 0,
    words: int = 8,
    seed: int = 0,
    phases: Sequence[str] = PHASES[:1],
) -> list[Collective]:
    """A sequence of collectives with random lanes of 32 bits and their checks; a single chunk may
    be shorter than a frame.

    :param phases: Which they are, in turns. In a reduce-scatter and an all-gather, each rank has
        as many of the chunks, and the last or the first one is all-reduced, like the status.
    """
    random = np.random.default_rng(seed)
    made = []
    for number, total in enumerate(totals):
        after, phase = seq_after(after), phases[number % len(phases)]
        blocks = max(1, total // ranks) * ranks
        total = total if phase == "all-reduce" else blocks + 1
        scattered = phase == "reduce-scatter" and blocks
        gathered = phase in ("all-gather", "broadcast")
        root = (number % ranks + 1) * (phase == "broadcast")
        shape = (ranks, total, words if total > 1 else BLOCK // 8)
        halves = random.integers(0, (1 << 32) // ranks, (*shape[:2], 2 * shape[2]), dtype=np.uint32)
        inputs = halves.view(np.uint64)
        for chunk in inputs.reshape(-1, shape[2]):
            chunk[-1] = weigh(chunk[:-1])
        made.append(Collective(after, inputs, int(scattered), int(gathered), root))
    return made


class Member:
    """A rank, its process, and their progress with the collectives that they have to do."""

    def __init__(self, rank: Rank, window: int, todo: Sequence[Collective]) -> None:
        self.rank = rank
        self.process = Process(rank, window)
        self.todo = list(todo)
        self.current: Collective | None = None
        self._progress = 0
        self.verified = True  # results are compared with the sums

    @property
    def finished(self) -> bool:
        return self.current is None and not self.todo

    @property
    def waiting(self) -> bool:
        """Whether it has published what it may but not received all results."""
        if self.current is None or self.process.finished:
            return False
        first = self.current.scattered or self.current.gathered or self.current.total
        return self.rank.ready in (first, self.current.total)

    def _publishable(self, current: Collective) -> int:
        """How many chunks may be published: the first part of a reduce-scatter or an all-gather,
        until that is over.
        """
        if self.rank.ready < current.scattered or self.rank.ready < current.gathered:
            return current.scattered or current.gathered
        if self.rank.ready == current.scattered and not self.process.verify_scattered():
            return current.scattered
        if self.rank.ready == current.gathered and not self.process.met():
            return current.gathered
        return current.total

    def progressed(self) -> bool:
        """Whether something new has arrived since the last call."""
        before, self._progress = (
            self._progress,
            sum(stream.progress for stream in self.rank.streams),
        )
        return self._progress != before

    def step(self, chunks: int = 1) -> None:
        """Let the process do what comes next: enter a collective, publish up to ``chunks`` more, or
        take the results.
        """
        if self.current is None:
            if self.todo:
                self.current = self.todo.pop(0)
                current = self.current
                tag = current.seq & 0xFFFF
                self.process.begin(
                    current.seq,
                    current.total,
                    current.length,
                    tag,
                    current.scattered,
                    current.gathered,
                    current.root,
                )
        elif self.rank.ready < (end := self._publishable(self.current)):
            ready = min(self.rank.ready + chunks, end)
            for chunk in range(self.rank.ready, ready):
                self.process.fill(chunk, self.current.inputs[self.rank.config.rank, chunk])
            self.process.publish(ready)
        elif self.process.finished and self.process.verify():
            chosen = self.current.results(self.rank.config.rank)
            got = np.array(
                [self.rank.results[chunk][: self.current.length // 8] for chunk in chosen]
            )
            if self.verified:
                np.testing.assert_array_equal(got, self.current.sums[chosen])
            self.current = None


class Network:
    """Ranks, and the frames in flight between them."""

    def __init__(
        self,
        ranks: int,
        todo: Sequence[Collective],
        *,
        window: int = 2,
        nack_holdoff_us: int = 0,
        chunk_bytes: int = BLOCK,
        seq: int = 0,
        upstream: bool = True,
        reorder_threshold: int = 1,
        retransmit_slots: int = 4,
    ) -> None:
        capacity = max(collective.total for collective in todo)
        self.members = []
        for rank in range(ranks):
            setting = config(
                rank,
                ranks,
                chunk_bytes=chunk_bytes,
                chunks=capacity,
                upstream=upstream,
                reorder_threshold=reorder_threshold,
                retransmit_slots=retransmit_slots,
            )
            self.members.append(
                Member(Rank(setting, seq=seq, nack_holdoff_us=nack_holdoff_us), window, todo)
            )
        self.in_flight: list[Frame] = []
        self.now_us = 0

    def emit(self, frame: Frame | None) -> None:
        if frame is not None:
            self.in_flight.append(frame)

    def emit_all(self, rank: Rank, frame: Frame | None) -> None:
        """Send a frame, then the nacks that its copies trigger when they come back through the
        doorbell.
        """
        while frame is not None:
            self.emit(frame)
            frame = rank.on_wr(frame, self.now_us) if rank.nack_due else None

    def deliver(self, index: int = 0) -> None:
        self.now_us += TICK_US
        frame = self.in_flight.pop(index)
        to = int(frame.destination.ip.rpartition(".")[2]) - 1
        assert frame.destination == self.members[to].rank.config.peers[to]
        rank = self.members[to].rank
        self.emit_all(rank, rank.on_frame(frame, self.now_us))

    def serve(self, index: int) -> None:
        """A kick of this rank has come back through the doorbell."""
        self.now_us += TICK_US
        member = self.members[index]
        self.emit_all(member.rank, member.rank.on_wr(member.process.kick(), self.now_us))

    @property
    def finished(self) -> bool:
        return all(member.finished for member in self.members)

    def run(
        self,
        rounds: int = 1000,
        timers: bool = True,
        deliver: Callable[[], None] | None = None,
    ) -> None:
        """Deliver frames, and let timers fire only when nothing is in flight, until all ranks are
        done.

        :param deliver: Delivers a frame, or loses it. None: each in its turn.
        """
        deliver = deliver or self.deliver
        for _ in range(rounds):
            if self.finished:
                return
            quiet = not self.in_flight
            for index, member in enumerate(self.members):
                member.step(1 << 30)
                while member.rank.sq:
                    self.serve(index)
            while self.in_flight:
                deliver()
                for member in self.members:
                    member.process.stalls = 0 if member.progressed() else member.process.stalls
            if quiet and timers:
                self.now_us += 100 * TICK_US
                for member in self.waiting():
                    member.process.on_timer(self.now_us)
        missing = [member.process.total - member.rank.stored for member in self.members]
        raise AssertionError(f"not done after {rounds} rounds: {missing} chunks are missing")

    def waiting(self) -> Iterator[Member]:
        return (member for member in self.members if member.waiting)

    def total(self, counter: str) -> int:
        return sum(member.rank.counters[counter] for member in self.members)
