"""Random damage to many frames at once."""

import numpy as np
from numpy.typing import NDArray

from testbed.protocol.wire import FRAME, FRAME_BYTES

__all__ = ["FIELDS", "damage"]

_FIELDS = ((FRAME.fields or {})[name] for name in (FRAME.names or ())[3:])
FIELDS = [(offset, field.itemsize) for field, offset, *_ in _FIELDS]
"""Offsets and bytes of the header's fields."""


def damage(random: np.random.Generator, frames: NDArray[np.uint8], width: int, most: int) -> None:
    """Flip bits of frames, in their headers or, of 40 % of them, behind these; and overwrite a
    header field of another 40 %.

    :param frames: One frame a row.
    :param width: Bytes of a row in which bits may flip.
    :param most: Most bits that flip in a frame.
    """
    count = len(frames)
    rows = np.arange(count)
    flips = random.integers(0, most + 1, count)
    in_payload = random.random(count) < 0.4
    for step in range(most):
        place = np.where(
            in_payload,
            random.integers(FRAME_BYTES, width, count),
            random.integers(0, FRAME_BYTES, count),
        )
        bits = 1 << random.integers(8, size=count)
        frames[rows, place] ^= np.where(step < flips, bits, 0).astype(np.uint8)
    for row in rows[random.random(count) < 0.4]:
        place, size = FIELDS[random.integers(len(FIELDS))]
        repeat = size if random.random() < 0.5 else 1
        value = random.choice((0, 0xFF, random.integers(256)), repeat)
        frames[row, place : place + value.size] = value
