"""``mpi``: Open MPI's collectives over TCP, by mpi4py.

The ranks are workers that mpirun has started (see `testbed.collectives.mpi.launch`), in addition to
the hosts' own: between collectives they sleep on the controller's socket, not in MPI.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from testbed.comm.affinity import apply_affinity
from testbed.comm.backend import Backend, Tensor
from testbed.comm.collective import Counters
from testbed.comm.group import GroupSpec
from testbed.comm.netdev import read_counters
from testbed.comm.options import NUMBERS, OPS
from testbed.core.errors import CollectiveError
from testbed.plan import Datapath

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["RANKS_VARIABLE", "Mpi", "initialize"]

RANKS_VARIABLE = "TESTBED_MPI_RANKS"
"""Environment of a rank: the names of the hosts in the order of ``MPI.COMM_WORLD``,
comma-separated.
"""


def initialize(context: WorkerContext) -> str:
    """Call ``MPI_Init``, which waits for all ranks; returns the library's version.

    Only one thread uses MPI; asking for more would put locks into every call.
    """
    import mpi4py

    mpi4py.rc.threads = False
    from mpi4py import MPI

    version: str = MPI.Get_library_version().split(",")[0]
    return version


class Mpi(Backend):
    """Open MPI's Allreduce, Reduce_scatter_block, Allgather and Bcast, which choose the algorithm
    by size.

    MPI has no deadlines: a silent rank holds up the others until the controller ends it. When a
    rank dies, mpirun ends all.
    """

    name: ClassVar[str] = "mpi"
    needs: ClassVar[Datapath] = "sockets"
    OPS = OPS
    DTYPES = NUMBERS

    def __init__(self, context: WorkerContext, spec: GroupSpec) -> None:
        super().__init__(context, spec)
        if RANKS_VARIABLE not in os.environ:
            raise CollectiveError(
                f"mpi: rank {spec.rank} ({spec.me.name}) was not started by mpirun"
            )
        self._communicator: Any = None
        self._base = Counters()

    def connect(self) -> None:
        """Make the group's communicator; see `Backend.connect`."""
        initialize(self.context)
        from mpi4py import MPI

        apply_affinity(self.spec)
        self._base = read_counters(self.context.host.ifname)
        world = os.environ[RANKS_VARIABLE].split(",")
        group = MPI.COMM_WORLD.Get_group().Incl(
            [world.index(member.name) for member in self.spec.members]
        )
        self._communicator = MPI.COMM_WORLD.Create_group(group, tag=self.spec.group_id)
        group.Free()
        self._in_place = MPI.IN_PLACE
        self._ops = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}

    def _all_reduce(self, tensor: Tensor, out: Tensor) -> None:
        self._all_reduce_extreme(tensor, out, "sum")

    def _reduce_scatter(self, tensor: Tensor, out: Tensor) -> None:
        self._reduce_scatter_extreme(tensor, out, "sum")

    def _all_reduce_extreme(self, tensor: Tensor, out: Tensor, op: str) -> None:
        source = self._in_place if out.ctypes.data == tensor.ctypes.data else np.asarray(tensor)
        with self._communicating() as communicator:
            communicator.Allreduce(source, out, op=self._ops[op])

    def _reduce_scatter_extreme(self, tensor: Tensor, out: Tensor, op: str) -> None:
        # MPI's own "in place" overwrites the beginning of the tensor, not this rank's block.
        target = np.empty_like(out) if np.may_share_memory(tensor, out) else out
        with self._communicating() as communicator:
            communicator.Reduce_scatter_block(np.asarray(tensor), target, op=self._ops[op])
            if target is not out:
                np.copyto(out, target)

    def _all_gather(self, tensor: Tensor, out: Tensor) -> None:
        source = self._in_place if np.may_share_memory(tensor, out) else np.asarray(tensor)
        with self._communicating() as communicator:
            communicator.Allgather(source, out)

    def _broadcast(self, tensor: Tensor, root: int) -> None:
        with self._communicating() as communicator:
            communicator.Bcast(tensor, root)

    @contextmanager
    def _communicating(self) -> Iterator[Any]:
        """The communicator, and the time that is spent with it."""
        if self._communicator is None:
            raise CollectiveError(f"mpi: rank {self.spec.rank} is not connected")
        start = time.perf_counter()
        yield self._communicator
        self._phases["communicate"] += time.perf_counter() - start

    def counters(self) -> Counters:
        """The device's counters since `connect`; see `read_counters`."""
        return read_counters(self.context.host.ifname) - self._base

    def close(self) -> None:
        """Forget the communicator: ``MPI_Comm_free`` would wait for the other ranks, which may be
        dead.
        """
        self._communicator = None
