"""Partial sums as fixed-point rows: each travels divided by a power of two, so that it has the
range of a vertex's row, and is added that many times. Pure.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from testbed.exchange.halo import Halo
from testbed.exchange.interface import Aggregation

__all__ = ["scaled_sums", "shifts"]


def shifts(
    summands: NDArray[np.integer], reach: NDArray[np.float64] | None = None
) -> NDArray[np.int64]:
    """The smallest e such that a row divided by ``2**e`` exceeds no power of two that bounds its
    summands.

    :param summands: How many vertices each row sums up.
    :param reach: The sum of the magnitudes of their weights; None: all are 1. Such sums are within
        their number times the power of two even when rounded, because that product is itself a
        float32, and rounding is monotonic.
    """
    bound = summands.astype(np.float64)
    if reach is not None:
        # Products and sums of float32 may be too large by this much, relatively (Higham, Accuracy
        # and Stability of Numerical Algorithms, 2nd ed., section 3.1).
        bound = reach * (1 + np.where(summands > 1, summands * 2.0**-23, 0.0))
    fraction, exponent = np.frexp(bound)
    return np.where(fraction == 0.5, exponent - 1, exponent).astype(np.int64)


def scaled_sums(halo: Halo, aggregation: Aggregation) -> tuple[Halo, Aggregation]:
    """Return the halo and aggregation whose rows have the range of embeddings: a sum becomes a
    weighted sum, whose weights are the powers of two by which partial sums have been divided.

    Maxima, and halos without partial sums, stay as they are.
    """
    sums = halo.sums
    if sums is None or aggregation == "max":
        return halo, aggregation
    weighted = aggregation == "weighted"
    count, others = np.diff(sums.indptr), sums.halo_summands
    of_rows = shifts(count, sums.reach if weighted else None)
    of_halo = shifts(others, sums.halo_reach if weighted else None)
    one = np.ones(1, np.float32)
    own = sums.weights if weighted and sums.weights is not None else one
    received = halo.weights if weighted and halo.weights is not None else one
    divided = np.ldexp(own, -np.repeat(of_rows, count)).astype(np.float32)
    multiplied = np.ldexp(received, of_halo[halo.indices]).astype(np.float32)
    return replace(halo, sums=replace(sums, weights=divided), weights=multiplied), "weighted"
