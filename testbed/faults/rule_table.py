"""Rules in the kernel's representation, ``struct fault_rules``: names are resolved, and
probabilities and delays are integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from testbed.core.errors import SpecError
from testbed.faults import delay_header
from testbed.faults.identity import KINDS
from testbed.faults.quantiles import quantiles
from testbed.faults.rules import (
    Burst,
    Corrupt,
    Delay,
    Drop,
    Duplicate,
    PacketRule,
    Range,
    Reorder,
    check_number,
)
from testbed.kernel.abi import constant, dtype
from testbed.plan import MAX_HOSTS, MAX_LINEAR_MTU, MAX_MTU, FabricPlan

__all__ = [
    "CERTAIN",
    "MAX_MTU_HELD",
    "NO_RULES",
    "Action",
    "CompiledRule",
    "RuleTable",
    "compile_rules",
]

CERTAIN: Final = 1 << 63
"""Probability 1: all draws of 63 bits are less."""
MAX_MTU_HELD: Final = MAX_MTU - delay_header.SIZE
"""The largest MTU at which frames can be held: a header precedes them."""
_FIELDS: Final = ("group", "seq", "chunk", "hop", "attempt")
_RULES: Final = dtype("fault_rules")
_KINDS: Final = 8 * _RULES["rules"].base["kinds"].itemsize


class Action(IntEnum):
    """``enum fault_action``."""

    PASS = constant("FAULT_PASS")
    DROP = constant("FAULT_DROP")
    DUPLICATE = constant("FAULT_DUPLICATE")
    CORRUPT = constant("FAULT_CORRUPT")
    DELAY = constant("FAULT_DELAY")
    REORDER = constant("FAULT_REORDER")
    BURST = constant("FAULT_BURST")


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """``struct fault_rule``; probabilities are in units of 2**-63.

    :param ranges: Ranges of group, seq, chunk, hop and attempt.
    :param kinds: Bit mask of kinds.
    :param receivers: Bit mask of receivers, by sender.
    :param count: Copies, bits, or number of frames to wait for.
    :param quantiles: Index of the delay's table.
    :param within: The longest time that a reordered frame waits, nanoseconds.
    """

    action: Action
    p: int
    ranges: tuple[Range, ...]
    kinds: int
    receivers: tuple[int, ...]
    count: int = 0
    quantiles: int = 0
    within: int = 0
    enter: int = 0
    stay: int = 0
    stationary: int = 0


@dataclass(frozen=True, slots=True)
class RuleTable:
    """Rules and the seed of their draws.

    :param sources: The rules that were compiled, in the same order.
    :param quantiles: Tables of 1025 delays, nanoseconds.
    """

    seed: int
    rules: tuple[CompiledRule, ...]
    sources: tuple[PacketRule, ...]
    quantiles: tuple[tuple[int, ...], ...]

    def holds(self, mtu: int) -> bool:
        """Whether frames may have to wait, or to be copied with their fragments: a delay line is
        needed.

        :param mtu: Of the links, bytes.
        """
        held = {Action.DELAY, Action.REORDER}
        if mtu > MAX_LINEAR_MTU:
            held.add(Action.DUPLICATE)
        return any(rule.action in held for rule in self.rules)

    def pack(self, trace: bool = False) -> bytes:
        """``struct fault_rules``.

        :param trace: Also log frames that met no rule.
        """
        packed = np.zeros((), _RULES)
        packed["seed"], packed["count"], packed["trace"] = self.seed, len(self.rules), trace
        for place, rule in zip(packed["rules"], self.rules, strict=False):
            for name in (
                "p",
                "enter",
                "stay",
                "stationary",
                "within",
                "action",
                "count",
                "quantiles",
                "receivers",
            ):
                place[name] = getattr(rule, name)
            for name, allowed in zip(_FIELDS, rule.ranges, strict=True):
                place[name] = tuple(allowed)
            place["kinds"] = np.frombuffer(rule.kinds.to_bytes(_KINDS // 8, "little"), "<u4")
        return packed.tobytes()

    def pack_quantiles(self) -> list[bytes]:
        """``struct fault_quantiles``, one per table."""
        return [np.array(table, "<u8").tobytes() for table in self.quantiles]


#: For a fabric without faults.
NO_RULES = RuleTable(0, (), (), ())


def compile_rules(rules: Sequence[PacketRule], plan: FabricPlan, seed: int = 1) -> RuleTable:
    """Resolve rules against a fabric.

    :param seed: Seed of all draws, modulo 2**64.
    :raises SpecError: There are too many rules, one names a host that the fabric does not have or
        is netem's, or frames are too long to be held.
    """
    for rule in rules:
        if rule.backend != "engine":
            given = f"{rule.action}: backend = {rule.backend}"
            raise SpecError(f"faults: {given}: must be engine where fates are counted and replayed")
    check_number(rules)
    tables: dict[tuple[int, ...], int] = {}
    compiled = tuple(_compile(rule, plan, tables) for rule in rules)
    table, most = RuleTable(seed % 2**64, compiled, tuple(rules), tuple(tables)), MAX_MTU_HELD
    if plan.mtu > most and table.holds(plan.mtu):
        raise SpecError(
            f"fabric.mtu = {plan.mtu}: must be at most {most} with delay, reorder or duplicate,"
            " because a header precedes frames that wait or are copied"
        )
    return table


def _compile(
    rule: PacketRule, plan: FabricPlan, tables: dict[tuple[int, ...], int]
) -> CompiledRule:
    ranges = tuple(getattr(rule, name) for name in _FIELDS)
    kinds = range(_KINDS) if rule.kind is None else [KINDS[name] for name in rule.kind]
    mask = sum(1 << kind for kind in kinds)
    match rule:
        case Drop():
            own = {}
        case Duplicate():
            own = {"count": rule.copies}
        case Corrupt():
            own = {"count": rule.bits}
        case Delay():
            own = {"quantiles": tables.setdefault(tuple(quantiles(rule).tolist()), len(tables))}
        case Reorder():
            own = {"count": rule.behind, "within": round(rule.within * 1e9)}
        case Burst():
            stationary = _chance(rule.enter / (rule.enter + rule.leave))
            own = {
                "enter": _chance(rule.enter),
                "stay": CERTAIN - _chance(rule.leave),
                "stationary": stationary,
            }
    return CompiledRule(
        Action[rule.action.upper()],
        _chance(rule.p),
        ranges,
        mask,
        _receivers(rule.link, plan),
        **own,
    )


def _chance(p: float) -> int:
    return round(p * CERTAIN)


def _receivers(links: Sequence[tuple[str, str]], plan: FabricPlan) -> tuple[int, ...]:
    masks = [0] * max(MAX_HOSTS, len(plan.hosts))  # more: only simulated, and refused there
    for link in links:
        senders, receivers = (
            [host.rank for host in plan.hosts] if end == "*" else [plan.host(end).rank]
            for end in link
        )
        for sender in senders:
            for receiver in receivers:
                masks[sender] |= 1 << receiver
    return tuple(masks)
