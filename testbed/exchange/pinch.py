"""``pinch``: embeddings broadcast by a TC program and summed up by an XDP program; see docs/pinch.md.

The process quantizes what others need into memory that it shares with the kernel, rings, sleeps, and reads the sums; everything
between is ``bpf/broadcast.bpf.c`` and ``bpf/aggregate.bpf.c``.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from testbed.collectives.transport import Counters, Datapath, Transport
from testbed.errors import CollectiveError
from testbed.exchange import pinch_maps as maps
from testbed.exchange.agreement import LEAST_EXPONENT, agree, exponent_of
from testbed.exchange.interface import Embeddings, Exchange, ExchangeSpec
from testbed.exchange.pinch_cache import Cache
from testbed.exchange.pinch_layout import RowLayout, bundle
from testbed.exchange.pinch_numbers import Numbers
from testbed.exchange.pinch_port import PinchPort
from testbed.exchange.pinch_recovery import Recovery
from testbed.exchange.pinch_tables import make_tables
from testbed.fabric.dispatch import Dispatcher
from testbed.protocol.generation import generation_after

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["Pinch"]


class Pinch(Exchange):
    """One rank. See `Exchange`."""

    name: ClassVar[str] = "pinch"
    needs: ClassVar[Datapath] = "xdp"

    def __init__(self, context: WorkerContext, spec: ExchangeSpec, transport: Transport) -> None:
        super().__init__(context, spec, transport)
        self.layout = RowLayout.plan(spec.dim, 16 if spec.group.lanes == "int16" else 32, spec.group.mtu)
        self._tables = make_tables(spec.halo, self.layout, spec.aggregation)
        self._numbers = Numbers(self.layout, spec.aggregation, self._tables.scale, halved=spec.bound is not None)
        self._cache = None if spec.bound is None else Cache(self._numbers, spec, self._tables.outgoing)
        self._generation = 0
        self._port: PinchPort | None = None
        self._failed: str | None = None
        self.exchanges = 0

    def connect(self) -> None:
        """See `Exchange.connect`."""
        group = self.spec.group
        if group.size == 1:
            return
        self._port = port = PinchPort(Dispatcher.of(self.context), self.spec, self.layout, self._tables, self._numbers)
        self._recovery = Recovery(port)
        self._numbers.reset(port.accumulators)
        self._bundles = bundle(self._tables.outgoing, self._tables.masks, self.layout.rows)
        port.address(self._bundles)
        self._open()
        self._counts = agree(self.transport, LEAST_EXPONENT, self._frames_to(), group.members).counts[:, group.rank]

    def _open(self) -> None:
        self._generation = generation_after(self._generation)
        assert self._port is not None
        self._port.open(self._generation)

    @property
    def phases(self) -> dict[str, float]:
        """See `Exchange.phases`."""
        if self._port is None:
            return self._phases
        native = self._port.seconds
        return {phase: seconds + native.get(phase, 0.0) for phase, seconds in self._phases.items()}

    def _aggregate(self, x: Embeddings, out: Embeddings) -> None:
        if self._failed:
            raise CollectiveError(f"this exchange has failed before, open it again: {self._failed}")
        port = self._port
        if port is None:
            self._alone(x, out)
            return
        try:
            exponent = self._settle(x)
            port.expect(self._counts)
            last = self._cache.last if self._cache else None
            port.send(x, self._bundles, self._numbers.factor(exponent), last)
            self._recovery.wait()
        except CollectiveError as error:
            self._failed = str(error)
            raise
        with self._timed("dequantize"):
            clear = self._cache is None
            self._numbers.collect(port.accumulators, self._tables.targets, port.banks, out, exponent, clear)
        self._open()  # others may begin before this rank does
        self.exchanges += 1

    def _settle(self, x: Embeddings) -> int:
        """Settle the scale and, with a cache, which vertices are sent.

        :returns: The exponent that all ranks use.
        """
        with self._timed("quantize"):
            absmax = self._numbers.absmax(x, self._tables.outgoing)
        own = exponent_of(absmax) if math.isfinite(absmax) else None
        if self.spec.exponent is not None:
            self._check_known(own, self.spec.exponent)
            return self.spec.exponent
        if self._cache is None:
            return self._agree(own)
        return self._settle_cached(x, own, self._cache)

    def _settle_cached(self, x: Embeddings, own: int | None, cache: Cache) -> int:
        if own is not None:
            self._choose(x, cache, cache.guess(own))
        if cache.settle(self._agree(own)):
            # Nobody's choice holds with another scale: all begin anew.
            assert self._port is not None
            self._numbers.reset(self._port.accumulators)
            self._choose(x, cache, cache.exponent)
            self._agree(own)
        cache.commit()
        return cache.exponent

    def _agree(self, own: int | None) -> int:
        """Meet the others; take in how many frames come from whom."""
        group = self.spec.group
        with self._timed("wait"):
            agreed = agree(self.transport, own, self._frames_to(), group.members)
        self._counts = agreed.counts[:, group.rank]
        return agreed.exponent

    def _check_known(self, own: int | None, exponent: int) -> None:
        if own is None or own > exponent:
            what = "that are not finite" if own is None else f"of 2**{exponent} or more, which exponent = {exponent} leaves out"
            raise CollectiveError(f"exchange: rank {self.spec.group.rank} ({self.spec.group.me.name}) has embeddings {what}")

    def _choose(self, x: Embeddings, cache: Cache, exponent: int) -> None:
        """Which vertices are sent this time."""
        assert self._port is not None
        with self._timed("quantize"):
            chosen = cache.choose(x, exponent)
            self._bundles = bundle(self._tables.outgoing[chosen], self._tables.masks[chosen], self.layout.rows)
            self._port.address(self._bundles)

    def _frames_to(self) -> NDArray[np.int64]:
        """Number of frames that go to each rank."""
        ranks = np.arange(self.spec.group.size, dtype=np.uint32)
        bundles: NDArray[np.int64] = (self._bundles.to[:, None] >> ranks & 1).sum(axis=0, dtype=np.int64)
        return bundles * self.layout.parts

    def _alone(self, x: Embeddings, out: Embeddings) -> None:
        out[:] = -np.inf if self.spec.aggregation == "max" else 0

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._phases[phase] += time.perf_counter() - started

    def counters(self) -> Counters:
        """See `Exchange.counters`."""
        if self._port is None:
            return Counters()
        table = self._port.counters()
        acks = table["acks"]
        ack_bytes = ctypes.sizeof(maps.AckFrame)
        return Counters(table["sent"] + acks, table["sent_bytes"] + acks * ack_bytes, table["resent"])

    def error_bound(self, absmax: float) -> NDArray[np.float64]:
        """Largest error of each vertex's aggregate where no embedding's element exceeds `absmax`; see `Numbers.error_bound`.

        :returns: float64 of shape (owned vertices, 1).
        """
        return self._numbers.error_bound(self.spec.halo, absmax, self.spec.bound or 0.0)

    def measures(self) -> dict[str, float]:
        """What else has been counted since `connect`: see docs/results.md."""
        if self._port is None:
            return {}
        table = self._port.counters()
        row = 8 * self.layout.words + 4
        found = {
            "redundant_bytes": float(table["unused"] * row),
            "aggregated_vertices": float(table["vertices"]),
            "aggregated_edges": float(table["edges"]),
            "acknowledgements": float(table["acks"]),
            "hub_slices": float(table["slices"]),
            "duplicates": float(table["duplicate"]),
        }
        if self._cache:
            found |= {
                "cache_hits": float(self._cache.hits),
                "cache_lookups": float(self._cache.lookups),
                "bytes_saved": float(self._cache.copies_saved * row * self.layout.parts),
            }
        return found

    def close(self) -> None:
        """See `Exchange.close`."""
        if self._port is not None:
            self._port.close()
            self._port = None
