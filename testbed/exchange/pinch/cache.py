"""What a sender remembers in order not to send vertices that have hardly changed.

Receivers keep their accumulators from one exchange to the next, and frames carry the change of a
vertex since it was last sent, as integers, so that no error accumulates. This needs one scale for
all differences; when magnitudes outgrow it, or become so small that it wastes bits, all ranks start
over.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.exchange.interface import Embeddings, ExchangeSpec
from testbed.exchange.pinch.fixed_point import Numbers

__all__ = ["SLACK", "Cache"]

SLACK = 3
"""Powers of two by which magnitudes may fall below the scale before a finer one is chosen."""


class Cache:
    """The cache of one rank.

    :param outgoing: int32: positions of the vertices that other ranks need.
    """

    def __init__(self, numbers: Numbers, spec: ExchangeSpec, outgoing: NDArray[np.int32]) -> None:
        assert spec.bound is not None
        self._numbers = numbers
        self._bound = spec.bound
        self._staleness = spec.staleness
        self._outgoing = outgoing
        rows = spec.halo.sizes[spec.halo.rank]
        #: int32, shape (rows, dim): the lanes last sent to others.
        self.last = np.zeros((rows, spec.dim), np.int32)
        self._age = np.zeros(rows, np.uint32)
        self._copies = np.zeros(rows, np.int64)
        for positions in spec.halo.sends:
            self._copies[positions] += 1
        self._chosen: NDArray[np.bool_] = np.zeros(0, bool)
        self.hits = self.lookups = self.copies_saved = 0

    def forget(self) -> None:
        """Forget everything: with a new scale, the values that other ranks hold are invalid."""
        self.last[:] = 0
        self._age[:] = 0

    def choose(self, x: Embeddings, exponent: int) -> NDArray[np.bool_]:
        """Choose which of the outgoing vertices to send."""
        self._chosen = self._numbers.changed(
            x, self._outgoing, exponent, self.last, self._bound, self._age, self._staleness
        )
        return self._chosen

    def commit(self) -> None:
        """Record that the vertices chosen last have been sent."""
        kept = self._outgoing[~self._chosen]
        self._age[self._outgoing] += 1
        self._age[self._outgoing[self._chosen]] = 0
        self.lookups += len(self._chosen)
        self.hits += len(kept)
        self.copies_saved += int(self._copies[kept].sum())
