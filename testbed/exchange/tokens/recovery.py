"""How a rank of an exchange by tokens waits, and what it does about frames that do not come."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from testbed.core.errors import CollectiveError
from testbed.exchange.pinch.verdict import Words
from testbed.exchange.tokens.port import TokenPort, Waited
from testbed.protocol.pinch.packet import EXPONENT_BITS
from testbed.protocol.pinch.policy import TRIES, Policy, Seen
from testbed.protocol.rto import RetransmissionTimer

__all__ = ["Recovery"]

_MOST_PATIENCE = 0.05  # seconds
_FAREWELL = 10  # round trips without an ask after which no rank lacks a frame of this one
_ASKS = 64  # frames that a rank is asked for at once, at most
_ASKED_BYTES = 1 << 20  # or as many as hold so much


class Recovery:
    """How one rank waits.

    :param timeout: Seconds without progress after which it gives up.

    Frames of other ranks may be late because their processes compute first. So a rank that has not
    begun to send is asked only when the exchange takes longer than usual; one that has begun, as
    soon as nothing new comes from it for a while.
    """

    def __init__(self, port: TokenPort, timeout: float) -> None:
        self.port, self._timeout = port, timeout
        self.timer = RetransmissionTimer(
            ceiling=min(RetransmissionTimer.ceiling, timeout / (2 * TRIES)),
            initial=RetransmissionTimer.floor,
        )
        names = [member.name for member in port.group.members]
        self._words = Words(port.group.rank, names, timeout)
        self._usual = 0.0  # seconds that an exchange takes without asks; 0: not known yet
        self._most = max(1, min(_ASKS, _ASKED_BYTES // port.layout.room))

    def wait(self) -> None:
        """Wait until everything has landed.

        :raises CollectiveError: There was no progress for the timeout, ranks differ, or exchanges
            have ended; the text says why.
        """
        started, asks = time.monotonic(), 0
        waited = self.port.wait(self._while)
        if waited in (Waited.TIME_UP, Waited.DAMAGED):
            waited, asks = self._go_on(started, waited)
        if waited is Waited.OVER:
            raise CollectiveError(self._end())
        if waited is Waited.DIFFER:
            raise CollectiveError(self._differ())
        self.timer.progressed()
        if not asks:
            took = time.monotonic() - started
            self._usual = (3 * self._usual + took) / 4 if self._usual else took

    @property
    def _while(self) -> float:
        """Seconds without news after which frames of a rank that sends are lost."""
        return max(self.timer.timeout, self._usual / 4)

    def _go_on(self, started: float, waited: Waited) -> tuple[Waited, int]:
        """Go on waiting; return also how often ranks have been asked."""
        port, moved, policy, asks = self.port, started, Policy(self.seen()), 0
        patience = started + min(1.25 * self._usual, _MOST_PATIENCE)
        quiet = _Quiet(policy.news)
        while waited in (Waited.TIME_UP, Waited.DAMAGED):
            now, seen = time.monotonic(), self.seen()
            port.control.waits = sum(1 << rank for rank in seen.partners if seen.is_behind(rank))
            due = quiet.look(seen.news)
            if port.control.foreign:
                raise CollectiveError(self._foreign())
            if policy.look(seen):
                moved = now
                self.timer.progressed()
            elif policy.is_over(seen, now - moved, self._timeout):
                verdict = policy.verdict(seen)
                late = [] if verdict.silent else [up.rank for up in verdict.up] or [port.group.rank]
                port.end(verdict.silent, late)
                raise CollectiveError(self._words.gave_up(seen, verdict, 0, now - started))
            else:
                self.timer.expired()
                if now >= patience:
                    policy.act(seen)
            asked = [
                rank
                for rank in seen.partners
                if waited is Waited.DAMAGED
                or (now >= patience and seen.news[rank] == policy.news[rank])
                or (rank in due and seen.received[rank])
            ]
            asks += self._ask(asked, asks + 1)
            waited = port.wait(self._while)
        port.control.waits = 0
        return waited, asks

    def _ask(self, ranks: Collection[int], attempt: int) -> bool:
        """Ask ranks for what is missing; return whether anything is."""
        found = False
        for partner in self.port.layout.partners:
            if partner.rank not in ranks:
                continue
            missing = self.port.missing(partner)
            if len(missing):
                found = True
                self.port.ask(partner.rank, missing[: self._most].tolist(), attempt)
        return found

    def seen(self) -> Seen:
        """The state on which `Policy` bases its decisions."""
        port, seq = self.port, self.port.seq
        peers, size = port.peers.copy(), port.group.size
        parity, zeros = seq & 1, [0] * size
        landed = peers["landed"][:, parity].tolist()
        handshakes, at = list(zeros), peers["at"].tolist()
        for partner in port.layout.partners:
            rank, frames = partner.rank, int(peers["frames"][partner.rank, parity]) or 1
            if landed[rank]:
                at[rank] = seq
            if at[rank] == seq:
                handshakes[rank] = seq << 32 | frames << EXPONENT_BITS
        return Seen(
            rank=port.group.rank,
            seq=seq,
            partners=[partner.rank for partner in port.layout.partners],
            handshakes=handshakes,
            received=landed,
            acked=zeros,
            heard=peers["heard"].tolist(),
            news=peers["news"].tolist(),
            answers=peers["answers"].tolist(),
            at=at,
            waits=peers["waits"].tolist(),
            lacking=lambda rank: (),
            met=True,
            owed=0,
        )

    def _foreign(self) -> str:
        """End exchanges, and return the text of the error if ranks do not understand each other."""
        port, mask = self.port, int(self.port.control.foreign)
        ranks = [rank for rank in range(port.group.size) if mask >> rank & 1]
        port.end([], ranks)
        names = ", ".join(f"rank {rank} ({port.group.members[rank].name})" for rank in ranks)
        return (
            f"exchange: {names} sends rows of another format than this rank expects: ranks differ"
            " in dim, aggregation, dtype, who adds, halo or bound"
        )

    def _differ(self) -> str:
        """End exchanges, and return the text of the error if what a rank sends does not fit."""
        port = self.port
        rank = port.failed
        port.end([], [rank])
        member = port.group.members[rank]
        who = f"exchange: rank {rank} ({member.name}) sends"
        if not port.bytes_from(rank):
            return f"{who} no rows: it has closed the exchange, or ranks differ in halos"
        return f"{who} other rows than this rank expects: ranks differ in halos"

    def linger(self) -> None:
        """Stay until all partners have finished their exchanges, and nothing is asked any more.

        A partner that has entered a later exchange, as this meeting is one, has finished those
        before. One that has been stopped or cut off gives up itself after the timeout.
        """
        port, deadline, attempt = self.port, time.monotonic() + self._timeout, 0
        self.timer.progressed()
        port.send(None)
        while time.monotonic() < deadline and not port.control.gone and not port.control.late:
            parity = port.seq & 1
            come = port.peers["frames"][:, parity]
            absent = [partner for partner in port.layout.partners if not come[partner.rank]]
            if not absent:
                break
            time.sleep(self.timer.timeout)
            attempt += 1
            for partner in absent:
                port.ask(partner.rank, [0], attempt)
        heard, quiet = port.peers["heard"].tolist(), 0
        while quiet < _FAREWELL and time.monotonic() < deadline:
            time.sleep(self.timer.timeout)
            before, heard = heard, port.peers["heard"].tolist()
            quiet = quiet + 1 if heard == before and port.has_carrier else 0

    def _end(self) -> str:
        """The text of the error if other ranks have ended exchanges."""
        port = self.port
        gone, late = (
            [rank for rank in range(port.group.size) if int(mask) >> rank & 1]
            for mask in (port.control.gone, port.control.late)
        )
        port.end(gone, late)  # those who wait for this rank have to know, too
        return self._words.ended(port.seq, gone, late)


class _Quiet:
    """Which ranks nothing new has come from; those from which nothing comes after they have been
    asked are asked half as often each time.
    """

    def __init__(self, news: Sequence[int]) -> None:
        self._news = tuple(news)
        self._still = [0] * len(self._news)

    def look(self, news: Sequence[int]) -> list[int]:
        """Return the ranks to ask now."""
        self._still = [
            still + 1 if now == before else 0
            for still, now, before in zip(self._still, news, self._news, strict=True)
        ]
        self._news = tuple(news)
        return [rank for rank, still in enumerate(self._still) if still.bit_count() == 1]
