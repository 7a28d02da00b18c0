"""Replay of a log of faults: the reference model must decide the same fates for the same frames.
Pure.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from testbed.core.errors import FaultError
from testbed.faults.fate import Fired, judge
from testbed.faults.packet import Packet, kind_name
from testbed.faults.rule_table import Action, RuleTable

__all__ = ["check_replay"]


def check_replay(table: RuleTable, records: NDArray[Any]) -> None:
    """Compare every record with what the reference model decides.

    :param records: Shape (n,), of :data:`testbed.faults.log.RECORD`.
    :raises FaultError: A record differs; the text has the first such frame and what the log and the
        reference model say.
    """
    columns = [
        records[name].tolist()
        for name in (*Packet._fields, "length", "rule", "action", "argument", "order", "fired")
    ]
    for index, (*identity, length, rule, action, argument, order, fired) in enumerate(
        zip(*columns, strict=True)
    ):
        packet = Packet(*identity)
        expected = judge(table, packet, length).fired
        logged = Fired(rule, Action(action), argument) if fired else None
        if len(expected) != fired or (logged and expected[order] != logged):
            raise FaultError(
                f"record {index} of the log: {kind_name(packet.kind)} frame {packet} of {length}"
                f" bytes met {fired} rules, {_text(logged)} as number {order}; its fate is"
                f" {' and '.join(map(_text, expected)) or 'to pass'}"
            )


def _text(fired: Fired | None) -> str:
    return (
        f"{fired.action.name.lower()} by rule {fired.rule} with {fired.argument}"
        if fired
        else "none"
    )
