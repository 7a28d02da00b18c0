"""A barrier for the processes of one machine, in shared memory: it sends no packets."""

import ctypes
import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed.core.errors import CollectiveError
from testbed.native import load

__all__ = ["Barrier", "BarrierBroken"]

_BROKEN = 1
_GATE = 3
"""int64 numbers that `struct gate` takes."""


class BarrierBroken(CollectiveError):
    """Another rank has given up; that rank's error says why."""


class Barrier:
    """Counts each rank's arrivals; a rank continues when all have arrived as often as it has. A
    context manager.

    Waiting ranks sleep. When the last one has arrived, all are woken, and sleep again until the
    same time on the clock: nobody's wait takes the CPU of one that has begun.

    :param path: The shared file: full of zeros, or not yet created.
    :param rank: This rank.
    :param ranks: How many there are.
    :param timeout: Seconds until a wait ends with `BarrierBroken`.
    """

    def __init__(self, path: Path, rank: int, ranks: int, timeout: float = 60.0) -> None:
        size = (_GATE + ranks) * 8
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._arrivals = memoryview(memory).cast("q")[_GATE:]
        self._gate = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        library = load("barrier")
        self._wait, self._break = library.barrier_wait, library.barrier_break
        self._wait.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int64]
        self._rank, self._ranks = rank, ranks
        self._timeout = timeout

    def wait(self) -> None:
        """Arrive, and wait for all others.

        :raises BarrierBroken: A rank broke the barrier or did not arrive.
        """
        arrivals = self._arrivals
        mine = arrivals[self._rank] + 1
        arrivals[self._rank] = mine
        outcome = self._wait(self._gate, self._ranks, mine, int(1e9 * self._timeout))
        if outcome == _BROKEN:
            raise BarrierBroken("another rank has given up")
        if outcome:
            late = [rank for rank in range(self._ranks) if arrivals[rank] < mine]
            raise BarrierBroken(
                f"ranks {late} did not reach the barrier within {self._timeout:g} s"
            )

    def break_(self) -> None:
        """Release all ranks that wait."""
        self._break(self._gate)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.break_()
