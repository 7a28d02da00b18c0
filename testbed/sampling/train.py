"""Training of one rank that owns a part of the graph: prepare, forward, backward, sum gradients,
update.

What a vertex draws depends on seed and epoch alone, and a rank's minibatches on its own training
vertices. So the way in which they are prepared changes nothing of the result.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from testbed.comm.backend import Backend
from testbed.core.errors import TestbedError
from testbed.core.registry import load
from testbed.gnn.models import MODELS
from testbed.gnn.native_sage import NativeSage, computes_halves
from testbed.gnn.options import MinibatchSpec
from testbed.gnn.result import EpochResult
from testbed.gnn.sampling import Block, Rows, Vertices, addresses, key_of
from testbed.gnn.train import DROPOUT, MINIBATCH, SHUFFLE, TEST, VALIDATION, Minibatches
from testbed.protocol.rows import unpack_bfloat16
from testbed.sampling.cache import FeatureCache
from testbed.sampling.feed import Feed
from testbed.sampling.graph_part import Part
from testbed.sampling.groups import PARTS, Minibatch, Preparation
from testbed.sampling.options import DistributedModelSpec, SamplingTerms
from testbed.sampling.peers import Peers
from testbed.sampling.registry import Way

__all__ = ["SampledTrainer"]


def _network(spec: DistributedModelSpec, features: int, classes: int) -> torch.nn.Module:
    kind, halves, types = MODELS[spec.name], spec.precision == "bfloat16", {}
    if spec.kernels == "native":
        types["rows_of"] = torch.bfloat16 if halves else torch.float32
        types["kind"] = torch.bfloat16 if halves and computes_halves() else torch.float32
    make = load((kind.native if spec.kernels == "native" else kind.sampled) or "")
    made: torch.nn.Module = make(spec, features, classes, **types)
    return made


def _widened(x: NDArray[Any]) -> torch.Tensor:
    """Return features as float32."""
    return torch.from_numpy(unpack_bfloat16(x) if x.dtype == np.uint16 else x)


class SampledTrainer(Minibatches):
    """One rank's model, and its share of the training vertices.

    :param part: What the rank owns.
    :param share: Training vertices that each rank uses in an epoch: as many as the one with the
        fewest has.
    :param seed: The same on all ranks.
    :param likely: Vertices of other ranks, the most probably needed ones first, for a cache that
        goes by that.
    :ivar together: Minibatches of a group.
    """

    def __init__(
        self,
        part: Part,
        classes: int,
        share: int,
        way: Way,
        terms: SamplingTerms,
        model: DistributedModelSpec,
        training: MinibatchSpec,
        seed: int,
        likely: Vertices | None = None,
    ) -> None:
        torch.set_num_threads(1)  # ranks share the machine's cores
        torch.manual_seed(seed)
        self.part, self.share, self.way, self.terms, self.spec = part, share, way, terms, model
        super().__init__(
            _network(model, part.x.shape[1], classes), training, part.rank, part.world, seed
        )
        self.together = (terms.group or 0) if way.together else 1
        self.preparation: Preparation | None = None
        self._evaluation: Preparation | None = None
        self._feed: Feed | None = None
        self._cache = self._made_cache(likely)

    def _made_cache(self, likely: Vertices | None) -> FeatureCache | None:
        terms, x = self.terms, self.part.x
        policy = terms.policy if self.way.policy is None else self.way.policy
        rows = min((terms.cache << 20) // max(x.strides[0], 1), len(self.part.rows) - len(x))
        if not policy or not rows:
            return None
        fixed = likely if policy == "inclusion" else None
        return FeatureCache(rows, x, len(self.part.rows), fixed)

    def join(self, peers: Peers) -> None:
        """From now on, ask these."""
        fanout = self.spec.fanout
        self.preparation = Preparation(self.part, peers, fanout, self._cache)
        self._evaluation = Preparation(self.part, peers, fanout)

    def warm_up(self) -> None:
        """Compute and discard a gradient of vertices without neighbours."""
        seeds = self.part.train[: self.training.batch_size]
        block = Block(seeds, len(seeds), np.zeros(len(seeds) + 1, np.int64), seeds[:0])
        x, numbers = self.part.x, self.part.rows[seeds]
        found = Rows(addresses(x), numbers, (x,)) if self._native else _widened(x[numbers])
        blocks = [block] * len(self.spec.fanout)
        self.differentiate(self._loss(found, blocks, self.part.y[numbers], 0, 0))

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """See `Minibatches.batches`; begins to prepare them."""
        self._end()
        order = self.rng(SHUFFLE, epoch, 0, self.rank).permutation(self.part.train)
        batches = self.cut(order[: self.share])
        seeds = [batch.astype(np.int32) for batch in batches]
        key = key_of(self.seed, MINIBATCH, epoch)
        if not self.together:
            self.together = self._room(seeds[0], key, len(seeds))
        assert self.preparation
        sample, fetch = self.preparation.sample, self.preparation.fetch
        self._feed = Feed(
            lambda some: sample(some, key),
            fetch,
            seeds,
            self.together,
            self.way.ahead and self.terms.overlap,
            self.terms.horizon if self._cache and self._cache.looks_ahead else 0,
        )
        return batches

    def _room(self, seeds: Vertices, key: int, most: int) -> int:
        """Return how many minibatches the memory has room for, twice, by the size of one: others
        are used meanwhile. Features that they have in common are there once.
        """
        assert self._evaluation
        (one,) = self._evaluation.prepare([seeds], key)
        size = one.nbytes + one.fetched
        return max(1, min(most, (self.terms.memory << 20) // (2 * size)))

    def loss(self, epoch: int, step: int, seeds: NDArray[np.int64]) -> torch.Tensor:
        """Return the mean cross-entropy of a minibatch, ready for backward."""
        assert self._feed
        with self._timed("sampling"):
            minibatch = self._feed.take()
            assert self.preparation
            x = self._features(minibatch, self.preparation)
        with self._timed("forward"):
            return self._loss(x, minibatch.blocks, minibatch.y, epoch, step)

    def _loss(
        self,
        x: torch.Tensor | Rows,
        blocks: Sequence[Block],
        y: NDArray[np.int64],
        epoch: int,
        step: int,
    ) -> torch.Tensor:
        if self._native:
            self.model.begin(key_of(self.seed, DROPOUT, epoch, step))
        else:
            torch.manual_seed(int(self.rng(DROPOUT, epoch, step, self.rank).integers(1 << 62)))
        logits = self.model.train()(x, blocks)
        return functional.cross_entropy(logits, torch.from_numpy(y))

    @property
    def _native(self) -> bool:
        return isinstance(self.model, NativeSage)

    def _features(self, minibatch: Minibatch, preparation: Preparation) -> torch.Tensor | Rows:
        """Return what the model reads."""
        return minibatch.rows if self._native else _widened(preparation.gathered(minibatch))

    def epoch(
        self, backend: Backend, epoch: int, on_step: Callable[[int, int], None] | None = None
    ) -> EpochResult:
        """Train for one epoch; see `Minibatches.epoch`.

        The result also has the time of each part of preparation, whichever thread did it, and what
        was asked.
        """
        preparation = self.preparation
        if preparation is None:
            raise TestbedError(f"training: rank {self.rank} has no connection to the others")
        before = dict(preparation.seconds), preparation.counts()
        native = self.model if isinstance(self.model, NativeSage) else None
        allocations = native.allocations if native else 0
        try:
            result = super().epoch(backend, epoch, on_step)
        finally:
            self._end()
        spent = {part: preparation.seconds[part] - before[0][part] for part in PARTS}
        times = {f"prepare_{part}": seconds for part, seconds in spent.items()}
        times["preparation_time"] = sum(spent.values())
        counts = {name: n - before[1][name] for name, n in preparation.counts().items()}
        counts["group"] = self.together
        if self._cache:
            counts["cache_bytes"] = self._cache.nbytes
        counts["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        if native:
            counts["allocations"] = native.allocations - allocations
        return replace(result, times=result.times | times, counts=result.counts | counts)

    @torch.no_grad()
    def validate(self, epoch: int) -> tuple[int, int]:
        """See `Minibatches.validate`: from sampled neighbourhoods, of the vertices that this rank
        owns. It counts as no preparation.
        """
        return self._right(self.part.val, key_of(self.seed, VALIDATION, epoch))

    def test(self) -> tuple[int, int]:
        """Return the numbers of correct and of all predictions for the test vertices that this rank
        owns, from sampled neighbourhoods.
        """
        return self._right(self.part.test, key_of(self.seed, TEST))

    def test_accuracy(self) -> float | None:
        """See `Minibatches.test_accuracy`: of this rank's vertices alone."""
        correct, of = self.test()
        return correct / of if of else None

    @torch.no_grad()
    def _right(self, vertices: Vertices, key: int) -> tuple[int, int]:
        assert self._evaluation
        self.model.eval()
        correct = 0
        for first in range(0, len(vertices), self.training.batch_size):
            seeds = vertices[first : first + self.training.batch_size]
            (made,) = self._evaluation.prepare([seeds], key)
            features = self._features(made, self._evaluation)
            correct += int((self.model(features, made.blocks).argmax(1).numpy() == made.y).sum())
        return correct, len(vertices)

    def _end(self) -> None:
        if self._feed:
            feed, self._feed = self._feed, None
            with suppress(TestbedError):
                feed.close()
