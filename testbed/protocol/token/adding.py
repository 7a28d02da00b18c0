"""Sums of fixed lanes: reference model of ``bpf/include/token_add.h``, in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.kernel.abi import constant
from testbed.protocol.rows import shifted

__all__ = ["Edge", "Form", "Part", "Words", "form_sums", "shifts_of"]

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Part:
    """``struct token_part``."""

    first: int
    count: int
    start: int = 0
    plain: int = 0


class Edge(NamedTuple):
    """``struct token_edge``, and its weight."""

    slot: int
    at: int
    rank: int
    weight: int = 1


@dataclass(frozen=True)
class Form:
    """What a sum is.

    :param words: Of lanes in each summand.
    :param wide: Lanes have 32 bits, not 16.
    """

    words: int
    wide: bool = False
    weighted: bool = False
    maximum: bool = False

    @property
    def bits(self) -> int:
        """Of a lane that are used."""
        return constant("TOKEN_WIDE_BITS" if self.wide else "TOKEN_BITS")

    def lanes(self, words: Words) -> NDArray[np.int64]:
        """Take the words of rows apart, lowest lanes first."""
        return words.view(np.uint32 if self.wide else np.uint16).astype(np.int64)

    def packed(self, sums: NDArray[np.int64]) -> Words:
        """The words of sums: two for a word of lanes, with every other lane each."""
        if self.wide:
            return sums.astype(np.uint64)
        halves = sums.astype(np.uint32).reshape(len(sums), -1, 2, 2).swapaxes(2, 3)
        return np.ascontiguousarray(halves).reshape(len(sums), -1).view(np.uint64)


def shifts_of(exponents: Mapping[int, int]) -> dict[int, int]:
    """By rank, how far its lanes are shifted to the right: to the largest step.

    :param exponents: Of the steps of those that send rows.
    """
    most = max(exponents.values(), default=0)
    return {rank: most - exponent for rank, exponent in exponents.items()}


def form_sums(
    form: Form,
    parts: Sequence[Part],
    edges: Sequence[Edge],
    slots: Words,
    shifts: Mapping[int, int],
) -> Words:
    """Return the words of each part's sum.

    :param slots: The words in each, shape (slots, room).
    """
    if not parts:
        return np.zeros((0, 2 * form.words), np.uint64)
    by = np.array([shifts[edge.rank] for edge in edges])[:, None]
    weight = np.array([edge.weight if form.weighted else 1 for edge in edges])[:, None]
    words = np.stack([slots[edge.slot, edge.at : edge.at + form.words] for edge in edges])
    half = 1 << (form.bits - 1)
    lanes = (half + shifted(form.lanes(words) - half, by)) * weight
    found = []
    for part in parts:
        summands = lanes[part.first : part.first + part.count]
        total = summands.max(axis=0) if form.maximum else summands.sum(axis=0)
        found.append(part.start + total)
    return form.packed(np.stack(found))
