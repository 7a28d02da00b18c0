"""What a rank of an exchange does while it waits, and which ranks it names in errors: decisions
without I/O or clocks.

The worker's process (``testbed/exchange/pinch/recovery.py``) and the reference model's
(``process.py``) both act on these. A rank looks (`Seen`) whenever its timer expires:

- *Progress.* Something new has arrived since the last look. Then everything below starts over.
- *What to do* (`Policy.act`). Ranks from which something is missing get another handshake, and
  answer it, which also shows that they are up. Ranks that have not acknowledged frames are asked
  about them before anything is retransmitted, because the frames may only be late. Their answers
  have the kernel retransmit what they show to be lost. Frames that two answers in a row have left
  open, because they were sent on another stream than the ask, are retransmitted by the process.
- *Which ranks to name* (`Policy.verdict`), when there has been no progress for the group's timeout.
  A rank that has been heard since the wait began is up, unless it has stopped answering, and its
  handshakes say where it is and for whom it waits. While a rank that is up waits for another, it is
  left to that rank to find out about the other (`Policy.is_sure`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from testbed.protocol.pinch.packet import ACK_BEHIND, frames_in

__all__ = ["TRIES", "Actions", "Policy", "Seen", "Up", "Verdict", "cover"]

TRIES = 20
"""A rank that is up is called silent if this many asks or their answers are lost in a row: at a
loss of 30 % each way, once in a million times."""
_ASKS = 8
"""Frames that a rank is asked about at once."""
_LEFT_OPEN = 2
"""Answers after which frames that are still not acknowledged are retransmitted by the process."""


@dataclass(frozen=True)
class Seen:
    """What a process sees of its current exchange. Sequences have one entry per rank.

    :param partners: Ranks whose handshakes it needs, without itself.
    :param handshakes: Their words of this sequence number; 0: there is none.
    :param received: Frames that have arrived from them.
    :param acked: Frames that they have acknowledged.
    :param heard: Frames of any kind from them since the start; `news`: those that brought something
        new; `answers`: acknowledgements.
    :param at: Sequence numbers that they have entered, by their latest handshakes; `waits`: ranks
        that they waited for.
    :param lacking: By rank: the numbers of frames that were sent to it and are not acknowledged,
        ascending.
    :param met: All partners have entered, and the scale of the payloads fits.
    :param owed: Slices of hubs that remain to be added here.
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
        """Is a partner's handshake, or a frame of it, still missing (``pinch_is_behind``)?"""
        return not self.handshakes[rank] or self.received[rank] < frames_in(self.handshakes[rank])


@dataclass(frozen=True)
class Actions:
    """What to do now.

    :param handshake: Repeat handshakes to ranks from which something is missing: the number of the
        attempt; 0: not necessary.
    :param asks: By rank: the frames to ask about.
    :param resends: By rank: the frames to retransmit.
    :param work: Go on with hubs.
    """

    handshake: int
    asks: dict[int, list[int]]
    resends: dict[int, list[int]]
    work: bool


@dataclass(frozen=True)
class Up:
    """A rank that is up, and from which something is missing.

    :param seq: The sequence number that it entered last.
    :param waits: The ranks that it waits for, by its latest handshake.
    """

    rank: int
    seq: int
    waits: tuple[int, ...]


@dataclass(frozen=True)
class Verdict:
    """Why an exchange makes no progress.

    :param silent: Ranks from which something is missing, and that are no longer heard.
    :param up: Ranks from which something is missing, and that are heard.
    """

    silent: tuple[int, ...]
    up: tuple[Up, ...]


class Policy:
    """How one rank waits for one exchange, from the first look on.

    :param seen: The state at the start.
    :param tries: Unanswered asks after which a rank counts as silent.
    """

    def __init__(self, seen: Seen, tries: int = TRIES) -> None:
        self.tries = tries
        self._begin(seen)

    def _begin(self, seen: Seen) -> None:
        self.news, self.heard, self.attempt = tuple(seen.news), tuple(seen.heard), 0
        #: By rank: `heard` when it was last asked, and the number of asks since it was heard.
        self.asked: dict[int, tuple[int, int]] = {}
        #: By rank: `acked` and `answers` when it was last asked about frames, and answers in a row
        #: that left some open.
        self.open: dict[int, tuple[int, int, int]] = {}

    def look(self, seen: Seen) -> bool:
        """Has there been progress since the last call that returned true?"""
        moved = tuple(seen.news) != self.news
        if moved:
            self._begin(seen)
        return moved

    def act(self, seen: Seen) -> Actions:
        """What to do when there has been no progress for longer than usual."""
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
        """Has a rank answered often enough that it lacks frames, and has none of them arrived
        since?
        """
        acked, answers, times = self.open.get(rank, (seen.acked[rank], seen.answers[rank], 0))
        if acked != seen.acked[rank]:
            times = 0
        elif answers != seen.answers[rank]:
            times += 1
        enough = times >= _LEFT_OPEN
        self.open[rank] = seen.acked[rank], seen.answers[rank], 0 if enough else times
        return enough

    def _absent(self, seen: Seen) -> list[int]:
        """Ranks from which something is missing."""
        absent = [rank for rank in seen.partners if not seen.handshakes[rank]]
        if absent:  # no rank has begun to send
            return absent
        return [rank for rank in seen.partners if seen.is_behind(rank) or seen.lacking(rank)]

    def _silence(self, seen: Seen, rank: int) -> int:
        """Asks since the rank was heard; enough to count as silent if it has not been heard since
        the wait began.
        """
        heard, times = self.asked.get(rank, (seen.heard[rank], 0))
        if seen.heard[rank] == self.heard[rank]:
            return self.tries
        return times if seen.heard[rank] == heard else 0

    @property
    def has_asked(self) -> bool:
        """Has the rank been asked often enough? If not, this rank's own process may have been
        stopped meanwhile.
        """
        return self.attempt >= self.tries

    def is_sure(self, seen: Seen) -> bool:
        """Is it clear which ranks to name?

        It is not while some rank that something is missing from may have died since it was heard
        of. Nor while one that is up waits for another itself: it may find out that the other is
        gone, and tell.
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
        """Return the ranks to name in the error."""
        absent = self._absent(seen)
        silent = tuple(rank for rank in absent if self._silence(seen, rank) >= self.tries)
        ranks = range(len(seen.heard))
        up = [
            Up(
                rank,
                seen.at[rank],
                tuple(other for other in ranks if seen.waits[rank] >> other & 1),
            )
            for rank in absent
            if rank not in silent
        ]
        return Verdict(silent, tuple(up))


def cover(numbers: Sequence[int]) -> list[int]:
    """The frames to ask about so that the acknowledgements cover all given frames, which are
    ascending.
    """
    asked: list[int] = []
    for number in reversed(numbers):
        if not asked or number // 32 < asked[-1] // 32 - ACK_BEHIND:
            asked.append(int(number))
    return asked[:_ASKS]
