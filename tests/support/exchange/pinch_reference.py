"""What stands in ``pinch``'s frames, and when: payloads and changes in plain numpy.

Reference model of ``testbed/native/pinch.c``.
"""

import numpy as np
from numpy.typing import NDArray

from testbed.exchange.pinch.layout import Bundles, RowLayout
from testbed.protocol.wire import Words

__all__ = ["changed", "payloads", "rows"]


def rows(layout: RowLayout, lanes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Lanes as they stand in frames: shape (vertices, parts, words)."""
    padded = np.zeros(
        (len(lanes), layout.parts * layout.words * 64 // layout.bits), f"<i{layout.bits // 8}"
    )
    padded[:, : layout.dim] = lanes
    return padded.view(np.uint64).reshape(len(lanes), layout.parts, layout.words)


def payloads(layout: RowLayout, bundles: Bundles, lanes: NDArray[np.int64]) -> list[Words]:
    """The payloads of all frames of some bundles."""
    made, words = [], rows(layout, lanes)
    for start, end in zip(bundles.starts[:-1], bundles.starts[1:], strict=True):
        positions = bundles.order[start:end]
        for part in range(layout.parts):
            numbers = np.zeros((len(positions) + 1) // 2 * 2, np.uint32)
            numbers[: len(positions)] = positions
            if layout.parts > 1:
                numbers[1] = part
            made.append(
                np.concatenate([numbers.view(np.uint64), words[positions, part].reshape(-1)])
            )
    return made


def changed(
    lanes: NDArray[np.int64],
    last: NDArray[np.int64],
    most: int,
    age: NDArray[np.integer],
    staleness: int,
) -> NDArray[np.bool_]:
    """Which rows to send; `age` is that of before."""
    change = np.abs(lanes - last).max(axis=1, initial=0)
    return (change > most) | ((change > 0) & (age + 1 >= staleness))
