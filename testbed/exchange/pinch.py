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
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from testbed.collectives.transport import Counters, Datapath, Transport
from testbed.errors import CollectiveError
from testbed.exchange import pinch_maps as maps
from testbed.exchange.agreement import agree, exponent_of
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

_BLOCKS = 4
"""Parts in which a rank's frames are published: while the kernel sends one, the process quantizes the next."""


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
        if self.spec.group.size == 1:
            return
        self._port = port = PinchPort(Dispatcher.of(self.context), self.spec, self.layout, self._tables)
        self._recovery = Recovery(port)
        self._numbers.reset(port.accumulators)
        self._bundles = bundle(self._tables.outgoing, self._tables.masks, self.layout.rows)
        port.address(self._bundles)
        agree(self.transport, 0, np.zeros(self.spec.group.size, np.int64), self.spec.group.members)

    def _aggregate(self, x: Embeddings, out: Embeddings) -> None:
        if self._failed:
            raise CollectiveError(f"this exchange has failed before, open it again: {self._failed}")
        port = self._port
        if port is None:
            self._alone(x, out)
            return
        try:
            with self._timed("quantize"):
                absmax = self._numbers.absmax(x)
                exponent = exponent_of(absmax) if math.isfinite(absmax) else None
            exponent = self._enter(x, exponent)
            self._send(x, exponent)
            with self._timed("wait"):
                self._recovery.wait()
            with self._timed("dequantize"):
                clear = self._cache is None
                self._numbers.collect(port.accumulators, self._tables.targets, port.banks, out, exponent, clear)
        except CollectiveError as error:
            self._failed = str(error)
            raise
        self.exchanges += 1

    def _enter(self, x: Embeddings, exponent: int | None) -> int:
        """Meet the others. From here on frames come in.

        :returns: The exponent that all use.
        """
        port, group = self._port, self.spec.group
        assert port is not None
        self._generation = generation_after(self._generation)
        port.open(self._generation)
        if self._cache:
            with self._timed("quantize"):
                if exponent is not None:
                    self._choose(x, self._cache.guess(exponent))
        with self._timed("wait"):
            agreed = agree(self.transport, exponent, self._frames_to(), group.members)
        if self._cache:
            if self._cache.settle(agreed.exponent):
                # Nobody's choice holds with another scale: all begin anew.
                self._numbers.reset(port.accumulators)
                with self._timed("quantize"):
                    self._choose(x, self._cache.exponent)
                with self._timed("wait"):
                    agreed = agree(self.transport, exponent, self._frames_to(), group.members)
            exponent = self._cache.exponent
        else:
            exponent = agreed.exponent
        port.expect(agreed.counts[:, group.rank])
        return exponent

    def _choose(self, x: Embeddings, exponent: int) -> None:
        """Which vertices are sent this time."""
        assert self._cache
        assert self._port
        chosen = self._cache.choose(x, exponent)
        self._bundles = bundle(self._tables.outgoing[chosen], self._tables.masks[chosen], self.layout.rows)
        self._port.address(self._bundles)

    def _frames_to(self) -> NDArray[np.int64]:
        """Number of frames that go to each rank."""
        ranks = np.arange(self.spec.group.size, dtype=np.uint32)
        bundles: NDArray[np.int64] = (self._bundles.to[:, None] >> ranks & 1).sum(axis=0, dtype=np.int64)
        return bundles * self.layout.parts

    def _send(self, x: Embeddings, exponent: int) -> None:
        port, bundles, parts = self._port, self._bundles, self.layout.parts
        assert port is not None
        count = len(bundles.to)
        last = self._cache.last if self._cache else None
        edges = np.linspace(0, count, min(_BLOCKS, max(count // 64, 1)) + 1).astype(int)
        for first, end in pairwise(edges.tolist()):
            with self._timed("quantize"):
                self._numbers.fill(x, bundles, first * parts, end * parts, port.payloads, port.frames, exponent, last)
            with self._timed("send"):
                port.publish(int(end) * parts)
                if end > first:
                    port.ring()

    def _alone(self, x: Embeddings, out: Embeddings) -> None:
        if not math.isfinite(self._numbers.absmax(x)):
            raise CollectiveError(f"exchange: rank 0 ({self.spec.group.me.name}) has embeddings that are not finite")
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
