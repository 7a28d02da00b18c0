"""A frame's fate: a pure function of the seed, the rules, and the frame's identity. Reference model
of ``bpf/include/fate.h``.

A draw is splitmix64's finalizer (Steele, Lea, Flood: Fast splittable pseudorandom number
generators, OOPSLA 2014) of a hash of seed, rule and identity. Time and the order of frames do not
matter. All numbers are integers, so both sides agree bit for bit.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from testbed.faults.packet import Packet
from testbed.faults.rule_table import Action, CompiledRule, RuleTable
from testbed.faults.rules import MAX_BITS, MAX_COPIES
from testbed.kernel.abi import constant

__all__ = ["FIRST_BYTE", "Fired", "Verdict", "judge", "mix"]

FIRST_BYTE: Final = constant("FATE_FIRST_BYTE")
"""The first byte that may be corrupted: after Ethernet, IPv4 and 8 bytes, which are UDP's header or
TCP's ports and sequence number.
"""

_MASK: Final = 2**64 - 1
_LOOKBACK: Final = constant("FATE_LOOKBACK")
_MEETS, _STATE, _STATIONARY, _VALUES = (
    constant(f"DRAW_{name}") for name in ("MEETS", "STATE", "STATIONARY", "VALUES")
)


class Fired(NamedTuple):
    """A rule that a frame has met.

    :param rule: Its index.
    :param argument: Copies; the first bit flipped; nanoseconds of the first copy's delay; number of
        frames to wait for; else 0.
    """

    rule: int
    action: Action
    argument: int


class Verdict(NamedTuple):
    """A frame's fate.

    :param corrupt: Bits to flip, counted from the frame's start; a bit that occurs twice is flipped
        back.
    :param copies: How many copies follow the frame itself.
    :param delays_ns: The delays of the frame and of each of its copies, nanoseconds.
    :param behind: How many frames of its link pass before it.
    :param within_ns: The longest time that it waits for them.
    :param fired: The rules that it has met, in order; a drop is the last.
    """

    drop: bool = False
    corrupt: tuple[int, ...] = ()
    copies: int = 0
    delays_ns: tuple[int, ...] = (0,)
    behind: int = 0
    within_ns: int = 0
    fired: tuple[Fired, ...] = ()


def judge(table: RuleTable, packet: Packet, length: int = 0) -> Verdict:
    """Decide the fate of a frame.

    :param length: Length of the frame in bytes from the Ethernet header on; only the choice of
        corrupted bits depends on it.
    """
    drop, behind, within, copies = False, 0, 0, 0
    flips: list[int] = []
    delays = [0] * (MAX_COPIES + 1)
    fired: list[Fired] = []
    for number, rule in enumerate(table.rules):
        if not _matches(rule, packet):
            continue
        key = _hash(table.seed, number, packet)
        if _draw(key, _MEETS) >> 1 >= rule.p:
            continue
        argument = 0
        match rule.action:
            case Action.DROP:
                drop = True
            case Action.BURST:
                if not _bad(table.seed, number, rule, packet):
                    continue
                drop = True
            case Action.DUPLICATE:
                argument = rule.count
                copies = min(copies + rule.count, MAX_COPIES)
            case Action.CORRUPT:
                bits = max(length - FIRST_BYTE, 0) * 8
                drawn = [
                    8 * FIRST_BYTE + _draw(key, _VALUES + i) % bits
                    for i in range(rule.count if bits else 0)
                ]
                argument = drawn[0] if drawn else 0
                flips += drawn
            case Action.DELAY:
                drawn = [
                    _quantile(table.quantiles[rule.quantiles], _draw(key, _VALUES + i))
                    for i in range(MAX_COPIES + 1)
                ]
                argument = drawn[0]
                delays = [sum(pair) for pair in zip(delays, drawn, strict=True)]
            case Action.REORDER:
                argument = rule.count
                behind, within = behind + rule.count, within + rule.within
        fired.append(Fired(number, rule.action, argument))
        if drop:
            break
    return Verdict(
        drop,
        tuple(flips[:MAX_BITS]),
        copies,
        tuple(delays[: copies + 1]),
        behind,
        within,
        tuple(fired),
    )


def mix(x: int) -> int:
    """splitmix64's finalizer."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


def _draw(key: int, number: int) -> int:
    return mix(key + (number + 1) * 0x9E3779B97F4A7C15 & _MASK)


def _hash(seed: int, rule: int, packet: Packet) -> int:
    sender, receiver, kind, group, seq, chunk, hop, attempt = packet
    stream = sender | receiver << 8 | kind << 16 | hop << 24 | attempt << 32 | group << 48
    return mix(mix(_draw(seed, rule) ^ stream) ^ (seq | chunk << 32))


def _matches(rule: CompiledRule, packet: Packet) -> bool:
    sender, receiver, kind, *numbers = packet
    return (
        rule.receivers[sender] >> receiver & 1 == 1
        and rule.kinds >> kind & 1 == 1
        and all(
            first <= number <= last
            for (first, last), number in zip(rule.ranges, numbers, strict=True)
        )
    )


def _bad(seed: int, number: int, rule: CompiledRule, packet: Packet) -> bool:
    """Tell whether a frame's stream is in the bad state (Gilbert-Elliott chain).

    Each draw applies to both states of the chain at once; one below ``enter``, or of at least
    ``stay``, takes both to the same state. So the state is a function of the few frames since the
    last such draw. A stream without one began in its stationary distribution, which also stands in
    for frames further back than the bound.
    """
    stream = packet._replace(hop=0)
    steps = min(packet.chunk + 1, _LOOKBACK)
    for back in range(steps):
        draw = _draw(_hash(seed, number, stream._replace(chunk=packet.chunk - back)), _STATE) >> 1
        if draw < rule.enter or draw >= rule.stay:
            return draw < rule.enter
    before = stream._replace(chunk=(packet.chunk - steps) % 2**32)
    return _draw(_hash(seed, number, before), _STATIONARY) >> 1 < rule.stationary


def _quantile(table: tuple[int, ...], draw: int) -> int:
    index = draw >> 54
    low, high = table[index], table[index + 1]
    return low + ((high - low) * (draw >> 30 & 0xFFFFFF) >> 24)
