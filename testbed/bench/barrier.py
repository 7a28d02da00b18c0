"""A barrier for the processes of one machine, in shared memory: it sends no packets and does not
sleep.
"""

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
_STRIDE = 8  # int64 numbers between two slots: a cache line each


class BarrierBroken(CollectiveError):
    """Another rank has given up; that rank's error says why."""


class Barrier:
    """Counts each rank's arrivals; a rank continues when all have arrived as often as it has. A
    context manager.

    Waiting ranks yield the CPU (sched_yield), so that more ranks than CPUs can wait.

    :param path: The shared file: full of zeros, or not yet created.
    :param rank: This rank.
    :param ranks: How many there are.
    :param timeout: Seconds until a wait ends with `BarrierBroken`.
    """

    def __init__(self, path: Path, rank: int, ranks: int, timeout: float = 60.0) -> None:
        size = (ranks + 1) * _STRIDE * 8
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._slots = memoryview(memory).cast("q")
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._wait = load("barrier").barrier_wait
        self._wait.argtypes = [
            ctypes.c_void_p,
            ctypes.c_uint32,
            ctypes.c_uint32,
            ctypes.c_int64,
            ctypes.c_double,
        ]
        self._rank, self._ranks = rank, ranks
        self._timeout = timeout

    def wait(self) -> None:
        """Arrive, and wait for all others.

        :raises BarrierBroken: A rank broke the barrier or did not arrive.
        """
        slots, broken = self._slots, self._ranks * _STRIDE
        mine = slots[self._rank * _STRIDE] + 1
        slots[self._rank * _STRIDE] = mine
        outcome = self._wait(self._address, self._ranks, _STRIDE, mine, self._timeout)
        if outcome == _BROKEN or slots[broken]:
            raise BarrierBroken("another rank has given up")
        if outcome:
            late = [rank for rank in range(self._ranks) if slots[rank * _STRIDE] < mine]
            raise BarrierBroken(
                f"ranks {late} did not reach the barrier within {self._timeout:g} s"
            )

    def break_(self) -> None:
        """Release all ranks that wait."""
        self._slots[self._ranks * _STRIDE] = 1

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
