"""The backends by name. Modules are imported when a backend is opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from testbed.comm.entry import Entry, entry_of
from testbed.comm.options import DATATYPES, NUMBERS, OPS
from testbed.core.errors import SpecError
from testbed.core.registry import OTHERS, Registry, load

if TYPE_CHECKING:
    from testbed.comm.backend import Backend
    from testbed.comm.group import GroupSpec
    from testbed.worker import WorkerContext

__all__ = ["BACKENDS", "check_names", "modules_of", "open_backend"]


BACKENDS: Registry[Entry] = Registry(
    "backend",
    "testbed.comm.backend:Backend",
    {
        "xdp-ring": Entry(
            "testbed.collectives.ring.xdp_ring:XdpRing",
            "xdp",
            "ring all-reduce inside the kernel, summed by XDP programs",
        ),
        "tcp-ring": Entry(
            "testbed.collectives.tcp_ring:TcpRing",
            "sockets",
            "ring all-reduce over plain TCP sockets",
            ops=OPS,
            dtypes=NUMBERS,
        ),
        "gloo": Entry(
            "testbed.collectives.gloo:Gloo",
            "sockets",
            "torch.distributed with its gloo backend",
            splits=False,
            ops=OPS,
            dtypes=tuple(DATATYPES.values()),
        ),
        "mpi": Entry(
            "testbed.collectives.mpi.mpi:Mpi",
            "sockets",
            "Open MPI's Allreduce over TCP",
            splits=False,
            ops=OPS,
            dtypes=NUMBERS,
        ),
    },
    group="testbed.transports",
    adapt=entry_of,
)


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names as a tuple without repeats.

    :raises SpecError: A name is not a backend's, or there is none.
    """
    chosen = tuple(dict.fromkeys(names))
    for name in chosen:
        BACKENDS[name]
    if not chosen:
        raise SpecError(f"no backend given: must be one or more of {', '.join(BACKENDS)}, {OTHERS}")
    return chosen


def modules_of(names: Iterable[str]) -> list[str]:
    """Return the modules that the hosts' workers import for backends; ranks of ``mpi`` have other
    workers.
    """
    return [BACKENDS[name].module for name in names if name != "mpi"]


def open_backend(name: str, context: WorkerContext, spec: GroupSpec) -> Backend:
    """Make the named backend for this rank; `connect` it before use.

    :raises SpecError: No backend has this name.
    """
    backend: Backend = load(BACKENDS[name].path)(context, spec)
    return backend
