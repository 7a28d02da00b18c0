"""What a rank does when results stay away: ask again, find out who is silent, and give up with a name."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from testbed.collectives.ring_maps import Order
from testbed.collectives.ring_port import RingPort
from testbed.errors import CollectiveError
from testbed.protocol.generation import is_before
from testbed.protocol.recovery import Plea, missing, plead, slots_of
from testbed.protocol.rto import RetransmissionTimer

__all__ = ["Recovery"]

_QUENCH = 0.5e-3
_LEAST_QUENCH = 0.2e-3
"""Seconds: bounds of how long a request keeps others for the same chunk from counting, which is two round trips.

A loss is mended in about the upper one: with 2 ms, 1 % of loss cost a third of the goodput at 16 MiB.
"""

_SILENT = 3
"""Probes in a row that a rank must have left unanswered to count as silent."""


@dataclass
class _Peer:
    """What is known of another rank: the collective that it is in, and probes sent since its last answer."""

    generation: int | None = None
    unanswered: int = 0


class _Front:
    """The part of a collective where results come in: from the first that is missing, as far as frames under way reach."""

    def __init__(self, port: RingPort, generation: int, total: int) -> None:
        self.port = port
        self.generation = generation
        self.total = total
        #: First chunk of the part, one of rank 0's.
        self.first = 0
        self._length = 8 * port.spec.window * port.spec.size
        self._overtaken = np.zeros(0, bool)

    def look(self, stalled: bool) -> Plea:
        """What to ask for; chunks are counted from `first`."""
        spec, first = self.port.spec, self.first
        done = self.port.done(self.total)
        while not (absent := missing(done[first : first + self._length], self.generation)).any():
            if first + self._length >= self.total:
                return Plea([], [], 0, np.zeros(0, bool))  # the last results have come meanwhile
            first += self._length
        first += int(np.argmax(absent)) // spec.size * spec.size
        absent = missing(done[first : first + self._length], self.generation)
        overdue = np.zeros(absent.size, bool)
        known = self._overtaken[first - self.first :][: absent.size]
        overdue[: known.size] = known
        launched = (int(self.port.control.next) & 0xFFFFFFFF) - first // spec.size
        plea = plead(spec.rank, spec.size, spec.window, absent, overdue, launched, stalled)
        self.first, self._overtaken = first, plea.overtaken
        return plea


class Recovery:
    """Retransmission and the detection of silent ranks for one rank of one group."""

    def __init__(self, port: RingPort) -> None:
        self.port = port
        self.timer = RetransmissionTimer()
        port.set_timeout(self.timer.timeout)
        #: Times that the timer has expired.
        self.rounds = 0
        self._probes = 0
        self._samples = 0
        self._rtt_sum = 0
        self._peers = {member.rank: _Peer() for member in port.spec.members if member.rank != port.spec.rank}

    def wait(self, generation: int, total: int) -> None:
        """After the timer has expired: until all results of a collective are stored.

        :raises CollectiveError: Nothing has come for the group's timeout; the text names the ranks that are silent.
        """
        port, timeout = self.port, self.port.spec.timeout
        started = progressed = due = time.monotonic()
        before = looked = 0
        asking = False
        others = self._others()
        front = _Front(self.port, generation, total)
        while True:
            now = time.monotonic()
            self._note()
            stored = int(port.control.stored)
            if stored != before:
                before, progressed = stored, now
                self.timer.progressed()
            elif now - progressed > timeout:
                where = f"{stored} of {total} chunks after {now - started:.1f} s"
                raise CollectiveError(self._verdict(generation, where, self._others() > others))
            if asking and stored == looked and not self._unanswered():
                # Everybody is there: if all are in this collective and nothing moves, frames are lost.
                asking = False
                if not self._absent(generation):
                    self._ask(front, stalled=True)
            if now >= due:
                self.rounds += 1
                if stored == looked:
                    self.timer.expired()
                    if asking:
                        self._ask(front, stalled=True)
                    # A rank that is late has parked what it was sent: sending it again would not make it faster.
                    asking = True
                    self._probe(generation, self._peers)
                else:
                    asking = False
                    self._ask(front, stalled=False)
                looked, due = stored, now + min(self.timer.timeout, timeout / (2 * _SILENT))
            if port.wait(total, max(0.0, due - now)):
                self.timer.progressed()
                port.set_timeout(self.timer.timeout)
                return

    def meet(self) -> None:
        """Until every rank of the group has its programs in place.

        :raises CollectiveError: Some have not within the group's timeout; the text names them.
        """
        port, spec = self.port, self.port.spec
        deadline = time.monotonic() + spec.timeout
        while absent := [rank for rank, peer in self._peers.items() if peer.generation is None]:
            if time.monotonic() > deadline:
                raise CollectiveError(
                    f"rank {spec.rank} ({spec.me.name}): no answer from {self._names(absent)} within {spec.timeout:g} s: "
                    "every member has to open the group"
                )
            self._probe(0, absent)
            port.wait(0xFFFFFFFF, 0.02)
            self._note()

    def _probe(self, generation: int, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._peers[rank].unanswered += 1
            self._probes += 1  # each is an attempt of its own: a fault may go by what a frame says
            self.port.order(Order.PROBE, generation, rank, self._probes & 0xFF)
        self.port.flush()

    def _note(self) -> None:
        """Take in what the kernel has measured and heard."""
        for event in self.port.events():
            self._peers[event.rank] = _Peer(event.generation)
        control = self.port.control
        samples, total = int(control.rtt_samples), int(control.rtt_sum_us)
        if samples != self._samples:
            mean = (total - self._rtt_sum) / (samples - self._samples) * 1e-6
            self.timer.sample(mean, max(0.0, control.rtt_max_us * 1e-6 - mean))
            control.rtt_max_us = 0
            self._samples, self._rtt_sum = samples, total
            self.port.set_quench(min(max(2 * (self.timer.smoothed or 0), _LEAST_QUENCH), _QUENCH))

    def _ask(self, front: _Front, stalled: bool) -> None:
        """Have sent again what seems lost."""
        port, spec, generation = self.port, self.port.spec, front.generation
        plea = front.look(stalled)
        for chunk in plea.request:
            port.order(Order.REQUEST, generation, front.first + chunk)
        for chunk in plea.resend:
            attempt = int(port.records["attempt"][front.first + chunk]) + 1 & 0xFF or 1
            port.order(Order.LAUNCH, generation, front.first + chunk, attempt)
        if plea.claim:
            # The tokens that would have launched these are lost. One may have come after all by now, and taken the first slots.
            first = port.take(plea.claim)
            for slot in range(first, min(first + plea.claim, slots_of(spec.rank, spec.size, front.total))):
                port.order(Order.LAUNCH, generation, spec.rank + spec.size * slot)
        port.replay(generation, front.total)
        port.flush()

    def _others(self) -> int:
        """Frames of other tensors that have come, in all collectives; ranks that wait for each other go on sending them."""
        counters = self.port.counters()
        return sum(counters[key] for key in ("bad_tensor", "bad_length", "bad_chunk"))

    def _verdict(self, generation: int, where: str, others: bool) -> str:
        """Why a collective does not go on, as far as this rank can tell.

        :param others: Frames of other tensors have come meanwhile.
        """
        spec = self.port.spec
        silent = self._unanswered(_SILENT)
        absent = self._absent(generation)
        if silent:
            why = f"{self._names(silent)} silent for {spec.timeout:g} s"
        elif absent:
            why = f"{self._names(absent)} up, but not in this all-reduce after {spec.timeout:g} s"
        elif others:
            why = f"no progress for {spec.timeout:g} s: the ranks reduce different tensors"
        else:
            why = f"no progress for {spec.timeout:g} s although every rank answers"
        return f"rank {spec.rank} ({spec.me.name}): {why} (all-reduce {generation}: {where})"

    def _unanswered(self, probes: int = 1) -> list[int]:
        """Ranks that have not answered so many probes in a row."""
        return [rank for rank, peer in self._peers.items() if peer.unanswered >= probes]

    def _absent(self, generation: int) -> list[int]:
        """Ranks that have not entered a collective, by their last answer."""
        return [rank for rank, peer in self._peers.items() if is_before(peer.generation or 0, generation)]

    def _names(self, ranks: Iterable[int]) -> str:
        return ", ".join(f"rank {rank} ({self.port.spec.members[rank].name})" for rank in sorted(ranks))
