"""Random graphs distributed over ranks, and the reference of what exchanges aggregate, in float64.
Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.exchange.cover import cover_halos
from testbed.exchange.halo import Halo, make_halos
from testbed.exchange.interface import Aggregation
from testbed.exchange.options import HaloChoice

__all__ = ["UNIT", "Partitioned", "draw_partitioned", "embeddings"]

UNIT = 2.0**-24  # of rounding to float32


@dataclass(frozen=True)
class Partitioned:
    """A graph whose vertices are distributed over ranks; arrays as in `make_halos`."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    weights: NDArray[np.float32]
    owner: NDArray[np.int32]
    world: int

    @cached_property
    def halos(self) -> tuple[Halo, ...]:
        """Each rank's part."""
        return make_halos(self.indptr, self.indices, self.owner, self.world, self.weights)

    @cached_property
    def covers(self) -> tuple[Halo, ...]:
        """The same where a minimum vertex cover travels; see `cover_halos`."""
        return cover_halos(self.halos)

    def halos_of(self, choice: HaloChoice) -> tuple[Halo, ...]:
        """Each rank's part, by what travels."""
        return self.covers if choice == "cover" else self.halos

    @cached_property
    def remote(self) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float64]]:
        """Targets, sources and weights of the entries between different ranks."""
        target = np.repeat(np.arange(len(self.owner)), np.diff(self.indptr))
        chosen = self.owner[target] != self.owner[self.indices]
        return target[chosen], self.indices[chosen], self.weights[chosen].astype(np.float64)

    def split(self, x: NDArray[Any]) -> list[NDArray[Any]]:
        """Rows of all vertices by the rank that owns them."""
        return [np.ascontiguousarray(x[halo.owned]) for halo in self.halos]

    def aggregates(
        self, x: NDArray[np.float32], aggregation: Aggregation
    ) -> list[NDArray[np.float64]]:
        """What each rank's `aggregate` must return, up to rounding.

        :param x: Shape (vertices, dim): all ranks' embeddings.
        """
        target, source, weight = self.remote
        if aggregation == "max":
            whole = np.full(x.shape, -np.inf)
            np.maximum.at(whole, target, x[source].astype(np.float64))
            return self.split(whole)
        return self.split(
            self._sums(
                x.astype(np.float64), weight if aggregation == "weighted" else np.ones(len(weight))
            )
        )

    def float32_bounds(
        self, x: NDArray[np.float32], aggregation: Aggregation, share: float = 0.0
    ) -> list[NDArray[np.float64]]:
        """Largest error of each of these if it is computed in float32, in any order.

        :param share: The error with which elements travel, as a share of the largest magnitude of
            their row, which may be a partial sum.

        ``gamma(n) * sum of magnitudes`` for n products and their sum (Higham, Accuracy and
        Stability of Numerical Algorithms, 2nd ed., section 3.1).
        """
        target, _, weight = self.remote
        magnitude = np.abs(weight) if aggregation == "weighted" else np.ones(len(weight))
        absolute = np.abs(x.astype(np.float64))
        largest = np.broadcast_to(absolute.max(axis=1, keepdims=True), x.shape)
        travelling = share * self._sums(largest, magnitude) if share else np.zeros(x.shape)
        if aggregation == "max":
            return self.split(travelling)
        k = UNIT * np.bincount(target, minlength=len(self.owner))[:, None]
        return self.split(travelling + k / (1 - k) * self._sums(absolute, magnitude))

    def _sums(self, x: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
        target, source, _ = self.remote
        whole = np.zeros(x.shape)
        np.add.at(whole, target, weight[:, None] * x[source])
        return whole


def draw_partitioned(
    seed: int,
    vertices: int,
    entries: int,
    world: int,
    empty: Sequence[int] = (),
    aloof: Sequence[int] = (),
    hub: int = 0,
) -> Partitioned:
    """Draw a graph, uniformly, with weights of either sign and owners.

    :param entries: Adjacency entries.
    :param empty: Ranks that own nothing.
    :param aloof: Ranks that own vertices without a neighbour elsewhere.
    :param hub: Additional entries of vertex 0.
    """
    rng = np.random.default_rng([seed, vertices, entries, world])
    owner = rng.choice([rank for rank in range(world) if rank not in empty], vertices).astype(
        np.int32
    )
    target = np.concatenate([rng.integers(0, vertices, entries), np.zeros(hub, np.int64)])
    source = rng.integers(0, vertices, entries + hub).astype(np.int32)
    kept = (owner[target] == owner[source]) | ~(
        np.isin(owner[target], aloof) | np.isin(owner[source], aloof)
    )
    target, source = target[kept], source[kept]
    order = np.argsort(target, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(target, minlength=vertices))])
    weights = rng.uniform(-1, 1, len(order)).astype(np.float32)
    return Partitioned(indptr, source[order], weights, owner, world)


def embeddings(seed: int, graph: Partitioned, dim: int) -> NDArray[np.float32]:
    """Draw embeddings of all vertices, with widely different magnitudes."""
    rng = np.random.default_rng([seed, dim])
    shape = len(graph.owner), dim
    return rng.standard_normal(shape, np.float32) * np.exp2(rng.integers(-8, 9, shape)).astype(
        np.float32
    )
