"""The numbers that a gradient holds in place of those of a real backward pass.

Element i of a rank's gradient is number i + shift of its block, which repeats, so that sums can be
checked. Pure.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK", "draw", "fill", "shift_of"]

BLOCK = 1 << 16  # elements of the numbers that a gradient repeats
SHIFT = 977  # by which they are shifted from step to step, so that no step has an earlier one's sum


def draw(seed: int, rank: int) -> NDArray[np.float32]:
    """Return a rank's block twice, so that a whole one begins at any place: shape (2 * BLOCK,)."""
    made = np.random.default_rng([seed, rank]).standard_normal(BLOCK, np.float32)
    return np.tile(made, 2)


def shift_of(step: int) -> int:
    """Return the shift of a step, counted over all epochs."""
    return step * SHIFT % BLOCK


def fill(
    out: NDArray[np.float32], draws: NDArray[np.float32], start: int, end: int, shift: int
) -> None:
    """Write elements `start` to `end` of a gradient, shape (end - start,)."""
    done = 0
    while done < end - start:
        place = (start + done + shift) % BLOCK
        count = min(end - start - done, BLOCK)
        out[done : done + count] = draws[place : place + count]
        done += count
