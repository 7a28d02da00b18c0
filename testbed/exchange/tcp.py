"""Exchanges over plain TCP: `tcp-push` and `tcp-pull`, which differ only in which side
sends first.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from testbed.comm.affinity import apply_affinity
from testbed.comm.collective import Counters
from testbed.comm.netdev import read_counters
from testbed.core.errors import CollectiveError
from testbed.exchange.adjacency import Adjacency
from testbed.exchange.finite import all_finite, not_finite
from testbed.exchange.interface import Embeddings, Exchange, ExchangeSpec
from testbed.exchange.mesh import Mesh

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["TcpExchange", "TcpPull", "TcpPush"]


class TcpExchange(Exchange):
    """Exchange of rows over a `Mesh`, aggregated when all have arrived.

    Values that are not finite end `aggregate` on the rank that has them, if others need any of its
    vertices, and on those others; the exchange can be used again. After any other error it cannot.

    Phases: ``send`` is checking, gathering and handing over to the kernel; ``wait`` is everything
    else until the rows of others have arrived, including receiving.
    """

    pull: ClassVar[bool]

    def __init__(self, context: WorkerContext, spec: ExchangeSpec) -> None:
        super().__init__(context, spec)
        halo = spec.halo
        self._matrix = np.zeros((halo.num_halo, spec.dim), np.float32)
        self._adjacency = Adjacency(
            halo.indptr, halo.indices, halo.weights, spec.dim, spec.aggregation
        )
        self._mesh: Mesh | None = None
        self._failure: str | None = None
        self._base = Counters()

    def connect(self) -> None:
        """Connect to the ranks with which this one shares edges; see `Exchange.connect`."""
        apply_affinity(self.spec.group)
        self._base = read_counters(self.context.host.ifname)
        self._mesh = Mesh(self.name, self.spec, self.pull, self._matrix)

    def _aggregate(self, x: Embeddings, out: Embeddings) -> None:
        mesh, group, phases = self._mesh, self.spec.group, self._phases
        if self._failure is not None:
            raise CollectiveError(self._failure)
        if mesh is None:
            raise CollectiveError(f"{self.name}: rank {group.rank} is not connected")
        start = time.perf_counter()
        nonfinite = mesh.sends and not all_finite(x)
        checked, sent = time.perf_counter(), mesh.send_seconds
        try:
            ranks = mesh.exchange(x, nonfinite)
        except CollectiveError as error:
            self._failure = str(
                error
            )  # connections stay open: closing them could discard data that others need
            raise
        received = time.perf_counter()
        sending = mesh.send_seconds - sent
        phases["send"] += checked - start + sending
        phases["wait"] += received - checked - sending
        if nonfinite or ranks:
            raise not_finite(group, [*ranks, group.rank] if nonfinite else ranks)
        self._adjacency.aggregate(self._matrix, out)
        phases["aggregate"] += time.perf_counter() - received

    def counters(self) -> Counters:
        """The device's counters since `connect`; see `read_counters`."""
        return read_counters(self.context.host.ifname) - self._base

    def close(self) -> None:
        """Close the connections."""
        if self._mesh is not None:
            self._mesh.close()
            self._mesh = None


class TcpPull(TcpExchange):
    """``tcp-pull``: every rank asks the owners for the vertices that it needs and waits, as DistDGL
    does.

    One request with vertices' numbers (int64) and one answer with their rows per owner and
    exchange. Zheng et al., "DistDGL: Distributed Graph Neural Network Training for Billion-Scale
    Graphs", IA3 2020: the key-value store's pull sends vertices' numbers to their owners, one
    request each, and blocks until the rows have arrived. DistDGL's servers are separate processes;
    here a rank serves while it waits, until all ranks that need its vertices have them, and a
    request for the next exchange waits in the socket until this rank has entered it.
    """

    name: ClassVar[str] = "tcp-pull"
    pull: ClassVar[bool] = True


class TcpPush(TcpExchange):
    """``tcp-push``: every rank sends its rows to the ranks that need them, over plain TCP: the
    baseline for `pinch`.

    One message per peer and exchange; the halo says which rank needs what.
    """

    name: ClassVar[str] = "tcp-push"
    pull: ClassVar[bool] = False
