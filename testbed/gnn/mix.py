"""Hashes of whole arrays: a draw depends on its purpose, not on the order of draws."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["GOLDEN", "mix", "mix32"]

GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: multiples of it are spread evenly (Knuth, TAOCP volume 3,
section 6.4).
"""


def mix(x: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """Mix each number by splitmix64's finalizer; the array form of `testbed.faults.fate.mix`."""
    y = x.astype(np.uint64)
    y = (y ^ y >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    y = (y ^ y >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return y ^ y >> np.uint64(31)


def mix32(x: NDArray[np.uint32]) -> None:
    """Mix each number in place with MurmurHash3's 32-bit finalizer (Appleby, 2011), where many
    hashes are needed fast.
    """
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
