"""Minibatches that are prepared together: sampled layer by layer, with one question to each rank
for all of them, and with the features that they need fetched once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.gnn.sampling import Block, Numbering, Rows, Vertices, addresses, key_of
from testbed.sampling.cache import FeatureCache
from testbed.sampling.graph_part import Part
from testbed.sampling.peers import Peers

__all__ = ["PARTS", "Minibatch", "Preparation", "Sampled"]

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


@dataclass(frozen=True)
class Sampled:
    """A group whose neighbourhoods have been sampled, and whose features are still needed.

    :param blocks: Of each minibatch, from the seeds outwards.
    :param needed: The vertices whose features are needed, of each rank.
    :param rows: Of each minibatch: which of these its first block's sources are.
    """

    seeds: Sequence[Vertices]
    blocks: list[list[Block]]
    needed: list[Vertices]
    rows: list[NDArray[np.int32]]


@dataclass
class Asked:
    """Counts, cumulative.

    :ivar relays: Questions for whose answers this rank has waited; `sampling_bytes`: of these and
        of answers.
    :ivar asked_vertices: Vertices that have been sampled or fetched; `repeated_vertices`: those of
        them that minibatches of a group had in common, and that were asked about once;
        `cached_vertices`: those of other ranks whose features were here.
    """

    relays: int = 0
    sampling_bytes: int = 0
    asked_vertices: int = 0
    repeated_vertices: int = 0
    cached_vertices: int = 0


@dataclass
class Preparation:
    """Prepares groups of minibatches on one rank.

    :param fanout: Neighbours sampled per vertex, from the seeds outwards, one number per layer.
    :param cache: Where features of other ranks' vertices are kept.
    :ivar seconds: In each of `PARTS`, cumulative.
    """

    part: Part
    peers: Peers
    fanout: Sequence[int]
    cache: FeatureCache | None = None
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    asked: Asked = field(default_factory=Asked)

    def __post_init__(self) -> None:
        self._numbering = Numbering(len(self.part.rows))
        self._buffer = self.part.x[:0].copy()

    def prepare(self, seeds: Sequence[Vertices], key: int) -> list[Minibatch]:
        """Sample minibatches, and fetch their features; see `sample`."""
        return self.fetch(self.sample(seeds, key))

    def sample(self, seeds: Sequence[Vertices], key: int) -> Sampled:
        """Sample minibatches.

        :param seeds: Of each minibatch: vertices that this rank owns, distinct.
        :param key: Of an epoch's draws: see `testbed.gnn.sampling.key_of`.
        :raises CollectiveError: A rank did not answer; the text names it.
        """
        targets = list(seeds)
        blocks: list[list[Block]] = [[] for _ in seeds]
        for depth, limit in enumerate(self.fanout):
            with self._timed("sampling"):
                divided, rows = self._divided(targets)
                with self._counted():
                    drawn = self.peers.sample(divided, limit, key_of(key, depth))
            with self._timed("construction"):
                for number, mine in enumerate(rows):
                    block = Block.of(targets[number], drawn.select(mine), self._numbering)
                    blocks[number].append(block)
                    targets[number] = block.sources
        with self._timed("construction"):
            return Sampled(seeds, blocks, *self._divided(targets))

    def fetch(self, group: Sampled, upcoming: Sequence[Sampled] = ()) -> list[Minibatch]:
        """Fetch the features of a group.

        :param upcoming: The next groups, for a cache that looks ahead.
        :raises CollectiveError: A rank did not answer; the text names it.
        """
        with self._timed("features"):
            places, memory = self._features(group.needed)
            if self.cache:
                vertices = np.concatenate(group.needed)
                self.cache.keep(
                    *(vertices, places, self.part.rows[vertices] < 0),
                    [np.concatenate(each.needed) for each in upcoming],
                )
        nbytes = sum(each.nbytes for each in memory)
        return [
            Minibatch(
                *(some, each[::-1], self.part.y[self.part.rows[some]]),
                *(Rows(places, mine, (*memory, self.part.x)), nbytes),
            )
            for some, each, mine in zip(group.seeds, group.blocks, group.rows, strict=True)
        ]

    def _features(
        self, needed: Sequence[Vertices]
    ) -> tuple[NDArray[np.uint64], list[NDArray[Any]]]:
        """Return where the features of vertices of each rank are, and what memory they are in,
        besides this rank's own.
        """
        if not self.cache:
            with self._counted():
                places, memory = self.peers.fetch(needed)
            return places, [memory]
        here = [self.cache.has(some) for some in needed]
        with self._counted():
            asked, memory = self.peers.fetch(
                [some[~found] for some, found in zip(needed, here, strict=True)]
            )
        found = np.concatenate(here)
        rows = self.cache.take(np.concatenate(needed)[found])
        self.asked.cached_vertices += len(rows)
        places = np.empty(len(found), np.uint64)
        places[~found] = asked
        places[found] = addresses(rows)
        return places, [memory, rows]

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
        self.asked.asked_vertices += len(distinct)
        self.asked.repeated_vertices += len(together) - len(distinct)
        divided, places = self.part.by_owner(distinct)
        ends = np.cumsum([len(each) for each in several])[:-1]
        return divided, np.split(places[numbers], ends)

    def counts(self) -> dict[str, float]:
        """Return what has been asked, cumulative."""
        return asdict(self.asked)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        peers, asked = self.peers, self.asked
        relays, sent = peers.relays, peers.bytes
        yield
        asked.relays += peers.relays - relays
        asked.sampling_bytes += peers.bytes - sent

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - started
