"""``gloo``: torch.distributed's CPU backend over TCP."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from testbed.comm.affinity import apply_affinity
from testbed.comm.backend import Backend, Tensor
from testbed.comm.collective import Counters
from testbed.comm.group import GroupSpec
from testbed.comm.netdev import read_counters
from testbed.comm.options import DATATYPES, OPS
from testbed.comm.process_group import check_rendezvous, explain, make_process_group
from testbed.core.errors import CollectiveError
from testbed.plan import Datapath

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["Gloo"]

_OPS: dict[str, Any] = {
    "sum": torch.distributed.ReduceOp.SUM,
    "min": torch.distributed.ReduceOp.MIN,
    "max": torch.distributed.ReduceOp.MAX,
}


class Gloo(Backend):
    """Gloo's collectives, in the tensors' own memory; its all-reduce works in place."""

    name: ClassVar[str] = "gloo"
    needs: ClassVar[Datapath] = "sockets"
    OPS = OPS
    DTYPES = tuple(DATATYPES.values())

    def __init__(self, context: WorkerContext, spec: GroupSpec) -> None:
        super().__init__(context, spec)
        check_rendezvous(spec)
        self._group: Any = None
        self._base = Counters()

    def connect(self) -> None:
        """Connect through a file in the rendezvous directory; see `Backend.connect`."""
        apply_affinity(self.spec)
        self._base = read_counters(self.context.host.ifname)
        self._group = make_process_group(self.spec, self.context.host.ifname)

    def _all_reduce(self, tensor: Tensor, out: Tensor) -> None:
        self._all_reduce_extreme(tensor, out, "sum")

    def _reduce_scatter(self, tensor: Tensor, out: Tensor) -> None:
        self._reduce_scatter_extreme(tensor, out, "sum")

    def _all_reduce_extreme(self, tensor: Tensor, out: Tensor, op: str) -> None:
        if out.ctypes.data != tensor.ctypes.data:
            np.copyto(out, tensor)
        options = torch.distributed.AllreduceOptions()
        options.reduceOp = _OPS[op]
        self._run(out.size, lambda group: group.allreduce([torch.from_numpy(out)], options))

    def _reduce_scatter_extreme(self, tensor: Tensor, out: Tensor, op: str) -> None:
        target = np.empty_like(out) if np.may_share_memory(tensor, out) else out
        options: Any = torch.distributed.ReduceScatterOptions()
        options.reduceOp = _OPS[op]
        arrays = torch.from_numpy(target), torch.from_numpy(tensor)
        self._run(
            tensor.size,
            lambda group: group._reduce_scatter_base(*arrays, options),  # noqa: SLF001
        )
        if target is not out:
            np.copyto(out, target)

    def _all_gather(self, tensor: Tensor, out: Tensor) -> None:
        arrays = torch.from_numpy(out), torch.from_numpy(tensor)
        self._run(tensor.size, lambda group: group._allgather_base(*arrays))  # noqa: SLF001

    def _broadcast(self, tensor: Tensor, root: int) -> None:
        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        arrays = [torch.from_numpy(tensor)]
        self._run(tensor.size, lambda group: group.broadcast(arrays, options))

    def _run(self, size: int, collective: Callable[[Any], Any]) -> None:
        """Do a collective that is not empty."""
        if self._group is None:
            raise CollectiveError(f"gloo: rank {self.spec.rank} is not connected")
        if not size:
            return
        start = time.perf_counter()
        try:
            collective(self._group).wait()
        except RuntimeError as error:
            self.close()
            raise explain(error, self.spec) from error
        finally:
            self._phases["communicate"] += time.perf_counter() - start

    def counters(self) -> Counters:
        """The device's counters since `connect`; see `read_counters`."""
        return read_counters(self.context.host.ifname) - self._base

    def close(self) -> None:
        """Close the connections."""
        self._group = None
