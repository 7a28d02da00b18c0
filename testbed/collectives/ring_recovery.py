"""What a rank does when results stay away: ask again, find out who is silent, and give up with a name."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from testbed.collectives.ring_maps import Order
from testbed.collectives.ring_port import RingPort
from testbed.errors import CollectiveError
from testbed.protocol.recovery import missing, plead, slots_of
from testbed.protocol.rto import RetransmissionTimer

__all__ = ["Recovery"]

_PROBE_INTERVAL = 0.1
_SETTLE = 3  # probes that a rank may leave unanswered before it counts as silent


class Recovery:
    """Retransmission and the detection of silent ranks for one rank of one group."""

    def __init__(self, port: RingPort) -> None:
        self.port = port
        self.timer = RetransmissionTimer()
        self._samples = 0
        self._rtt_sum = 0
        self._alive: dict[int, tuple[float, int]] = {}

    def wait(self, generation: int, total: int) -> None:
        """Until all results of a collective are stored.

        :raises CollectiveError: Nothing has come for the group's timeout; the text names the ranks that are silent.
        """
        port, spec = self.port, self.port.spec
        if port.wait(total, self.timer.timeout):
            return
        started = progressed = probed = time.monotonic()
        before = -1
        overdue = np.zeros(total, bool)
        while not port.wait(total, self.timer.timeout):
            now = time.monotonic()
            self._note(now)
            stored = int(port.control.stored)
            if stored != before:
                before, progressed = stored, now
                self.timer.progressed()
            else:
                self.timer.expired()
            if now - progressed > spec.timeout:
                raise CollectiveError(self._verdict(generation, total, stored, now, started))
            if now - progressed > _PROBE_INTERVAL and now - probed > _PROBE_INTERVAL:
                probed = now
                self._probe(generation)
            overdue = self._ask(generation, total, overdue, stalled=now > progressed)
        self.timer.progressed()

    def meet(self) -> None:
        """Until every rank of the group has its programs in place.

        :raises CollectiveError: Some have not within the group's timeout; the text names them.
        """
        port, spec = self.port, self.port.spec
        others = {member.rank for member in spec.members} - {spec.rank}
        deadline = time.monotonic() + spec.timeout
        while others - self._alive.keys():
            now = time.monotonic()
            if now > deadline:
                names = ", ".join(self._name(rank) for rank in sorted(others - self._alive.keys()))
                raise CollectiveError(
                    f"rank {spec.rank} ({spec.me.name}): no answer from {names} within {spec.timeout:g} s: "
                    "every member has to open the group"
                )
            self._probe(0, others - self._alive.keys())
            port.wait(0xFFFFFFFF, 0.02)
            self._note(now)

    def _probe(self, generation: int, ranks: set[int] | None = None) -> None:
        spec = self.port.spec
        for rank in range(spec.size) if ranks is None else sorted(ranks):
            if rank != spec.rank:
                self.port.order(Order.PROBE, generation, rank)
        self.port.flush()

    def _note(self, now: float) -> None:
        """Take in what the kernel has measured and heard."""
        for event in self.port.events():
            self._alive[event.rank] = (now, event.generation)
        control = self.port.control
        samples, total = int(control.rtt_samples), int(control.rtt_sum_us)
        if samples != self._samples:
            mean = (total - self._rtt_sum) / (samples - self._samples) * 1e-6
            self.timer.sample(mean, max(0.0, control.rtt_max_us * 1e-6 - mean))
            control.rtt_max_us = 0
            self._samples, self._rtt_sum = samples, total

    def _ask(
        self, generation: int, total: int, overdue: NDArray[np.bool_], stalled: bool
    ) -> NDArray[np.bool_]:
        """Ask for chunks that were overtaken by later ones of the same owner at the last look already.

        :returns: The chunks that are overtaken now.
        """
        port, spec = self.port, self.port.spec
        plea = plead(
            spec.rank,
            spec.size,
            spec.window,
            absent=missing(port.done(total), generation),
            overdue=overdue,
            launched=int(port.control.next) & 0xFFFFFFFF,
            stalled=stalled,
        )
        for chunk in plea.request:
            port.order(Order.REQUEST, generation, chunk)
        for chunk in plea.resend:
            port.order(Order.LAUNCH, generation, chunk, int(port.records["attempt"][chunk]) + 1)
        if plea.claim:
            # The tokens that would have launched these are lost. One may have come after all by now, and taken the first slots.
            first = port.take(plea.claim)
            for slot in range(first, min(first + plea.claim, slots_of(spec.rank, spec.size, total))):
                port.order(Order.LAUNCH, generation, spec.rank + spec.size * slot)
        port.replay(generation, total)
        port.flush()
        return plea.overtaken

    def _verdict(self, generation: int, total: int, stored: int, now: float, started: float) -> str:
        spec = self.port.spec
        recent = now - max(_SETTLE * _PROBE_INTERVAL, spec.timeout / 2)
        others = [member.rank for member in spec.members if member.rank != spec.rank]
        silent = [rank for rank in others if self._alive.get(rank, (0.0, 0))[0] < recent]
        where = f"all-reduce {generation}: {stored} of {total} chunks after {now - started:.1f} s"
        start = f"rank {spec.rank} ({spec.me.name})"
        if silent:
            names = ", ".join(self._name(rank) for rank in silent)
            return f"{start}: {names} silent for {spec.timeout:g} s ({where})"
        absent = [rank for rank in others if (self._alive[rank][1] - generation) & 0x80000000]
        if absent:
            names = ", ".join(self._name(rank) for rank in absent)
            return f"{start}: {names} up, but not in this all-reduce after {spec.timeout:g} s ({where})"
        if self.port.counters()["bad_tensor"] or self.port.counters()["bad_length"]:
            return f"{start}: ranks reduce tensors of different lengths ({where})"
        return f"{start}: no progress for {spec.timeout:g} s although every rank answers ({where})"

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({self.port.spec.members[rank].name})"
