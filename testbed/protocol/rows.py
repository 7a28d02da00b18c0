"""Rows as they travel in 16 bits: reference model of ``testbed/native/rows.h``, in numpy. Pure.

int16: each row has a step, the power of two that makes its largest magnitude less than 2**15 steps;
a value that would round up to that is clamped. So the error of an element is at most one step,
which is less than 2**-14 of the row's largest magnitude. bfloat16: the upper half of a float32,
rounded to nearest, ties to even, and never to infinity. Fixed lanes, of 15 or 31 bits, are those
that programs add up: the rows of a message have one step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ERRORS",
    "fixed_lanes",
    "fixed_step",
    "pack_bfloat16",
    "pack_int16",
    "shifted",
    "unpack_bfloat16",
]

ERRORS = {"float32": 0.0, "bfloat16": 2.0**-8, "int16": 2.0**-14}
"""The largest error of an element that travels, as a share of its row's largest magnitude."""

_LEAST = 16 - 126  # exponent of magnitudes below which steps stay normal numbers


def pack_int16(rows: NDArray[np.float32]) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """Return lanes, and the step of each row.

    :param rows: Finite, shape (n, dim).
    """
    _, exponents = np.frexp(np.abs(rows).max(axis=1, initial=0))
    units = np.maximum(np.where(np.abs(rows).max(axis=1, initial=0) > 0, exponents, _LEAST), _LEAST)
    scaled = rows * np.ldexp(np.float32(1), 15 - units).astype(np.float32)[:, None]
    lanes = np.rint(np.clip(scaled, np.float32(-32767), np.float32(32767))).astype(np.int16)
    return lanes, np.ldexp(np.float32(1), units - 15).astype(np.float32)


def pack_bfloat16(rows: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the upper halves."""
    bits = np.ascontiguousarray(rows).view(np.uint32)
    rounds = (bits & 0x7FFFFFFF) < 0x7F7F8000
    up = np.where(rounds, 0x7FFF + (bits >> 16 & 1), 0).astype(np.uint32)
    return ((bits + up) >> 16).astype(np.uint16)


def unpack_bfloat16(lanes: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return what lanes mean."""
    return (lanes.astype(np.uint32) << 16).view(np.float32)


def fixed_step(rows: NDArray[np.float32], bits: int) -> float:
    """Return the step of a message: the least for which no magnitude exceeds ``2**(bits - 1)``
    steps.

    :param rows: Finite, shape (n, dim).
    """
    largest = np.frexp(np.abs(rows).max(initial=0))[1]
    return float(2.0 ** (max(int(largest), bits - 126) - (bits - 1)))


def fixed_lanes(rows: NDArray[np.float32], step: float, bits: int) -> NDArray[np.int64]:
    """Return lanes, without the half of their range that is added on the wire."""
    half = 1 << (bits - 1)
    most = np.float32(half - (1 if bits < 24 else half >> 24))
    scaled = np.clip(rows * np.float32(1 / step), -most, most)
    lanes: NDArray[np.int64] = np.rint(scaled).astype(np.int64)
    return lanes


def shifted(lanes: NDArray[np.int64], by: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return fixed lanes in steps that are ``2**by`` times as large, rounded to nearest, half up.

    :param lanes: Without the half of their range that is added on the wire.
    """
    by = np.minimum(by, 40)  # all of a lane's bits, and more
    return np.where(by > 0, lanes + (1 << np.maximum(by - 1, 0)) >> by, lanes)
