"""The weights of a payload's check, by place: the one table that Python, the programs and native
code all read.

A payload is taken as halves of words, 32 bits each: ``h[0]``, ``h[1]``, ... Its check is the sum of
all ``w[i] * h[i]`` modulo 2**64, with weights of 32 bits that are odd, different and not 1. This is
multilinear hashing (Carter and Wegman, Universal classes of hash functions, JCSS 18(2), 1979), in
the form of Lemire and Kaser (Strongly universal string hashing is fast, Computer Journal 57(11),
2014): one multiplication of 32 by 32 bits a half, and sums of payloads have the sums of their
checks.

An error changes halves by ``e[i]``, each less than 2**32 in magnitude, and is missed if the sum of
all ``w[i] * e[i]`` is 0 modulo 2**64.

- Any fixed pattern, weights drawn evenly from the odd numbers of 32 bits: missed with a probability
  of at most 2**-31. Take some ``e[j]`` that is not 0. Given all other weights, ``w[j] * e[j]`` has
  to be one certain number modulo 2**64. Two weights w and v that both give it have ``(w - v) * e[j]
  = 0`` modulo 2**64; but ``|w - v|`` and ``|e[j]|`` are less than 2**32, so the product does not
  wrap, and w = v. Of 2**31 odd weights one at most will do.
- One flipped bit is never missed: ``w * 2**a`` with a < 32 is less than 2**64 and not 0.
- Nor are two. In one half, e is not 0 and less than 2**32 in magnitude: again ``w * e`` neither
  wraps nor is 0. In two halves, let the bits be a <= b. The sum is ``2**a * (+-w +- v * 2**(b -
  a))``. If a < b, what is in brackets is odd: the sum is not 0 modulo 2**64. If a = b, it is ``2**a
  * (w - v)`` or ``2**a * (w + v)``, up to the sign. The difference is not 0 and less than 2**32 in
  magnitude, the sum less than 2**33, and a less than 32: neither product is 0 or 2**64 or more.
- Nor is a flipped bit of the payload together with one of the checksum itself. ``w * 2**a = 2**k``
  would make w = 1. And ``w * 2**a + 2**k`` is not 2**64: with a and k different it has an odd
  factor of more than 1, with a = k it is ``2**a * (w + 1)``, which is too small.

A payload that is longer than the table is weighed in parts as long as the table. The check of the
first part counts as it is, that of part i > 0 times ``w[i]``: odd, so whatever changes the check of
a part by something that is not 0 changes that of the whole. Errors in two parts are missed with a
probability of about 2**-31, too, but for no pattern never.

The table is drawn once and for all, so what is said of the first kind holds of errors that do not
know it: this is a check against accidents, not against adversaries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

__all__ = ["HALVES", "WEIGHTS", "factors", "header", "weigh_halves"]

HALVES = 864
"""Places: halves of the largest payload in the linear part of a frame, in whole steps of the
programs.
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
    """What the check of each part counts for, parts of `HALVES` halves."""
    return chain((1,), WEIGHTS[1:])


def weigh_halves(halves: Sequence[int]) -> int:
    """The check of a payload, from its halves in the order of memory: lower ones first."""
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
/* Weights of a payload's check: `python -m testbed.protocol.weights` makes this file. */
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
