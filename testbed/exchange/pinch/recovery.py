"""What a rank does while an exchange is not complete. `Policy` decides what to do and which ranks
to name; this module has the clocks and the texts.
"""

from __future__ import annotations

import time

from testbed.core.errors import CollectiveError
from testbed.exchange.pinch.fixed_point import LEAST_EXPONENT
from testbed.exchange.pinch.port import PinchPort
from testbed.exchange.pinch.process import Waited
from testbed.exchange.pinch.verdict import Words
from testbed.protocol.pinch.policy import TRIES, Policy
from testbed.protocol.rto import RetransmissionTimer

__all__ = ["Recovery"]

_MOST_PATIENCE = 0.05  # seconds
_TELL = 1.0  # seconds for which a rank tells others that exchanges have ended
_FAREWELL = 10  # round trips without an ask after which no rank lacks this one's last handshake


class Recovery:
    """How one rank waits.

    :param timeout: Seconds without progress after which it gives up.

    The kernels of other ranks acknowledge frames at once, so a round-trip timer (RFC 6298)
    determines when to ask about frames that this rank has sent. Frames of other ranks may take
    longer, because their processes compute first, so a rank asks for these only when an exchange
    takes longer than usual.
    """

    def __init__(self, port: PinchPort, timeout: float) -> None:
        self.port, self._timeout = port, timeout
        self.timer = RetransmissionTimer(
            ceiling=min(RetransmissionTimer.ceiling, timeout / (2 * TRIES))
        )
        self._words = Words(
            port.group.rank, [member.name for member in port.group.members], timeout
        )
        self._usual = 0.0  # seconds that an exchange takes; 0: not known yet
        self._samples = self._rtt_sum = 0

    @property
    def _patience(self) -> float:
        return max(
            self.timer.timeout,
            min(2 * self._usual, _MOST_PATIENCE) if self._usual else _MOST_PATIENCE,
        )

    def wait(self) -> bool:
        """Wait until everything has arrived and is acknowledged (True), or the scale does not fit
        (False).

        :raises CollectiveError: There was no progress for the timeout, or exchanges have
            ended; the text says why.
        """
        started, policy = time.monotonic(), Policy(self.port.seen())
        waited = self.port.process.wait(
            max(self.timer.timeout, min(1.25 * self._usual, _MOST_PATIENCE))
        )
        if waited is Waited.TIME_UP:
            waited = self._go_on(started, policy)
        if waited is Waited.ENDED:
            raise CollectiveError(self._end())
        self._measure()
        took = time.monotonic() - started
        self._usual = (3 * self._usual + took) / 4 if self._usual else took
        return waited is Waited.COMPLETE

    def _go_on(self, started: float, policy: Policy) -> Waited:
        """Wait for longer than a round trip."""
        port, moved, waited = self.port, started, Waited.TIME_UP
        while waited is Waited.TIME_UP:
            now, seen = time.monotonic(), port.seen()
            self._measure()
            if policy.look(seen):
                moved = now
                self.timer.progressed()
            elif policy.is_over(seen, now - moved, self._timeout):
                verdict = policy.verdict(seen)
                late = [] if verdict.silent else [up.rank for up in verdict.up] or [port.group.rank]
                port.handshakes.end(gone=verdict.silent, late=late)
                raise CollectiveError(
                    self._words.gave_up(seen, verdict, port.sending.copies, now - started)
                )
            elif port.sending.in_flight or now - moved >= self._patience:
                self.timer.expired()
                port.act(policy.act(seen))
            left = 0.0 if port.sending.in_flight else self._patience - (now - moved)
            waited = port.process.wait(max(self.timer.timeout, left))
        return waited

    def linger(self) -> None:
        """Linger until all ranks have finished their exchanges, or know that exchanges have ended.

        Until then, one of them may lack this rank's last handshake or acknowledgement, and ask for
        it. It may have been stopped or cut off. If it has not come back by the timeout, it gives up
        itself.
        """
        port, attempt, timeout = self.port, 0, self._timeout
        deadline = time.monotonic() + (
            min(_TELL, timeout) if any(port.handshakes.ended) else timeout
        )
        self.timer.progressed()
        if not any(port.handshakes.ended):
            port.maps.control.partners = (1 << port.group.size) - 1
            port.handshakes.enter(LEAST_EXPONENT, range(0))  # nothing is exchanged in it
        # With a known scale, ranks enter the next exchange as soon as one is over. So once all have
        # met in it, none of them waits for anything either.
        while not (port.handshakes.may_go or port.seen().met) and time.monotonic() < deadline:
            if any(port.handshakes.ended):
                time.sleep(self.timer.timeout)  # no event wakes this rank
            elif port.process.wait(self.timer.timeout) is Waited.UNFIT:
                break
            attempt += 1
            port.kicks.send_handshakes(attempt)
        if not any(port.handshakes.ended):
            self._fall_silent(deadline)

    def _fall_silent(self, deadline: float) -> None:
        """Stay until no rank has asked anything for some round trips. Meanwhile the programs
        answer.

        A rank that lacks this one's last handshake asks for it once per round trip. Without an
        answer, it would linger until its timeout.
        """
        heard, quiet = self.port.seen().heard, 0
        while quiet < _FAREWELL and time.monotonic() < deadline:
            time.sleep(self.timer.timeout)  # no event wakes this rank
            before, heard = heard, self.port.seen().heard
            quiet = quiet + 1 if heard == before else 0

    def _measure(self) -> None:
        """Read the round trips that the programs have measured."""
        control = self.port.maps.control
        samples, total = int(control.rtt_samples), int(control.rtt_sum_us)
        if samples != self._samples:
            mean = (total - self._rtt_sum) / (samples - self._samples) * 1e-6
            self.timer.sample(mean, max(0.0, control.rtt_max_us * 1e-6 - mean))
            control.rtt_max_us = 0
            self._samples, self._rtt_sum = samples, total

    def _end(self) -> str:
        """The text of the error if other ranks have ended exchanges."""
        port, (nonfinite, gone, late) = self.port, self.port.handshakes.ended
        if not nonfinite:
            return self._words.ended(port.process.seq, gone, late)
        ranks = ", ".join(f"rank {rank} ({port.group.members[rank].name})" for rank in nonfinite)
        larger = "" if port.spec.exponent is None else f", or of 2**{port.spec.exponent} or more"
        return f"exchange: {ranks} has embeddings that are not finite{larger}"
