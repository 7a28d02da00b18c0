"""What a rank does beside waiting: meets the others, finds out who is gone, gives up with a name,
stays while it is needed.

Missing frames are recovered without it: by the programs, and by ``testbed/native/ring_wait.h``
while the process waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from testbed.collectives.ring.port import Peer, RingPort
from testbed.core.errors import CollectiveError
from testbed.protocol.ring.liveness import absent, silent, unacknowledged, unverified
from testbed.protocol.ring.memory import WrKind

__all__ = ["Recovery"]

FIRST = 1
"""The sequence number in which ranks meet."""
NEVER = 0xFFFFFFFF
"""More results than there ever are."""
_LOOKS = 40
"""Probes of every rank within the group's timeout: what has answered none of them is gone, whatever
the loss.
"""
_SILENT = 0.5
"""Part of the timeout for which nothing of a rank has been seen, of those that are called silent.
"""
_MOST_PAUSE = 0.05  # seconds
_PAUSE = 0.005  # seconds between probes, while ranks meet or part
_NAMED = 4
"""Chunks that an error names, for which ranks wait."""
_QUIET = 0.2
"""Seconds for which a rank must not have been heard to be taken for gone, if all that it may need
is an acknowledgement.
"""
_LEAST_LOOKS = 10
"""Times that a rank has looked in vain before a timeout is over."""


class _AwakeClock:
    """Seconds for which this process has been awake to look.

    A process that was stopped for longer than a timeout has seen nothing meanwhile, and must not
    blame the others: between two looks, no more than a part of the timeout counts.
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
    """The patience of one rank of one group.

    :param clock: Seconds; tests bring their own.
    """

    def __init__(self, port: RingPort, clock: Callable[[], float] = time.monotonic) -> None:
        self.port = port
        self._clock = clock
        spec = port.spec
        self._others = [rank for rank in range(spec.size) if rank != spec.rank]
        self._probes = 0

    def wait(self, seq: int, total: int) -> None:
        """Until all results of a collective are stored.

        :raises CollectiveError: Nothing has come for the group's timeout; the text names the ranks
            that are silent.
        """
        port, timeout = self.port, self.port.spec.timeout
        pause = min(timeout / _LOOKS, _MOST_PAUSE)
        clock, begun = _AwakeClock(self._clock, timeout), self._clock()
        progressed = probed = clock.now()
        moved, heard, mismatched = port.moved(), port.heard(), self._mismatched()
        seen = np.full(port.spec.size, progressed)
        while not port.wait(total, pause):
            now, latest = clock.now(), port.heard()
            seen[latest != heard], heard = now, latest
            if moved != (moved := port.moved()):
                progressed = now
            elif now - progressed > timeout:
                where = (
                    f"{int(port.control.stored)} of {total} chunks after"
                    f" {self._clock() - begun:.1f} s"
                )
                quiet = silent(port.spec.rank, (now - seen).tolist(), timeout * _SILENT)
                raise CollectiveError(
                    self._verdict(seq, where, quiet, self._mismatched() > mismatched)
                )
            if now - probed >= timeout / _LOOKS:
                probed = now
                self._probe(self._others)

    def meet(self) -> None:
        """Until every rank of the group has its programs in place. It is the first sequence number,
        with nothing to reduce.

        :raises CollectiveError: Some have not within the group's timeout; the text names them.
        """
        port, spec = self.port, self.port.spec
        clock = _AwakeClock(self._clock, spec.timeout)
        port.begin(FIRST)
        while missing := absent(spec.rank, FIRST, port.peers()):
            if clock.now() > spec.timeout:
                raise CollectiveError(
                    f"rank {spec.rank} ({spec.me.name}): no answer from {self._names(missing)}"
                    f" within {spec.timeout:g} s: every member has to open the group"
                )
            self._probe(missing)
            port.wait(NEVER, _PAUSE)
        port.control.verified = FIRST

    def linger(self, seq: int) -> None:
        """Stay until no rank needs what this one holds of its last collective, and who waits for
        this one knows it is done.

        A rank that needs something may be stopped, or cut off, and come back: it is waited for
        until it has said nothing new of itself for the group's timeout, as it would have given up
        by then. A rank that only waits to be told may have left before it could say so, and soon
        nobody waits for it.

        :param seq: The last collective, which this rank is done with.
        """
        port, spec = self.port, self.port.spec
        # A sum shows that all ranks have met. The first sequence number has none, so others may not
        # have seen this rank.
        upstream = spec.recovery == "upstream" and seq != FIRST
        askers = [(spec.rank + 1) % spec.size] if upstream else self._others
        askees = [(spec.rank - 1) % spec.size] if upstream else self._others
        stay, quiet = _AwakeClock(self._clock, spec.timeout), _AwakeClock(self._clock, _QUIET)
        changed, seen = [0.0] * spec.size, np.zeros(spec.size)
        said, heard = port.peers(), port.heard()
        while True:
            now, now_quiet, peers, latest = stay.now(), quiet.now(), port.peers(), port.heard()
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
            port.wait(NEVER, _PAUSE)

    def _probe(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._probes += 1  # each is an attempt of its own: a fault may go by what a frame says
            self.port.post(WrKind.PROBE, 0, rank, self._probes & 0xFFFF)
        self.port.flush()

    def _mismatched(self) -> int:
        """Frames of other tensors that have come, in all collectives; ranks that wait for each
        other go on sending them.
        """
        return self.port.counters()["bad_tensor"]

    def _verdict(self, seq: int, where: str, quiet: list[int], mismatched: bool) -> str:
        """Why a collective does not go on, as far as this rank can tell.

        :param quiet: Ranks of which nothing has been seen.
        :param mismatched: Frames of other tensors have come meanwhile.
        """
        port, spec = self.port, self.port.spec
        peers = port.peers()
        elsewhere = absent(spec.rank, seq, peers)
        if quiet:
            why = f"{self._names(quiet)} silent for {spec.timeout:g} s"
        elif elsewhere:
            why = (
                f"{self._names(elsewhere)} up, but not in this all-reduce after {spec.timeout:g} s"
            )
        elif mismatched:
            why = f"no progress for {spec.timeout:g} s: the ranks reduce different tensors"
        else:
            why = (
                f"no progress for {spec.timeout:g} s:"
                f" {self._behind(unverified(self._others, seq, peers), peers)}"
            )
        return f"rank {spec.rank} ({spec.me.name}): {why} (all-reduce {seq}: {where})"

    def _behind(self, ranks: Sequence[int], peers: Sequence[Peer]) -> str:
        """What is missing here, and what the ranks wait for that are not done either."""
        by_chunk: dict[int, list[str]] = {}
        for rank in ranks:
            by_chunk.setdefault(peers[rank].front, []).append(self.port.spec.members[rank].name)
        waits = [f"{self._chunk(int(self.port.control.front))} is missing"]
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
