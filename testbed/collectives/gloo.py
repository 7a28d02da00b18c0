"""``gloo``: torch.distributed's CPU backend over TCP."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from testbed.comm.affinity import apply_affinity
from testbed.comm.backend import Backend, Tensor
from testbed.comm.collective import Counters
from testbed.comm.group import GroupSpec
from testbed.comm.netdev import read_counters
from testbed.comm.process_group import check_rendezvous, explain, make_process_group
from testbed.core.errors import CollectiveError
from testbed.plan import Datapath

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["Gloo"]


class Gloo(Backend):
    """All-reduce with gloo, in place in the tensor's own memory."""

    name: ClassVar[str] = "gloo"
    needs: ClassVar[Datapath] = "sockets"

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
        if self._group is None:
            raise CollectiveError(f"gloo: rank {self.spec.rank} is not connected")
        if out.ctypes.data != tensor.ctypes.data:
            np.copyto(out, tensor)
        if not out.size:
            return
        start = time.perf_counter()
        try:
            self._group.allreduce([torch.from_numpy(out)]).wait()
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
