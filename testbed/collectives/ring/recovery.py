"""What a rank does around waiting for results: it connects to the others, detects silent ranks,
names them in errors, and lingers while it is needed.

Missing frames are recovered elsewhere: by the programs and, while the process waits, by
``testbed/native/ring_wait.h``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from testbed.collectives.ring.maps import Peer
from testbed.collectives.ring.port import RingPort
from testbed.core.errors import CollectiveError
from testbed.protocol.ring.liveness import (
    End,
    Reason,
    absent,
    silent,
    to_blame,
    unacknowledged,
    unverified,
)
from testbed.protocol.ring.memory import UNTIMED, WrKind
from testbed.protocol.status import Operation

__all__ = ["Recovery"]

FIRST = 1
"""The sequence number of the barrier when a group opens."""
NEVER = 0xFFFFFFFF
"""More results than there can ever be."""
_LOOKS = 40
"""Number of probes to every rank within the group's timeout. A rank that answers none of them is
gone, whatever the loss rate.
"""
_SILENT = 0.5
"""Part of the timeout after which a rank that has sent nothing is called silent."""
_MOST_PAUSE = 0.05  # seconds
_PAUSE = 0.005  # seconds between probes while ranks connect or close
_NAMED = 4
"""Maximum number of chunks that an error names."""
_QUIET = 0.2
"""Seconds of silence after which a rank that needs at most an acknowledgement is considered gone.
"""
_PARTING = 1.0
"""Maximum seconds for which a rank that has given up stays to say so."""
_LEAST_LOOKS = 10
"""Minimum number of looks without progress before a timeout expires."""


class _AwakeClock:
    """A clock that counts the time in which this process was able to look.

    A process that was stopped for longer than a timeout has seen nothing meanwhile, and must not
    blame the others. So at most a part of the timeout counts between two looks.
    """

    def __init__(self, clock: Callable[[], float], timeout: float) -> None:
        self._clock, self._most = clock, timeout / _LEAST_LOOKS
        self._last, self._now = clock(), 0.0

    def now(self) -> float:
        latest = self._clock()
        self._now += min(latest - self._last, self._most)
        self._last = latest
        return self._now


class Recovery:
    """How one rank of one group waits.

    :param clock: Returns seconds; tests pass their own clock.
    """

    def __init__(self, port: RingPort, clock: Callable[[], float] = time.monotonic) -> None:
        self.port = port
        self._clock = clock
        spec = port.spec
        self._others = [rank for rank in range(spec.size) if rank != spec.rank]
        self._probes = 0
        self._mismatches = self._mismatched()

    def wait(self, seq: int, total: int, operation: Operation = Operation.ALL_REDUCE) -> None:
        """Wait until all results of a collective are stored.

        :param operation: What it is called in errors.
        :raises CollectiveError: Nothing has arrived for the group's timeout, or another rank has
            given up. The text names the ranks that are silent.
        """
        port, timeout = self.port, self.port.spec.timeout
        pause = min(timeout / _LOOKS, _MOST_PAUSE)
        clock, begun = _AwakeClock(self._clock, timeout), self._clock()
        progressed = probed = clock.now()
        moved, heard = port.maps.moved(), port.maps.heard()
        seen, ever = np.full(port.spec.size, progressed), np.zeros(port.spec.size, bool)
        while not port.process.wait(total, pause):
            now, latest = clock.now(), port.maps.heard()
            come = latest != heard
            seen[come], ever, heard = now, ever | come, latest
            where = (
                f"{operation.noun} {seq}: {int(port.maps.control.stored)} of {total} chunks after"
                f" {self._clock() - begun:.1f} s"
            )
            if moved != (moved := port.maps.moved()):
                progressed = now
            if (end := port.maps.ended) is not None:
                up = np.flatnonzero(ever & (now - seen < timeout * _SILENT)).tolist()
                raise self._error(end, self._told(end, up, operation), where)
            if self._mismatched() > self._mismatches:  # it cannot complete, whatever arrives
                end = End(Reason.TENSORS)
                raise self._error(end, self._why(end, operation), where)
            if now - progressed > timeout:
                peers = port.maps.peers()
                quiet = silent(port.spec.rank, (now - seen).tolist(), timeout * _SILENT)
                end = self._verdict(seq, quiet, peers)
                behind = self._behind(unverified(self._others, seq, peers), peers)
                raise self._error(end, self._why(end, operation, behind), where)
            if now - probed >= timeout / _LOOKS:
                probed = now
                self._probe(self._others)

    def meet(self) -> None:
        """Wait until every rank of the group has attached its programs. This is the first sequence
        number, which reduces nothing.

        :raises CollectiveError: Some ranks have not done so within the group's
            ``connect_timeout``; the text names them.
        """
        port, spec = self.port, self.port.spec
        clock = _AwakeClock(self._clock, spec.connect_timeout)
        port.process.begin(FIRST)
        while missing := absent(spec.rank, FIRST, port.maps.peers()):
            if clock.now() > spec.connect_timeout:
                raise CollectiveError(
                    f"rank {spec.rank} ({spec.me.name}): no answer from {self._names(missing)}"
                    f" within {spec.connect_timeout:g} s: every member has to open the group"
                )
            self._probe(missing)
            port.process.wait(NEVER, _PAUSE)
        port.maps.control.verified = FIRST

    def linger(self, seq: int) -> None:
        """Linger until no rank needs data of this rank's last collective, and ranks that wait for
        this one know that it is done.

        A rank that needs something may be stopped or cut off, and come back: this rank waits until
        it has reported nothing new for the group's timeout, because it would have given up by then.
        A rank that only needs to be told may have closed before it could say so, so this rank waits
        only briefly for it.

        :param seq: The last collective, which this rank has finished.
        """
        port, spec = self.port, self.port.spec
        # A sum proves that all ranks have connected. The first sequence number has no sum, so
        # others may not have heard this rank yet.
        upstream = spec.recovery == "upstream" and seq != FIRST
        askers = [(spec.rank + 1) % spec.size] if upstream else self._others
        askees = [(spec.rank - 1) % spec.size] if upstream else self._others
        stay, quiet = _AwakeClock(self._clock, spec.timeout), _AwakeClock(self._clock, _QUIET)
        changed, seen = [0.0] * spec.size, np.zeros(spec.size)
        said, heard = port.maps.peers(), port.maps.heard()
        while True:
            now, now_quiet, peers, latest = (
                stay.now(),
                quiet.now(),
                port.maps.peers(),
                port.maps.heard(),
            )
            for rank in self._others:
                changed[rank] = now if peers[rank] != said[rank] else changed[rank]
            seen[latest != heard] = now_quiet
            said, heard = peers, latest
            needing = [
                rank
                for rank in unverified(askers, seq, peers)
                if now - changed[rank] <= spec.timeout
            ]
            owing = [
                rank
                for rank in unacknowledged(askees, seq, peers)
                if now_quiet - seen[rank] <= _QUIET
            ]
            if not needing and not owing:
                return
            self._probe({*needing, *owing})
            port.process.wait(NEVER, _PAUSE)

    def _error(self, end: End, why: str, where: str) -> CollectiveError:
        """Give up, and say why.

        :param where: Which collective this is, and how far it has come.
        """
        self.give_up(end)
        spec = self.port.spec
        return CollectiveError(f"rank {spec.rank} ({spec.me.name}): {why} ({where})")

    def give_up(self, end: End) -> None:
        """Tell all other ranks that this one gives up: their collectives cannot go on either."""
        self.port.maps.end(end)
        self._probe(self._others)

    def part(self) -> None:
        """Stay after an error until all other ranks know that this one has given up, and why.
        Otherwise they would blame it.

        A rank that is not heard is soon considered gone, and the whole wait takes a moment at most.
        """
        port = self.port
        clock = _AwakeClock(self._clock, _QUIET)
        seen, heard = np.zeros(port.spec.size), port.maps.heard()
        while (now := clock.now()) <= _PARTING:
            peers, latest = port.maps.peers(), port.maps.heard()
            seen[latest != heard], heard = now, latest
            untold = [
                rank
                for rank in self._others
                if not peers[rank].ended and now - seen[rank] <= _QUIET
            ]
            if not untold:
                return
            self._probe(untold)
            port.process.wait(NEVER, _PAUSE)

    def _probe(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            # Each has its own attempt, because a fault rule may match on header fields.
            self._probes += 1
            self.port.process.post(WrKind.PROBE, 0, rank, UNTIMED | self._probes % UNTIMED)
        self.port.process.flush()

    def _mismatched(self) -> int:
        """Number of frames of other tensors that have arrived, in all collectives. Ranks that wait
        for each other keep sending them.
        """
        return self.port.maps.counters()["bad_tensor"]

    def _verdict(self, seq: int, quiet: Sequence[int], peers: Sequence[Peer]) -> End:
        """Why a collective makes no progress, as far as this rank can tell.

        :param quiet: Ranks from which nothing has arrived.
        """
        if quiet:
            return End(Reason.SILENT, tuple(to_blame(quiet, seq, peers)))
        elsewhere = absent(self.port.spec.rank, seq, peers)
        if elsewhere:
            return End(Reason.ABSENT, tuple(elsewhere))
        return End(Reason.STUCK)

    def _why(self, end: End, operation: Operation, behind: str = "") -> str:
        """Describe an end for an error message.

        :param behind: What is missing, if that is all that this rank can tell.
        """
        seconds = f"{self.port.spec.timeout:g} s"
        match end.reason:
            case Reason.SILENT:
                return f"{self._names(end.ranks)} silent for {seconds}"
            case Reason.ABSENT:
                names = self._names(end.ranks)
                return f"{names} up, but not in this {operation.noun} after {seconds}"
            case Reason.TENSORS:
                return "the ranks reduce different tensors"
            case Reason.STUCK:
                return f"no progress for {seconds}" + (f": {behind}" if behind else "")
            case Reason.DAMAGED:
                return f"results are not what their checks say, again and again for {seconds}"

    def _told(self, end: End, up: Sequence[int], operation: Operation) -> str:
        """Describe another rank's end for an error message. That rank may have been cut off itself,
        so ranks that have been heard here are not called silent.

        :param up: Ranks that have been heard lately.
        """
        gone = tuple(rank for rank in end.ranks if rank != self.port.spec.rank and rank not in up)
        if end.reason is not Reason.SILENT:
            why = self._why(end, operation)
        elif gone:
            why = self._why(End(Reason.SILENT, gone), operation)
        else:
            why = f"it has heard nothing from {self._names(end.ranks)}"
        return f"another rank has given up: {why}"

    def _behind(self, ranks: Sequence[int], peers: Sequence[Peer]) -> str:
        """What is missing here, and what the other unfinished ranks are waiting for."""
        by_chunk: dict[int, list[str]] = {}
        for rank in ranks:
            by_chunk.setdefault(peers[rank].front, []).append(self.port.spec.members[rank].name)
        waits = [f"{self._chunk(int(self.port.maps.control.front))} is missing"]
        for chunk, names in sorted(by_chunk.items())[:_NAMED]:
            waits.append(
                f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} up, waiting for"
                f" {self._chunk(chunk)}"
            )
        if len(by_chunk) > _NAMED:
            waits.append(f"and others for {len(by_chunk) - _NAMED} more chunks")
        return "; ".join(waits)

    def _chunk(self, index: int) -> str:
        return f"chunk {index} of {self.port.spec.members[index % self.port.spec.size].name}"

    def _names(self, ranks: Iterable[int]) -> str:
        return ", ".join(
            f"rank {rank} ({self.port.spec.members[rank].name})" for rank in sorted(ranks)
        )
