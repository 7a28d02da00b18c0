"""Exchanges over plain TCP: `tcp-push` and `tcp-pull`, which differ only in which side
sends first.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, ClassVar

from testbed.comm.affinity import apply_affinity
from testbed.comm.collective import Counters
from testbed.comm.netdev import read_counters
from testbed.core.errors import CollectiveError
from testbed.exchange.adjacency import LARGE, Adjacency, RowFormat, RowLanes
from testbed.exchange.finite import not_finite
from testbed.exchange.interface import Embeddings, Exchange, ExchangeSpec
from testbed.exchange.mesh import Mesh

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["TcpExchange", "TcpPull", "TcpPush"]


class TcpExchange(Exchange):
    """Exchange of rows over a `Mesh`, aggregated when all have arrived.

    Values that are not finite end `aggregate` on the rank that has them, if others need them, and
    on those others; the exchange can be used again. After any other error it cannot.

    Phases: ``send`` is packing, which forms partial sums, and handing over to the kernel; ``wait``
    is everything else until the rows of others have arrived, including receiving.
    """

    pull: ClassVar[bool]
    lanes: ClassVar[RowLanes] = "float32"

    def __init__(self, context: WorkerContext, spec: ExchangeSpec) -> None:
        super().__init__(context, spec, forms=False)
        self._form = RowFormat.of(self.lanes, spec.dim, spec.halo)
        self._adjacency: Adjacency | None = None
        self._mesh: Mesh | None = None
        self._failure: str | None = None
        self._base = Counters()

    def connect(self) -> None:
        """Connect to the ranks with which this one shares edges; see `Exchange.connect`."""
        apply_affinity(self.spec.group)
        self._base = read_counters(self.context.host.ifname)
        spec, halo = self.spec, self.spec.halo
        self._mesh = mesh = Mesh(self.name, spec, self.pull, self._form)
        self._adjacency = Adjacency(
            *(halo.indptr, halo.indices, halo.weights, spec.dim, spec.aggregation),
            form=self._form,
            offsets=mesh.offsets,
            steps=mesh.steps,
        )

    def _aggregate(self, x: Embeddings, out: Embeddings) -> None:
        mesh, group, phases = self._mesh, self.spec.group, self._phases
        if self._failure is not None:
            raise CollectiveError(self._failure)
        if mesh is None or self._adjacency is None:
            raise CollectiveError(f"{self.name}: rank {group.rank} is not connected")
        start, sent = time.perf_counter(), mesh.send_seconds
        try:
            absmax = mesh.exchange(x)
        except CollectiveError as error:
            self._failure = str(
                error
            )  # connections stay open: closing them could discard data that others need
            raise
        received = time.perf_counter()
        sending = mesh.send_seconds - sent
        phases["send"] += sending
        phases["wait"] += received - start - sending
        if wrong := [rank for rank, most in absmax.items() if not math.isfinite(most)]:
            raise not_finite(group, wrong)
        self._adjacency.aggregate(mesh.memory, out, max(absmax.values()) >= LARGE)
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


class TcpPush16(TcpPush):
    """``tcp-push-16``: the same with rows of int16, each with a step of its own, as `pinch` sends
    them: what 16 bits are worth without the kernel.
    """

    name: ClassVar[str] = "tcp-push-16"
    lanes: ClassVar[RowLanes] = "int16"
