"""Stacks as text, in the format that flame graphs are made of: functions from the outermost to the
innermost, with semicolons between them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

__all__ = ["UNKNOWN", "Stack", "fold", "merged", "unfold"]

UNKNOWN: Final = "?"
"""The name of an address where no function is."""
_KERNEL: Final = "_[k]"  # as perf's and BCC's tools mark functions of the kernel


class Stack(NamedTuple):
    """How often a stack was found.

    :param softirq: Whether in softirq, for whatever task was there.
    :param name: Its class.
    :param folded: As of `fold`.
    :param inside: How many of `number` were inside collectives.
    """

    node: str
    softirq: bool
    name: str
    folded: str
    number: int
    inside: int


def fold(kernel: Sequence[str], user: Sequence[str]) -> str:
    """A stack as text, as far as it is known: where a library has no frame pointers, what is found
    behind it is not code.

    :param kernel: Functions of the kernel, innermost first.
    :param user: ``file!function`` of user space, innermost first.
    """
    known = [*user[:1], *takewhile(lambda name: name != UNKNOWN, user[1:])]
    frames = [*reversed(known), *(name + _KERNEL for name in reversed(kernel))]
    return ";".join(frame.replace(";", ":") for frame in frames)


def unfold(folded: str) -> Iterator[tuple[str, bool]]:
    """The functions of a stack, outermost first, each with whether it is the kernel's."""
    for frame in folded.split(";") if folded else ():
        yield frame.removesuffix(_KERNEL), frame.endswith(_KERNEL)


def merged(stacks: Iterable[Stack]) -> list[Stack]:
    """Stacks with each text once for a node and class, the most frequent first: different
    addresses may be in the same functions.
    """
    found: dict[tuple[str, bool, str, str], tuple[int, int]] = {}
    for each in stacks:
        number, inside = found.get(each[:4], (0, 0))
        found[each[:4]] = number + each.number, inside + each.inside
    every = (Stack(*key, *counts) for key, counts in found.items())
    return sorted(every, key=lambda each: (-each.number, each.folded))
