"""What a rank of an exchange does while it waits, and whom it holds responsible: decisions without I/O or clocks.

The worker's process (``testbed/exchange/pinch/recovery.py``) and the explored one (``pinch_process.py``) both act on these. A
rank looks (`Seen`) whenever its timer has expired:

- *Moved.* Something new has come since it looked last. Everything else here starts anew then.
- *What to do* (`Policy.act`). Ranks that have more to say are asked to say it, which also tells whether they are up. Ranks that
  have not acknowledged something are asked whether it has come, before anything is sent again: late is not lost. Their answer
  has the kernel send again what it shows to be lost. Only what two answers in a row have left open, as it was sent on another
  stream than the question, is sent again from here.
- *Who is to blame* (`Policy.verdict`), when nothing has moved for the group's timeout. Whoever has been heard of since the wait
  began is up, whatever it was that came from it, unless it has stopped to answer; and says where it is and whom it waits for.
  While one that is up waits for somebody else, it is left to that one to find out about the other (`Policy.is_sure`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from testbed.protocol.pinch.packet import ACK_BEHIND, frames_in

__all__ = ["TRIES", "Actions", "Policy", "Seen", "Up", "Verdict", "cover"]

TRIES = 20
"""A rank that is up is called silent when so many questions or their answers are lost in a row: at a loss of 30 % each way,
once in a million times."""
_ASKS = 8
"""Frames that a rank is asked about at a time."""
_LEFT_OPEN = 2
"""Answers to questions about frames, after which those that are still not acknowledged are sent again from here."""


@dataclass(frozen=True)
class Seen:
    """What a process sees of the exchange that it is in. Sequences have an entry a rank.

    :param partners: Ranks that it has to meet, without itself.
    :param handshakes: Their words of this sequence number; 0: there is none.
    :param received: Frames that have come from them.
    :param acked: Frames that they have acknowledged.
    :param heard: Frames of any kind that have come from them since the start; `news`: those that said something new; `answers`:
        acknowledgements.
    :param at: Sequence numbers that they have entered, as they said last, `waits`: and for whom they waited there, a bit each.
    :param lacking: Of a rank the numbers of frames that were sent to it and that it has not acknowledged, ascending.
    :param met: Its programs have found that all partners have entered, and that payloads hold.
    :param owed: Slices of hubs that its own programs have not added yet.
    """

    rank: int
    seq: int
    partners: Sequence[int]
    handshakes: Sequence[int]
    received: Sequence[int]
    acked: Sequence[int]
    heard: Sequence[int]
    news: Sequence[int]
    answers: Sequence[int]
    at: Sequence[int]
    waits: Sequence[int]
    lacking: Callable[[int], Sequence[int]]
    met: bool
    owed: int

    def is_behind(self, rank: int) -> bool:
        """Has a partner more to say: its handshake, or frames (``is_behind``)?"""
        return not self.handshakes[rank] or self.received[rank] < frames_in(self.handshakes[rank])


@dataclass(frozen=True)
class Actions:
    """What to do now.

    :param handshake: Have those that are behind asked, and see who has come: which attempt this is; 0: there is no need.
    :param asks: By rank: the frames to ask about.
    :param resends: By rank: the frames to send again.
    :param work: Go on with hubs.
    """

    handshake: int
    asks: dict[int, list[int]]
    resends: dict[int, list[int]]
    work: bool


@dataclass(frozen=True)
class Up:
    """A rank that something is missing from, though it is up.

    :param seq: The one that it has entered last.
    :param waits: For whom it waits there, as it says.
    """

    rank: int
    seq: int
    waits: tuple[int, ...]


@dataclass(frozen=True)
class Verdict:
    """Why an exchange does not come to its end.

    :param silent: Ranks that something is missing from, and that are not heard of any more.
    :param up: Those that are.
    """

    silent: tuple[int, ...]
    up: tuple[Up, ...]


class Policy:
    """One rank's waiting for one exchange, from the first look on.

    :param seen: What there is to be seen as it begins.
    :param tries: Times that a rank must have been asked in vain since it was heard of last, to count as silent.
    """

    def __init__(self, seen: Seen, tries: int = TRIES) -> None:
        self.tries = tries
        self._begin(seen)

    def _begin(self, seen: Seen) -> None:
        self.news, self.heard, self.attempt = tuple(seen.news), tuple(seen.heard), 0
        #: By rank: what had been heard of it when it was asked last, and how often that was since it was heard of.
        self.asked: dict[int, tuple[int, int]] = {}
        #: By rank: what it had acknowledged and answered when it was asked about frames, and answers that left something open.
        self.open: dict[int, tuple[int, int, int]] = {}

    def look(self, seen: Seen) -> bool:
        """Has anything moved since the last look that found so?"""
        moved = tuple(seen.news) != self.news
        if moved:
            self._begin(seen)
        return moved

    def act(self, seen: Seen) -> Actions:
        """What to do, as nothing has moved for longer than it should take."""
        self.attempt += 1
        asks: dict[int, list[int]] = {}
        resends: dict[int, list[int]] = {}
        for rank in range(len(seen.heard)):
            numbers = seen.lacking(rank) if rank != seen.rank else ()
            if not numbers:
                self.open.pop(rank, None)
            elif self._left_open(seen, rank):
                resends[rank] = list(numbers)
            else:
                asks[rank] = cover(numbers)
        behind = list(filter(seen.is_behind, seen.partners))
        for rank in {*behind, *asks}:
            heard, times = self.asked.get(rank, (seen.heard[rank], 0))
            self.asked[rank] = seen.heard[rank], 1 if heard != seen.heard[rank] else times + 1
        return Actions(self.attempt if behind or not seen.met else 0, asks, resends, seen.owed > 0)

    def _left_open(self, seen: Seen, rank: int) -> bool:
        """Has a rank answered often enough that there are frames that it lacks, of which none has come since?"""
        acked, answers, times = self.open.get(rank, (seen.acked[rank], seen.answers[rank], 0))
        if acked != seen.acked[rank]:
            times = 0
        elif answers != seen.answers[rank]:
            times += 1
        enough = times >= _LEFT_OPEN
        self.open[rank] = seen.acked[rank], seen.answers[rank], 0 if enough else times
        return enough

    def _absent(self, seen: Seen) -> list[int]:
        """Ranks that something is missing from."""
        strangers = [rank for rank in seen.partners if not seen.handshakes[rank]]
        if strangers:  # nobody has begun to send
            return strangers
        return [rank for rank in seen.partners if seen.is_behind(rank) or seen.lacking(rank)]

    def _silence(self, seen: Seen, rank: int) -> int:
        """How often it has been asked since it was heard of; as often as it takes, if it was not since the wait began."""
        heard, times = self.asked.get(rank, (seen.heard[rank], 0))
        if seen.heard[rank] == self.heard[rank]:
            return self.tries
        return times if seen.heard[rank] == heard else 0

    @property
    def has_asked(self) -> bool:
        """Has it been asked often enough what is missing? If not, it may be this rank's process that was stopped meanwhile."""
        return self.attempt >= self.tries

    def is_sure(self, seen: Seen) -> bool:
        """Is it clear who is to blame?

        It is not while some rank that something is missing from may have died since it was heard of. Nor while one that is up
        waits for another itself: it may find out that the other is gone, and tell.
        """
        others = ~(1 << seen.rank)
        for rank in self._absent(seen):
            silence = self._silence(seen, rank)
            if 0 < silence < self.tries:
                return False
            if not silence and seen.waits[rank] & others:
                return False
        return True

    def verdict(self, seen: Seen) -> Verdict:
        """Who is to blame that nothing moves any more."""
        absent = self._absent(seen)
        silent = tuple(rank for rank in absent if self._silence(seen, rank) >= self.tries)
        ranks = range(len(seen.heard))
        up = [
            Up(rank, seen.at[rank], tuple(other for other in ranks if seen.waits[rank] >> other & 1))
            for rank in absent
            if rank not in silent
        ]
        return Verdict(silent, tuple(up))


def cover(numbers: Sequence[int]) -> list[int]:
    """The frames to ask about so that acknowledgements say of all of some, ascending, whether they have come."""
    asked: list[int] = []
    for number in reversed(numbers):
        if not asked or number // 32 < asked[-1] // 32 - ACK_BEHIND:
            asked.append(int(number))
    return asked[:_ASKS]
