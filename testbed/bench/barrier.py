"""A barrier over processes of one machine, in shared memory: no packets, and no sleep to wake up from."""

import mmap
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from testbed.errors import CollectiveError

__all__ = ["Barrier", "BarrierBroken"]

_STRIDE = 8  # int64 numbers between two slots: a cache line each


class BarrierBroken(CollectiveError):
    """Another rank has given up; its own error says why."""


class Barrier:
    """Counts each rank's arrivals; a rank goes on when all have come as often as it has. A context manager.

    Waiting ranks give their turn away (sched_yield), so that more ranks than CPUs can wait.

    :param path: The shared file: zeros, or not there yet.
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
        slots = np.frombuffer(memory, np.int64)[::_STRIDE]
        self._arrived, self._broken = slots[:ranks], slots[ranks:]
        self._rank = rank
        self._timeout = timeout

    def wait(self) -> None:
        """Arrive, and wait for all others.

        :raises BarrierBroken: A rank broke the barrier or did not come.
        """
        self._arrived[self._rank] += 1
        mine = self._arrived[self._rank]
        deadline = time.monotonic() + self._timeout
        while self._arrived.min() < mine:
            if self._broken[0]:
                raise BarrierBroken("another rank has given up")
            if time.monotonic() > deadline:
                late = np.flatnonzero(self._arrived < mine)
                raise BarrierBroken(
                    f"ranks {late.tolist()} did not reach the barrier within {self._timeout:g} s"
                )
            os.sched_yield()

    def break_(self) -> None:
        """Let nobody wait any more."""
        self._broken[0] = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.break_()
