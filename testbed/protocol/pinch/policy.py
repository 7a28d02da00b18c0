"""What a rank of an exchange does while it waits, and which ranks it names in errors. These are
decisions only, without I/O or clocks.

The worker's process (``testbed/exchange/pinch/recovery.py``) and the reference model's
(``process.py``) both act on these. A rank looks (`Seen`) whenever its timer expires:

- *Progress.* Something new has arrived since the last look. Then the steps below start over.
- *What to do* (`Policy.act`). Ranks from which something is missing get another handshake. They
  answer it, which also shows that they are up. Ranks that have not acknowledged frames are asked
  about them before anything is retransmitted, because the frames may only be late. The kernel
  retransmits whatever their answers show to be lost. Frames that two answers in a row have left
  open, because they were sent on another stream than the ask, are retransmitted by the process.
- *Which ranks to name* (`Policy.verdict`), when there has been no progress for the group's timeout.
  A rank that has been heard since the wait began is up, unless it has stopped answering, and its
  handshakes say which exchange it is in and which ranks it waits for. While a rank that is up waits
  for another, it is left to that rank to find out about the other one (`Policy.is_sure`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from testbed.protocol.pinch.packet import ACK_BEHIND, frames_in

__all__ = ["TRIES", "Actions", "Policy", "Seen", "Up", "Verdict", "cover"]

_DOUBT = 1.5
"""Timeouts that a rank waits at most until it knows which ranks to name."""

TRIES = 20
"""Unanswered asks after which a rank counts as silent. With 30 % loss each way, this happens to a
rank that is up once in a million times.
"""
_ASKS = 8
"""Maximum number of frames about which a rank is asked at once."""
_LEFT_OPEN = 2
"""Answers after which the process retransmits the frames that are still not acknowledged."""


@dataclass(frozen=True)
class Seen:
    """What a process sees of its current exchange. Sequences have one entry per rank.

    :param partners: Other ranks whose handshakes it needs.
    :param handshakes: The ranks' words of this sequence number; 0: there is none.
    :param received: Number of frames that have arrived from each rank.
    :param acked: Number of frames that each rank has acknowledged.
    :param heard: Number of frames of any kind from each rank since the start. `news` counts those
        that brought something new, `answers` the acknowledgements.
    :param at: The sequence numbers that the ranks have entered, by their latest handshakes. `waits`
        are the ranks that they waited for then.
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
        """Is a partner's handshake, or one of its frames, still missing (``pinch_is_behind``)?"""
        return not self.handshakes[rank] or self.received[rank] < frames_in(self.handshakes[rank])


@dataclass(frozen=True)
class Actions:
    """What the process should do now.

    :param handshake: Number of the attempt to repeat handshakes to ranks from which something is
        missing; 0: do not repeat them.
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

    :param silent: Ranks from which something is missing and that are no longer heard.
    :param up: Ranks from which something is missing and that are still heard.
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
        #: By rank: `heard` when the rank was last asked, and the number of asks since it was last
        #: heard.
        self.asked: dict[int, tuple[int, int]] = {}
        #: By rank: `acked` and `answers` when the rank was last asked about frames, and the number
        #: of answers in a row that left some frames open.
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
        """Have so many answers of a rank in a row left frames open that the process should
        retransmit them?
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
        """Number of asks since the rank was last heard, or `tries` if it has not been heard since
        the wait began.
        """
        heard, times = self.asked.get(rank, (seen.heard[rank], 0))
        if seen.heard[rank] == self.heard[rank]:
            return self.tries
        return times if seen.heard[rank] == heard else 0

    @property
    def has_asked(self) -> bool:
        """Has this rank asked often enough to give up? If not, its own process may have been
        stopped meanwhile.
        """
        return self.attempt >= self.tries

    def is_over(self, seen: Seen, still: float, timeout: float) -> bool:
        """Is it time to give up, after `still` seconds without progress?"""
        return (
            still > timeout and self.has_asked and (self.is_sure(seen) or still > _DOUBT * timeout)
        )

    def is_sure(self, seen: Seen) -> bool:
        """Is it clear which ranks to name?

        It is not clear while a rank from which something is missing may have died since it was last
        heard. Nor is it clear while a rank that is up waits for another one: it may find out that
        the other is gone, and say so.
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
    """The frames to ask about, so that the acknowledgements cover all given frames. `numbers` must
    be ascending.
    """
    asked: list[int] = []
    for number in reversed(numbers):
        if not asked or number // 32 < asked[-1] // 32 - ACK_BEHIND:
            asked.append(int(number))
    return asked[:_ASKS]
