"""Carry-free lanes: float32 values as biased unsigned integers, several per 64-bit word, so that
one plain addition sums them all.

With N ranks and lanes of b bits, a value becomes ``u = rint(x * scale) + bias`` with ``bias = 2**b
// (2 * N)``, so that ``0 < u < 2 * bias`` and N of them add up to less than ``2**b``: no lane
carries into its neighbour. The scale is a power of two, so the product is exact and rounding is the
only error::

    step = 2**(E - h),  h = floor(log2(bias)),  E: exponent that the group has agreed on
    |sum of x - result| <= N * step / 2 + rounding of the result to float32

The group agrees on the exponent of its largest magnitude (SwitchML, NSDI 2021, section 3.7).
Reference model of ``testbed/native/lanes.h``, which `testbed.comm.lanes` calls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["EXPONENTS", "Lanes"]

Bits = Literal[16, 32]
_BITS: dict[str, Bits] = {"int16": 16, "int32": 32}
_FLOAT32_MAX = float(np.finfo(np.float32).max)

EXPONENTS = range(-126, 130)
"""Exponents that a group may agree on: from the smallest normal step to the largest magnitude of a
sum.
"""


@dataclass(frozen=True)
class Lanes:
    """The format of lanes for a number of ranks, and the arithmetic in plain numpy.

    :param bits: 16 or 32.
    :param ranks: Number of summands, 1..32.
    """

    bits: Bits
    ranks: int

    @classmethod
    def named(cls, name: str, ranks: int) -> Self:
        """The format that ``int16`` or ``int32`` stands for.

        :raises KeyError: No format has this name.
        """
        return cls(_BITS[name], ranks)

    @cached_property
    def bias(self) -> int:
        """The offset that makes lanes unsigned; half of a lane's share of the sum."""
        return int(2**self.bits // (2 * self.ranks))

    @cached_property
    def limit(self) -> int:
        """Largest magnitude of a quantized value."""
        return self.bias - 1

    @cached_property
    def fraction_bits(self) -> int:
        """h: a value of magnitude below ``2**E`` is scaled to below ``2**h``."""
        return self.bias.bit_length() - 1

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Type of a lane in memory, little endian."""
        return np.dtype(f"<u{self.bits // 8}")

    @property
    def bytes(self) -> int:
        """Bytes of a lane."""
        return self.bits // 8

    def scale(self, exponent: int) -> float:
        """The factor for values: ``2**(h - E)``."""
        return math.ldexp(1.0, self.fraction_bits - exponent)

    def step(self, exponent: int) -> float:
        """Distance of neighbouring quantized values: ``2**(E - h)``."""
        return math.ldexp(1.0, exponent - self.fraction_bits)

    @cached_property
    def least_exponent(self) -> int:
        """The smallest exponent: below it the scale would overflow float32. Smaller values lose
        bits, as subnormals do anyway.
        """
        return self.fraction_bits - 126

    def exponent_for(self, absmax: float) -> int:
        """The smallest exponent at which a magnitude is not clamped."""
        if absmax == 0.0:
            return self.least_exponent
        exponent = max(math.frexp(absmax)[1], self.least_exponent)
        return exponent if round(absmax * self.scale(exponent)) <= self.limit else exponent + 1

    def error_bound(self, exponent: int, absmax: float) -> float:
        """Largest absolute error of an element of the sum if no rank's value exceeds ``absmax``.

        Half a step per rank, and half a unit in the last place of the float32 result.
        """
        rounding = self.ranks * self.step(exponent) / 2
        return rounding + (self.ranks * absmax + rounding) * 2.0**-24

    def surely_overflows(
        self, sums: NDArray[np.unsignedinteger], exponent: int
    ) -> NDArray[np.bool_]:
        """Whether a sum exceeds float32 even if the rounding of its summands, up to half a step
        each, is discounted.
        """
        integers = np.abs(sums.astype(np.int64) - self.ranks * self.bias)
        least = (integers - self.ranks / 2) * self.step(exponent)
        found: NDArray[np.bool_] = least > _FLOAT32_MAX
        return found

    def may_overflow(self, exponent: int) -> bool:
        """Can a sum of magnitudes below ``2**exponent`` exceed float32?"""
        return self.ranks * math.ldexp(1.0, exponent) > _FLOAT32_MAX

    def quantize(self, values: NDArray[np.float32], exponent: int) -> NDArray[np.unsignedinteger]:
        """float32 to lanes of the same shape, clamped at the limit; NaN becomes the limit."""
        with np.errstate(over="ignore"):  # values beyond float32 are clamped like the rest
            scaled = values * np.float32(self.scale(exponent))
        # A float32 cannot hold every limit of 32-bit lanes. The next smaller one is good enough,
        # and the C code uses it as well.
        clamped = np.clip(np.where(np.isnan(scaled), self.clamp, scaled), -self.clamp, self.clamp)
        lanes: NDArray[np.unsignedinteger] = (np.rint(clamped).astype(np.int64) + self.bias).astype(
            self.dtype
        )
        return lanes

    @cached_property
    def clamp(self) -> np.float32:
        """The largest float32 that rounds to no more than the limit."""
        value = np.float32(self.limit)
        return value if int(value) <= self.limit else np.nextafter(value, np.float32(0))

    def dequantize(self, sums: NDArray[np.unsignedinteger], exponent: int) -> NDArray[np.float32]:
        """Sums of all ranks' lanes to float32, of the same shape."""
        integers = sums.astype(np.int64) - self.ranks * self.bias
        return integers.astype(np.float32) * np.float32(self.step(exponent))
