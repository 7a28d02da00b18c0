"""``gloo``: torch.distributed's CPU backend over TCP."""

from __future__ import annotations

import datetime
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist

from testbed.comm.affinity import apply_affinity
from testbed.comm.backend import Counters, Datapath, Tensor, Transport
from testbed.comm.group import GroupSpec
from testbed.comm.netdev import read_counters
from testbed.core.errors import CollectiveError, SpecError

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["Gloo", "check_rendezvous", "explain", "make_process_group"]

_PEER = re.compile(r"\[?(\d+\.\d+\.\d+\.\d+)\]?:\d+")


def check_rendezvous(spec: GroupSpec) -> None:
    """Check that there is a place to meet.

    :raises SpecError: There is none.
    """
    if not Path(spec.rendezvous).is_dir():
        where = f"group: rendezvous = {spec.rendezvous!r}"
        raise SpecError(f"{where}: allowed is a directory that all ranks can write")


def make_process_group(spec: GroupSpec, ifname: str) -> Any:
    """Meet the other ranks and return a ``ProcessGroupGloo``.

    Made by its class: ``init_process_group`` has one world a process, makes groups only
    with all of its ranks, while here groups over any hosts come and go alone. The device is named, as
    ``GLOO_SOCKET_IFNAME`` would: gloo's own choice is what the host's name resolves to.

    :raises CollectiveError: A rank did not come within the timeout.
    """
    timeout = datetime.timedelta(seconds=spec.timeout)
    path = Path(spec.rendezvous) / f"gloo-{spec.group_id}-{spec.cookie:016x}"
    store: Any = dist.FileStore(str(path), spec.size)  # type: ignore[attr-defined]
    store.set_timeout(timeout)
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    options._threads = 1  # one collective at a time; more threads only wait
    options._devices = [dist.ProcessGroupGloo.create_device(interface=ifname)]
    try:
        return dist.ProcessGroupGloo(store, spec.rank, spec.size, options)
    except RuntimeError as error:
        raise explain(error, spec, "could not meet the others") from error


def explain(error: RuntimeError, spec: GroupSpec, what: str = "failed") -> CollectiveError:
    """Name the rank whose address gloo's message has, if it has one."""
    text = str(error).strip().splitlines()[0]
    ranks = {member.ip: member for member in spec.members}
    for ip in _PEER.findall(text):
        if ip in ranks and ranks[ip].rank != spec.rank:
            return CollectiveError(f"gloo: rank {ranks[ip].rank} ({ranks[ip].name}) has failed: {text}")
    return CollectiveError(f"gloo: rank {spec.rank} {what}: {text}")


class Gloo(Transport):
    """All-reduce by gloo, in place in the tensor's own memory."""

    name: ClassVar[str] = "gloo"
    needs: ClassVar[Datapath] = "sockets"

    def __init__(self, context: WorkerContext, spec: GroupSpec) -> None:
        super().__init__(context, spec)
        check_rendezvous(spec)
        self._group: Any = None
        self._base = Counters()

    def connect(self) -> None:
        """Meet through a file in the rendezvous directory; see `Transport.connect`."""
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
