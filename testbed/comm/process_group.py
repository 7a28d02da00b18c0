"""A process group of torch.distributed's gloo, for both collectives and exchanges."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import torch.distributed as dist

from testbed.comm.group import GroupSpec
from testbed.core.errors import CollectiveError, SpecError

__all__ = ["check_rendezvous", "explain", "make_process_group"]

_PEER = re.compile(r"\[?(\d+\.\d+\.\d+\.\d+)\]?:\d+")


def check_rendezvous(spec: GroupSpec) -> None:
    """Check that there is a rendezvous directory.

    :raises SpecError: There is none.
    """
    if not Path(spec.rendezvous).is_dir():
        where = f"group: rendezvous = {spec.rendezvous!r}"
        raise SpecError(f"{where}: must be a directory that all ranks can write")


def make_process_group(spec: GroupSpec, ifname: str) -> Any:
    """Connect to the other ranks and return a ``ProcessGroupGloo``.

    It is created directly, because ``init_process_group`` allows one world per process and creates
    groups only with all of its ranks, whereas here groups of any hosts come and go independently.
    The device is named explicitly, as with ``GLOO_SOCKET_IFNAME``; by default gloo uses the address
    to which the host's name resolves.

    :raises CollectiveError: A rank did not connect within the group's ``connect_timeout``.
    """
    timeout = datetime.timedelta(seconds=spec.connect_timeout)
    path = Path(spec.rendezvous) / f"gloo-{spec.group_id}-{spec.cookie:016x}"
    store: Any = dist.FileStore(str(path), spec.size)  # type: ignore[attr-defined]
    store.set_timeout(timeout)
    # torch has no public way to choose a device.
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001
    options._timeout = timeout  # noqa: SLF001
    # One collective at a time: more threads only wait.
    options._threads = 1  # noqa: SLF001
    device = dist.ProcessGroupGloo.create_device(interface=ifname)
    options._devices = [device]  # noqa: SLF001
    try:
        group: Any = dist.ProcessGroupGloo(store, spec.rank, spec.size, options)
    except RuntimeError as error:
        raise explain(error, spec, "could not meet the others") from error
    group.set_timeout(datetime.timedelta(seconds=spec.timeout))
    return group


def explain(error: RuntimeError, spec: GroupSpec, what: str = "failed") -> CollectiveError:
    """Name the rank whose address is in gloo's message, if there is one."""
    text = str(error).strip().splitlines()[0]
    ranks = {member.ip: member for member in spec.members}
    for ip in _PEER.findall(text):
        if ip in ranks and ranks[ip].rank != spec.rank:
            return CollectiveError(
                f"gloo: rank {ranks[ip].rank} ({ranks[ip].name}) has failed: {text}"
            )
    return CollectiveError(f"gloo: rank {spec.rank} {what}: {text}")
