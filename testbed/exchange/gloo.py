"""``gloo``: torch.distributed's all-gather of all embeddings, whether needed or not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from testbed.comm.affinity import apply_affinity
from testbed.comm.collective import Counters
from testbed.comm.netdev import read_counters
from testbed.comm.process_group import check_rendezvous, explain, make_process_group
from testbed.core.errors import CollectiveError
from testbed.exchange.adjacency import Adjacency
from testbed.exchange.finite import all_finite, not_finite
from testbed.exchange.interface import Embeddings, Exchange, ExchangeSpec

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["GlooGather"]


class GlooGather(Exchange):
    """All-gather of every rank's rows, padded to the largest share, then aggregation of the rows
    that this rank needs.

    An extra row says whether they are finite, so that all ranks raise the same error, and the
    exchange can be used again. The adjacency refers to rows of the gathered matrix in place, so
    nothing is copied.

    Phases: ``send`` is checking and copying to gloo's input, ``wait`` the all-gather.
    """

    name: ClassVar[str] = "gloo"

    def __init__(self, context: WorkerContext, spec: ExchangeSpec) -> None:
        super().__init__(context, spec)
        check_rendezvous(spec.group)
        self._group: Any = None
        self._base = Counters()

    def connect(self) -> None:
        """Connect through a file in the rendezvous directory; see `Exchange.connect`."""
        spec, halo = self.spec, self.spec.halo
        apply_affinity(spec.group)
        self._base = read_counters(self.context.host.ifname)
        self._group = make_process_group(spec.group, self.context.host.ifname)
        stride = (
            max(halo.sizes) + 1
        )  # after the rows comes the one that says whether they are finite
        columns = np.concatenate(
            [rank * stride + rows for rank, rows in enumerate(halo.positions)]
        ).astype(np.int32)
        self._adjacency = Adjacency(
            halo.indptr, columns[halo.indices], halo.weights, spec.dim, spec.aggregation
        )
        self._mine = np.zeros((stride, spec.dim), np.float32)
        self._all = np.zeros((spec.group.size * stride, spec.dim), np.float32)

    def _aggregate(self, x: Embeddings, out: Embeddings) -> None:
        group = self.spec.group
        if self._group is None:
            raise CollectiveError(f"gloo: rank {group.rank} is not connected")
        start = time.perf_counter()
        self._mine[: len(x)] = x
        self._mine[-1] = not all_finite(x)
        copied = time.perf_counter()
        try:
            # The public function takes a list of tensors, and copies each.
            self._group._allgather_base(  # noqa: SLF001
                torch.from_numpy(self._all).view(-1), torch.from_numpy(self._mine).view(-1)
            ).wait()
        except RuntimeError as error:
            self.close()
            raise explain(error, group) from error
        gathered = time.perf_counter()
        self._phases["send"] += copied - start
        self._phases["wait"] += gathered - copied
        nonfinite = self._all[len(self._mine) - 1 :: len(self._mine), 0]
        if nonfinite.any():
            raise not_finite(group, np.flatnonzero(nonfinite).tolist())
        self._adjacency.aggregate(self._all, out)
        self._phases["aggregate"] += time.perf_counter() - gathered

    def counters(self) -> Counters:
        """The device's counters since `connect`; see `read_counters`."""
        return read_counters(self.context.host.ifname) - self._base

    def close(self) -> None:
        """Close the connections."""
        self._group = None
