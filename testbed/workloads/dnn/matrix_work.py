"""Matrix work of a stated length: multiplications of small matrices, one after another.

How many of them take a second is measured once, on a CPU that does nothing else, so that all
backends get exactly the same work, however long it takes beside other ranks and communication.
"""

import time

import torch

__all__ = ["Work", "unit_seconds"]

SIDE = 128
"""A multiplication takes about 0.1 ms, and its matrices stay in a CPU's own cache."""

BATCH = 8  # multiplications in one call, during which Python's lock is free
TRIES, SHORTEST = 5, 0.02  # measurements, of which the fastest counts; seconds of each


class Work:
    """One rank's matrices."""

    def __init__(self) -> None:
        torch.set_num_threads(1)  # ranks share the machine's cores
        draw = torch.Generator().manual_seed(1)
        self._left = torch.randn(BATCH, SIDE, SIDE, generator=draw)
        self._right = torch.randn(BATCH, SIDE, SIDE, generator=draw)
        self._out = torch.empty(BATCH, SIDE, SIDE)

    def do(self, units: int) -> None:
        """Multiply that many matrices."""
        for first in range(0, units, BATCH):
            count = min(BATCH, units - first)
            torch.bmm(self._left[:count], self._right[:count], out=self._out[:count])


def unit_seconds() -> float:
    """Measure how long one multiplication takes on this CPU."""
    work, fastest = Work(), float("inf")
    work.do(BATCH)
    for _ in range(TRIES):
        done, started = 0, time.perf_counter()
        while (spent := time.perf_counter() - started) < SHORTEST:
            work.do(BATCH)
            done += BATCH
        fastest = min(fastest, spent / done)
    return fastest
