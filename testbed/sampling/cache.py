"""`FeatureCache`: features of other ranks' vertices that stay here, and which ones.

``next-use``: since later groups are sampled before their features are needed, a rank knows which
vertices come next, and keeps these (Belady, IBM Systems Journal 5(2), 1966). ``inclusion``: those
that a minibatch most probably needs, chosen once (SALIENT++: Kaler et al., MLSys 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.gnn.sampling import Rows, Vertices, addresses

__all__ = ["FeatureCache", "inclusion"]

_UNKNOWN = np.iinfo(np.int32).max


class FeatureCache:
    """Rows of features by vertex.

    :param rows: How many it has room for.
    :param like: Rows of the same type and length.
    :param vertices: Vertices of the graph.
    :param fixed: The only vertices that it keeps. Without them, it keeps those that are needed
        soonest, and then those that have been needed most often so far.
    """

    def __init__(
        self, rows: int, like: NDArray[Any], vertices: int, fixed: Vertices | None = None
    ) -> None:
        self._store = np.empty((rows, like.shape[1]), like.dtype)
        self._slots = np.full(vertices, -1, np.int32)
        self._kept = np.empty(0, np.int32)
        self._when = np.full(vertices, _UNKNOWN, np.int32)
        self._uses = np.zeros(vertices, np.int32)
        self._wanted: NDArray[np.bool_] | None = None
        if fixed is not None:
            self._wanted = np.zeros(vertices, np.bool_)
            self._wanted[fixed[:rows]] = True

    @property
    def looks_ahead(self) -> bool:
        """Whether it makes use of what comes next."""
        return self._wanted is None

    @property
    def nbytes(self) -> int:
        """Bytes of rows that it has room for."""
        return self._store.nbytes

    def has(self, vertices: Vertices) -> NDArray[np.bool_]:
        """Whether each one's features are here."""
        return self._slots[vertices] >= 0

    def take(self, vertices: Vertices) -> NDArray[Any]:
        """Return copies of the features of vertices that are here."""
        out = np.empty((len(vertices), self._store.shape[1]), self._store.dtype)
        Rows(addresses(self._store), self._slots[vertices], (self._store,)).gather(out)
        return out

    def keep(
        self,
        vertices: Vertices,
        places: NDArray[np.uint64],
        foreign: NDArray[np.bool_],
        upcoming: Sequence[Vertices] = (),
    ) -> None:
        """Choose what stays, of what is here and of what has just been needed.

        :param vertices: These; `places`: the addresses of their features.
        :param foreign: Of each of these: whether another rank owns it.
        :param upcoming: What later groups will need, the next one first.
        """
        new = np.flatnonzero(foreign & (self._slots[vertices] < 0)).astype(np.int32)
        if self._wanted is not None:
            self._put(vertices, places, new[self._wanted[vertices[new]]])
            return
        self._uses[vertices] += 1
        for when, some in reversed(list(enumerate(upcoming))):
            self._when[some] = when
        candidates = np.concatenate([vertices[new], self._kept])
        order = np.lexsort((-self._uses[candidates], self._when[candidates]))[: len(self._store)]
        for some in upcoming:
            self._when[some] = _UNKNOWN
        stays = np.zeros(len(candidates), np.bool_)
        stays[order] = True
        gone = self._kept[~stays[len(new) :]]
        self._slots[gone] = -1
        self._kept = self._kept[stays[len(new) :]]
        self._put(vertices, places, new[stays[: len(new)]])

    def _put(self, vertices: Vertices, places: NDArray[np.uint64], new: NDArray[np.int32]) -> None:
        """Copy the features of some of `vertices` into free rows."""
        free = np.ones(len(self._store), np.bool_)
        free[self._slots[self._kept]] = False
        slots = np.flatnonzero(free)[: len(new)].astype(np.int32)
        fetched = np.empty((len(new), self._store.shape[1]), self._store.dtype)
        Rows(places, new, ()).gather(fetched)
        self._store[slots] = fetched
        self._slots[vertices[new]] = slots
        self._kept = np.concatenate([vertices[new], self._kept])


def inclusion(
    indptr: NDArray[np.int64],
    indices: Vertices,
    training: Vertices,
    batch: int,
    fanout: Sequence[int],
) -> NDArray[np.float64]:
    """Return the probability with which a minibatch needs each vertex: SALIENT++'s analysis, in
    which draws are independent.

    :param indptr: A vertex v draws from ``indices[indptr[v]:indptr[v + 1]]``.
    :param training: The vertices that seeds are drawn from; a minibatch has `batch` of them.
    :param fanout: Neighbours sampled per vertex, from the seeds outwards, one number per layer.
    """
    n, degrees = len(indptr) - 1, np.diff(indptr)
    reached = np.zeros(n)
    reached[training] = min(1.0, batch / max(len(training), 1))
    absent = np.log1p(-np.minimum(reached, _ALMOST))
    for limit in fanout:
        drawn = reached * np.minimum(1.0, limit / np.maximum(degrees, 1))
        each = np.repeat(np.log1p(-np.minimum(drawn, _ALMOST)), degrees)
        absent += np.bincount(indices, each, minlength=n)
        reached = -np.expm1(absent)
    return reached


_ALMOST = 1 - 1e-12  # a vertex that is surely drawn
