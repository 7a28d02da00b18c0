"""Tables with an entry per vertex, and how much memory they and batches take."""

import contextlib
import ctypes
import math
import mmap
import os
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from testbed.core.errors import SpecError
from testbed.gnn.streaming.edges import MOST_VERTICES

__all__ = [
    "Plan",
    "batch_size",
    "peak_memory",
    "release_memory",
    "reset_peak_memory",
    "vertex_table",
]

T = TypeVar("T", bound=np.generic)

NORESERVE = 0x4000  # MAP_NORESERVE of mmap(2), which Python 3.11's mmap lacks
EDGE = 40
"""Bytes of an edge in a batch: two numbers of 8 bytes as a file has them, of 4 bytes before and
after it is ordered by owner, and its owner.
"""
GROUPED = 16
"""Bytes of an edge while edges are grouped by source."""
LARGEST, SMALLEST = 1 << 18, 1 << 10
"""Edges of a batch: enough to forget what a call costs, and few enough for the cache."""
SLACK = 16 << 20
"""Bytes that allocators keep, libraries load and files buffer."""
ROWS = 1 << 16
"""Edges of a row group in a part's file."""


class Plan:
    """How memory is divided.

    :param num_vertices: Vertices of the graph, or an estimate.
    :param per_vertex: Bytes of all tables for one vertex.
    :ivar batch: Edges of a batch.
    :ivar rows: Edges that a part collects before it writes them.
    :ivar grouped: Edges that may be grouped at a time.
    :raises SpecError: There is not enough for the vertices.
    """

    def __init__(
        self, memory: int, num_vertices: int, per_vertex: int, parts: int, threads: int
    ) -> None:
        self.limit, tables = memory << 20, num_vertices * per_vertex
        flying = (threads + 2) * EDGE  # bytes, for each edge of a batch
        need = SLACK + tables + flying * SMALLEST + 8 * parts * SMALLEST
        if need > self.limit:
            raise SpecError(
                f"--memory: {memory}: {num_vertices} vertices take {per_vertex} bytes each: must be"
                f" at least {math.ceil(need / 2**20)}"
            )
        room = self.limit - tables - SLACK
        self.batch = int(min(LARGEST, max(SMALLEST, room // 4 // flying)))
        self.rows = int(min(ROWS, max(SMALLEST, room // 8 // (8 * parts))))
        self.grouped = int(max(SMALLEST, room // 3 // GROUPED))


def batch_size(plan: Plan, parts: int) -> int:
    """Return the edges of a batch, such that most parts get a row group of one."""
    return min(plan.batch, max(SMALLEST, plan.rows * parts))


def vertex_table(kind: type[T], num_vertices: int | None, columns: int = 1) -> NDArray[T]:
    """Return a table of zeros, shape (n,) or (n, columns).

    :param num_vertices: None: not known. The table then has room for all that there can be, and
        takes memory where it is written.
    """
    n = MOST_VERTICES if num_vertices is None else num_vertices
    memory = mmap.mmap(
        -1,
        max(1, n * columns * np.dtype(kind).itemsize),
        flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE,
    )
    table: NDArray[Any] = np.frombuffer(memory, kind, count=n * columns)
    return table if columns == 1 else table.reshape(n, columns)


def reset_peak_memory() -> int:
    """Begin to measure `peak_memory`; return the resident memory of now, in bytes."""
    try:
        # proc_pid_clear_refs(5): resets VmHWM
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return 0
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf(
        "SC_PAGE_SIZE"
    )


def release_memory() -> None:
    """Give freed memory back to the system, which allocators otherwise keep for later."""
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(AttributeError):  # glibc has it, see malloc_trim(3)
        ctypes.CDLL(None).malloc_trim(0)


def peak_memory() -> int:
    """Return the most resident memory since `reset_peak_memory`, in bytes (``VmHWM``)."""
    lines = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    )
    return int(lines["VmHWM"].split()[0]) << 10
