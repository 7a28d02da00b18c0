"""How a rank of an exchange by tokens waits, and what it does about frames that do not come."""

from __future__ import annotations

import time

from testbed.core.errors import CollectiveError
from testbed.exchange.pinch.verdict import Words
from testbed.exchange.tokens.port import TokenPort, Waited
from testbed.protocol.pinch.packet import EXPONENT_BITS
from testbed.protocol.pinch.policy import TRIES, Policy, Seen
from testbed.protocol.rto import RetransmissionTimer

__all__ = ["Recovery"]

_MOST_PATIENCE = 0.05  # seconds
_FAREWELL = 10  # round trips without an ask after which no rank lacks a frame of this one
_ASKS = 16  # frames that a rank is asked for at once


class Recovery:
    """How one rank waits.

    :param timeout: Seconds without progress after which it gives up.

    Frames of other ranks may be late because their processes compute first, so a rank asks for them
    only when an exchange takes longer than usual.
    """

    def __init__(self, port: TokenPort, timeout: float) -> None:
        self.port, self._timeout = port, timeout
        self.timer = RetransmissionTimer(
            ceiling=min(RetransmissionTimer.ceiling, timeout / (2 * TRIES))
        )
        names = [member.name for member in port.group.members]
        self._words = Words(port.group.rank, names, timeout)
        self._usual = 0.0  # seconds that an exchange takes; 0: not known yet

    def wait(self) -> None:
        """Wait until everything has landed.

        :raises CollectiveError: There was no progress for the timeout, ranks differ, or exchanges
            have ended; the text says why.
        """
        started = time.monotonic()
        waited = self.port.wait(max(self.timer.timeout, min(1.25 * self._usual, _MOST_PATIENCE)))
        if waited in (Waited.TIME_UP, Waited.DAMAGED):
            waited = self._go_on(started, waited)
        if waited is Waited.OVER:
            raise CollectiveError(self._end())
        if waited is Waited.DIFFER:
            member = self.port.group.members[self.port.failed]
            raise CollectiveError(
                f"exchange: rank {member.rank} ({member.name}) sends other rows than this rank"
                " expects: ranks differ in halos"
            )
        took = time.monotonic() - started
        self._usual = (3 * self._usual + took) / 4 if self._usual else took

    def _go_on(self, started: float, waited: Waited) -> Waited:
        port, moved, policy, asks = self.port, started, Policy(self.seen()), 0
        while waited in (Waited.TIME_UP, Waited.DAMAGED):
            now, seen = time.monotonic(), self.seen()
            port.control.waits = sum(1 << rank for rank in seen.partners if seen.is_behind(rank))
            if policy.look(seen) and waited is Waited.TIME_UP:
                moved = now
                self.timer.progressed()
            elif policy.is_over(seen, now - moved, self._timeout):
                verdict = policy.verdict(seen)
                late = [] if verdict.silent else [up.rank for up in verdict.up] or [port.group.rank]
                port.end(verdict.silent, late)
                raise CollectiveError(self._words.gave_up(seen, verdict, 0, now - started))
            else:
                self.timer.expired()
                policy.act(seen)
                asks += 1
                self._ask(asks)
            waited = port.wait(self.timer.timeout)
        port.control.waits = 0
        return waited

    def _ask(self, attempt: int) -> None:
        """Ask each rank for what is missing."""
        for partner in self.port.layout.partners:
            missing = self.port.missing(partner)
            if len(missing):
                self.port.ask(partner.rank, missing[:_ASKS].tolist(), attempt)

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
            quiet = quiet + 1 if heard == before else 0

    def _end(self) -> str:
        """The text of the error if other ranks have ended exchanges."""
        port = self.port
        gone, late = (
            [rank for rank in range(port.group.size) if int(mask) >> rank & 1]
            for mask in (port.control.gone, port.control.late)
        )
        port.end(gone, late)  # those who wait for this rank have to know, too
        return self._words.ended(port.seq, gone, late)
