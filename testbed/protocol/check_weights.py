"""The weights of a payload's check, by position. Python, the programs and native code all read this
one table.

A payload is read as half words of 32 bits: ``h[0]``, ``h[1]``, ... Its check is the sum of all
``w[i] * h[i]`` modulo 2**64, where the weights have 32 bits, are odd, differ from each other, and
are not 1. This is multilinear hashing (Carter and Wegman, Universal classes of hash functions, JCSS
18(2), 1979), in the form of Lemire and Kaser (Strongly universal string hashing is fast, Computer
Journal 57(11), 2014): it takes one multiplication of 32 by 32 bits per half word, and the check of
a sum of payloads is the sum of their checks.

An error changes half words by ``e[i]``, each less than 2**32 in magnitude. It is missed if the sum
of all ``w[i] * e[i]`` is 0 modulo 2**64.

- If the weights are drawn uniformly from the odd numbers of 32 bits, any fixed pattern is missed
  with a probability of at most 2**-31. Proof: take some ``e[j]`` that is not 0. Given all other
  weights, ``w[j] * e[j]`` must equal one particular number modulo 2**64. Two weights w and v that
  both yield it satisfy ``(w - v) * e[j] = 0`` modulo 2**64; but ``|w - v|`` and ``|e[j]|`` are less
  than 2**32, so the product does not wrap, and w = v. So at most one of the 2**31 odd weights does.
- One flipped bit is never missed: ``w * 2**a`` with a < 32 is less than 2**64 and not 0.
- Two flipped bits are never missed. If both are in one half word, e is not 0 and less than 2**32 in
  magnitude: again ``w * e`` neither wraps nor is 0. If they are in two half words, let the bits be
  a <= b. The sum is ``2**a * (+-w +- v * 2**(b - a))``. If a < b, the term in brackets is odd, so
  the sum is not 0 modulo 2**64. If a = b, it is ``2**a * (w - v)`` or ``2**a * (w + v)``, up to the
  sign. The difference is not 0 and less than 2**32 in magnitude, the sum less than 2**33, and a
  less than 32: so neither product is 0, and neither reaches 2**64.
- A flipped bit of the payload together with one of the checksum itself is never missed. ``w * 2**a
  = 2**k`` would make w = 1. And ``w * 2**a + 2**k`` is not 2**64: if a and k differ, it has an odd
  factor greater than 1; if a = k, it is ``2**a * (w + 1)``, which is too small.

A payload that is longer than the table is weighed in parts as long as the table. The check of the
first part counts once, that of part i > 0 ``w[i]`` times: an odd factor, so whatever changes the
check of one part changes that of the whole. Errors in two parts are missed with a probability of
about 2**-31, too, but no pattern of them is excluded.

The table was drawn once and for all, so the first statement holds only for errors that do not
depend on it. The check protects against accidents, not against adversaries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

__all__ = ["HALVES", "WEIGHTS", "factors", "header", "weigh_halves"]

HALVES = 864
"""Number of weights: half words of the largest payload that fits into the linear part of a frame,
rounded up to whole steps of the programs.
"""

_U64 = 0xFFFFFFFFFFFFFFFF


def _draw() -> Iterator[int]:
    """The upper halves of splitmix64's output (Steele, Lea, Flood, OOPSLA 2014)."""
    state, used = 0, {1}
    while True:
        state = state + 0x9E3779B97F4A7C15 & _U64
        x = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _U64
        x = (x ^ x >> 27) * 0x94D049BB133111EB & _U64
        weight = (x ^ x >> 31) >> 32 | 1
        if weight not in used:
            used.add(weight)
            yield weight


WEIGHTS: tuple[int, ...] = tuple(islice(_draw(), HALVES))


def factors() -> Iterator[int]:
    """How often the check of each part counts; parts have `HALVES` half words."""
    return chain((1,), WEIGHTS[1:])


def weigh_halves(halves: Sequence[int]) -> int:
    """The check of a payload, given its half words in memory order: the lower half of each word
    first.
    """
    parts = (halves[start : start + HALVES] for start in range(0, len(halves), HALVES))
    return (
        sum(
            factor * sum(weight * half for weight, half in zip(WEIGHTS, part, strict=False))
            for factor, part in zip(factors(), parts, strict=False)
        )
        & _U64
    )


def header() -> str:
    """``bpf/shared/weights_abi.h``, which programs and native code include."""
    rows = [WEIGHTS[i : i + 6] for i in range(0, HALVES, 6)]
    table = "\n".join("\t" + " ".join(f"0x{weight:08x}," for weight in row) for row in rows)
    return f"""\
/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Weights of a payload's check: `python -m testbed.protocol.check_weights` makes this file. */
#pragma once

#include <linux/types.h>

#define WEIGHTS {HALVES}

#ifdef __bpf__
__attribute__((section(".rodata.weights")))
#endif
static const __u32 weights[WEIGHTS] __attribute__((aligned(64))) = {{
{table}
}};
"""


if __name__ == "__main__":
    print(header(), end="")
