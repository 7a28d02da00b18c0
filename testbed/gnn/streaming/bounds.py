"""Contiguous ranges of vertices with the same number of edges each."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["exact_bounds", "sampled_bounds"]


def exact_bounds(degrees: NDArray[Any], parts: int) -> NDArray[np.uint64]:
    """Bounds of ranges of vertices with the same number of edges each, as near as possible."""
    sums = np.cumsum(degrees, dtype=np.int64)
    wanted = int(sums[-1] if len(sums) else 0) * np.arange(1, parts) / parts
    inner = np.searchsorted(sums, wanted, side="left") + 1
    if not wanted.any():  # there are no edges
        inner = len(degrees) * np.arange(1, parts) // parts
    return np.concatenate([[0], inner, [len(degrees)]]).astype(np.uint64)


def sampled_bounds(sample: NDArray[np.uint32], num_vertices: int, parts: int) -> NDArray[np.uint64]:
    """The same, estimated from a sample of the ends that are counted."""
    ordered = np.sort(sample).astype(np.uint64)
    if len(ordered):
        inner = ordered[len(ordered) * np.arange(1, parts) // parts]
    else:
        inner = (num_vertices * np.arange(1, parts) // parts).astype(np.uint64)
    ends = [np.zeros(1, np.uint64), inner, np.full(1, num_vertices, np.uint64)]
    return np.concatenate(ends).astype(np.uint64)
