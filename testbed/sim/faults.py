"""Faults of a simulation, in force: `testbed.faults.fate` decides, and this gives its verdicts
their time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import SpecError
from testbed.faults.fate import Verdict, judge
from testbed.faults.identity import Packet
from testbed.faults.log import RECORD
from testbed.faults.rule_table import Action, RuleTable
from testbed.plan import MAX_HOSTS
from testbed.protocol.wire import Frame, decode, encode
from testbed.sim.wiring import Message, Wiring, after

__all__ = ["Faults"]


@dataclass(slots=True)
class _Waiting:
    """A reordered frame: it goes on when ``left`` frames of its link have passed."""

    left: int
    go: Callable[[], None]
    gone: bool = False


@dataclass(slots=True)
class _Link:
    waiting: list[_Waiting] = field(default_factory=list)


class Faults:
    """Applies rules to the frames of a fabric that carry an identity.

    :param identify: The identity of a message; None: no rule applies to it.
    :param trace: Also log frames that met no rule.
    :ivar counts: How often each action happened.
    :ivar frames: Frames that could meet a rule.
    :raises SpecError: The fabric has more hosts than rules can tell apart.
    """

    def __init__(
        self,
        wiring: Wiring,
        table: RuleTable,
        identify: Callable[[Message], Packet | None],
        trace: bool = False,
    ) -> None:
        if table.rules and len(wiring.hosts) > MAX_HOSTS:
            raise SpecError(
                f"faults: {len(table.rules)} rules for {len(wiring.hosts)} hosts: must be none if"
                f" there are more than {MAX_HOSTS} hosts, as many as a frame's identity tells apart"
            )
        self.table = table
        self.counts: dict[Action, int] = {}
        self.frames = 0
        self._env = wiring.env
        self._identify = identify
        self._trace = trace
        self._records: list[tuple[Any, ...]] = []
        self._links: dict[tuple[int, int], _Link] = {}
        if table.rules or trace:
            wiring.fate = self._meet

    def log(self) -> NDArray[Any]:
        """The log, as the kernel's programs write it: shape (n,), of `testbed.faults.log.RECORD`,
        with simulated time.
        """
        records = np.zeros(len(self._records), RECORD)
        names = (*Packet._fields, "time", "length", "rule", "action", "argument", "order", "fired")
        for name, column in zip(names, zip(*self._records, strict=True), strict=False):
            records[name] = column
        return records

    def _meet(self, message: Message, go_on: Callable[[Message, float], None]) -> None:
        packet = self._identify(message)
        if packet is None:
            go_on(message, 0.0)
            return
        self.frames += 1
        verdict = judge(self.table, packet, message.length)
        for order, fired in enumerate(verdict.fired):
            self.counts[fired.action] = self.counts.get(fired.action, 0) + 1
            self._note(packet, message, (*fired, order, len(verdict.fired)))
        if self._trace and not verdict.fired:
            self._note(packet, message, (0, Action.PASS, 0, 0, 0))
        if verdict.drop:
            return
        self._pass_on(_damaged(message, verdict), verdict, go_on)

    def _note(self, packet: Packet, message: Message, what: tuple[int, ...]) -> None:
        rule, action, argument, order, number = what
        now = round(self._env.now * 1e9)
        self._records.append((*packet, now, message.length, rule, action, argument, order, number))

    def _pass_on(
        self, message: Message, verdict: Verdict, go_on: Callable[[Message, float], None]
    ) -> None:
        link = self._links.setdefault((message.sender, message.receiver), _Link())
        if verdict.behind:
            waiting = _Waiting(verdict.behind, lambda: self._go(message, verdict, go_on))
            link.waiting.append(waiting)
            after(self._env, verdict.within_ns / 1e9, lambda: self._release(link, waiting))
            return
        self._go(message, verdict, go_on)
        for waiting in list(link.waiting):
            waiting.left -= 1
            if waiting.left <= 0:
                self._release(link, waiting)

    def _go(
        self, message: Message, verdict: Verdict, go_on: Callable[[Message, float], None]
    ) -> None:
        for ns in verdict.delays_ns:
            go_on(message, ns / 1e9)

    def _release(self, link: _Link, waiting: _Waiting) -> None:
        if not waiting.gone:
            waiting.gone = True
            link.waiting.remove(waiting)
            waiting.go()


def _damaged(message: Message, verdict: Verdict) -> Message:
    """The message with its bits flipped. One that no longer is a frame is nobody's."""
    if not verdict.corrupt or not isinstance(message.content, Frame):
        return message
    data = bytearray(encode(message.content))
    for bit in verdict.corrupt:
        data[bit // 8] ^= 1 << bit % 8
    return replace(message, content=decode(bytes(data)))
