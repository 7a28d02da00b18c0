"""Minibatches that are prepared together: sampled layer by layer, with one question to each rank
for all of them, and with the features that they need fetched once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from testbed.gnn.sampling import Block, Numbering, Vertices, gather, key_of
from testbed.sampling.graph_part import Part
from testbed.sampling.peers import Peers

__all__ = ["PARTS", "Minibatch", "Preparation"]

PARTS = ("sampling", "construction", "features", "gathering")
"""The parts of preparation: drawing neighbours, here and elsewhere; making blocks; fetching
features; copying them.
"""


@dataclass(frozen=True)
class Minibatch:
    """What a step of training needs.

    :param blocks: In the order in which layers use them.
    :param x: float32, shape (sources of the first block, features).
    :param y: int64: the labels of the seeds.
    """

    seeds: Vertices
    blocks: list[Block]
    x: NDArray[np.float32]
    y: NDArray[np.int64]


@dataclass
class Preparation:
    """Prepares groups of minibatches on one rank.

    :param fanout: Neighbours sampled per vertex, from the seeds outwards, one number per layer.
    :ivar seconds: In each of `PARTS`, cumulative.
    :ivar asked: Vertices that have been sampled or fetched; `repeated`: those of them that
        minibatches of a group had in common, and that were asked about once.
    """

    part: Part
    peers: Peers
    fanout: Sequence[int]
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    asked: int = 0
    repeated: int = 0

    def __post_init__(self) -> None:
        self._numbering = Numbering(len(self.part.rows))

    def prepare(self, seeds: Sequence[Vertices], key: int) -> list[Minibatch]:
        """Sample minibatches, and fetch their features.

        :param seeds: Of each minibatch: vertices that this rank owns, distinct.
        :param key: Of an epoch's draws: see `testbed.gnn.sampling.key_of`.
        :raises CollectiveError: A rank did not answer; the text names it.
        """
        targets = list(seeds)
        blocks: list[list[Block]] = [[] for _ in seeds]
        for depth, limit in enumerate(self.fanout):
            with self._timed("sampling"):
                divided, rows = self._divided(targets)
                drawn = self.peers.sample(divided, limit, key_of(key, depth))
            with self._timed("construction"):
                for number, mine in enumerate(rows):
                    block = Block.of(targets[number], drawn.select(mine), self._numbering)
                    blocks[number].append(block)
                    targets[number] = block.sources
        with self._timed("features"):
            divided, rows = self._divided(targets)
            places, memory = self.peers.fetch(divided)
        with self._timed("gathering"):
            made = [
                Minibatch(some, each[::-1], self._features(places, mine), self._labels(some))
                for some, each, mine in zip(seeds, blocks, rows, strict=True)
            ]
        del memory  # until here, places lead there
        return made

    def _divided(self, several: Sequence[Vertices]) -> tuple[list[Vertices], list[Vertices]]:
        """Divide the distinct ones of several lists of vertices among their owners.

        :returns: Those of each rank; and for each list, the places of its vertices among these.
        """
        together = np.concatenate(several)
        distinct, numbers = self._numbering.number(together)
        self.asked += len(distinct)
        self.repeated += len(together) - len(distinct)
        divided, places = self.part.by_owner(distinct)
        ends = np.cumsum([len(each) for each in several])[:-1]
        return divided, np.split(places[numbers], ends)

    def _features(self, places: NDArray[np.uint64], rows: NDArray[np.int32]) -> NDArray[np.float32]:
        found = np.empty((len(rows), self.part.x.shape[1]), np.float32)
        gather(places, rows, found)
        return found

    def _labels(self, seeds: Vertices) -> NDArray[np.int64]:
        return self.part.y[self.part.rows[seeds]]

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - started
