"""Minibatches that are prepared together: sampled layer by layer, with one question to each rank
for all of them, and with the features that they need fetched once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.gnn.sampling import Block, Numbering, Rows, Vertices, key_of
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
    :param y: int64: the labels of the seeds.
    :param rows: The features of the first block's sources; `fetched`: bytes of those that its group
        has fetched.
    """

    seeds: Vertices
    blocks: list[Block]
    y: NDArray[np.int64]
    rows: Rows
    fetched: int

    @property
    def nbytes(self) -> int:
        """Bytes of its blocks."""
        return sum(
            block.sources.nbytes + block.indptr.nbytes + block.senders.nbytes
            for block in self.blocks
        )


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
        self._left_out: dict[str, float] = {}
        self._buffer = self.part.x[:0].copy()

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
        return [
            Minibatch(
                *(some, each[::-1], self._labels(some)),
                *(Rows(places, mine, (memory, self.part.x)), memory.nbytes),
            )
            for some, each, mine in zip(seeds, blocks, rows, strict=True)
        ]

    def gathered(self, minibatch: Minibatch) -> NDArray[Any]:
        """Return the features of the first block's sources side by side, shape (sources, features),
        in memory that the next call uses again.
        """
        with self._timed("gathering"):
            x, count = self.part.x, len(minibatch.rows)
            if len(self._buffer) < count:
                self._buffer = np.empty((count + count // 8, x.shape[1]), x.dtype)
            found = self._buffer[:count]
            minibatch.rows.gather(found)
            return found

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

    def _labels(self, seeds: Vertices) -> NDArray[np.int64]:
        return self.part.y[self.part.rows[seeds]]

    def counts(self) -> dict[str, float]:
        """Return what has been asked, cumulative: questions for whose answers this rank has waited,
        their bytes, and vertices.
        """
        left_out = self._left_out
        return {name: count - left_out.get(name, 0.0) for name, count in self._all().items()}

    def _all(self) -> dict[str, float]:
        return {
            "relays": self.peers.relays,
            "sampling_bytes": self.peers.bytes,
            "asked_vertices": self.asked,
            "repeated_vertices": self.repeated,
        }

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """What happens inside neither takes time nor counts."""
        seconds, before = dict(self.seconds), self._all()
        yield
        self.seconds.update(seconds)
        for name, count in self._all().items():
            self._left_out[name] = self._left_out.get(name, 0.0) + count - before[name]

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - started
