"""The transports by name. Modules are imported when a transport is opened."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.collectives.group import GroupSpec
from testbed.collectives.transport import Datapath, Transport
from testbed.errors import SpecError
from testbed.plan import MAX_XDP_MTU, MIN_MTU

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["TRANSPORTS", "Entry", "check_mtu", "check_names", "modules_of", "open_transport"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a transport is and what it is.

    :param path: ``module:class``.
    :param needs: The datapath that the fabric has to be set to (the class says the same).
    :param summary: One line for help texts.
    """

    path: str
    needs: Datapath
    summary: str


TRANSPORTS: dict[str, Entry] = {
    "xdp-ring": Entry(
        "testbed.collectives.xdp_ring:XdpRing",
        "xdp",
        "ring all-reduce inside the kernel, summed by XDP programs",
    ),
    "tcp-ring": Entry("testbed.collectives.tcp_ring:TcpRing", "sockets", "ring all-reduce over plain TCP sockets"),
    "gloo": Entry("testbed.collectives.gloo:Gloo", "sockets", "torch.distributed with its gloo backend"),
    "mpi": Entry("testbed.collectives.mpi:Mpi", "sockets", "Open MPI's Allreduce over TCP"),
}


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names as a tuple without repeats.

    :raises SpecError: A name is not a transport's, or there is none.
    """
    chosen = tuple(dict.fromkeys(names))
    for name in chosen:
        if name not in TRANSPORTS:
            raise SpecError(f"transport {name!r} does not exist: allowed is {', '.join(TRANSPORTS)}")
    if not chosen:
        raise SpecError(f"no transport given: allowed is any of {', '.join(TRANSPORTS)}")
    return chosen


def check_mtu(mtu: int, names: Iterable[str], key: str) -> None:
    """Check that frames of a fabric's MTU suit its transports.

    :param key: What the MTU was given to, for the error: an option, or a scenario's key.
    :raises SpecError: It leaves no room for the XDP that one of them needs.
    """
    for name in names:
        if TRANSPORTS[name].needs == "xdp" and mtu > MAX_XDP_MTU:
            raise SpecError(f"{key}: {mtu}: allowed is {MIN_MTU} to {MAX_XDP_MTU} with {name}, which needs native XDP")


def modules_of(names: Iterable[str]) -> list[str]:
    """Name what the hosts' workers import for transports; ranks of ``mpi`` have workers of their own."""
    return [TRANSPORTS[name].path.partition(":")[0] for name in names if name != "mpi"]


def open_transport(name: str, context: WorkerContext, spec: GroupSpec) -> Transport:
    """Make the named transport for this rank; `connect` it before use.

    :raises SpecError: No transport has this name.
    """
    check_names([name])
    module, _, attribute = TRANSPORTS[name].path.partition(":")
    transport: Transport = getattr(importlib.import_module(module), attribute)(context, spec)
    return transport
