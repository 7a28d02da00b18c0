"""Ranks as threads of one process, whose collectives add and copy arrays."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np

from testbed.comm.backend import Backend, Tensor
from testbed.comm.collective import Counters

__all__ = ["on_ranks"]


class Table:
    """Where ranks lay down what they reduce."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world)
        self.laid: dict[int, Tensor] = {}


class OnTable(Backend):
    """A rank's collectives."""

    name = "table"

    def __init__(self, table: Table, rank: int, world: int, capacity: int) -> None:
        super().__init__(None, SimpleNamespace(size=world, capacity=capacity, rank=rank))  # type: ignore[arg-type]
        self.table, self.rank = table, rank

    def connect(self) -> None:
        pass

    def close(self) -> None:
        pass

    def counters(self) -> Counters:
        return Counters()

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        self.table.laid[self.rank] = tensor.copy()
        self.table.barrier.wait(60)
        found = [self.table.laid[rank] for rank in sorted(self.table.laid)]
        self.table.barrier.wait(60)
        return found

    def _all_reduce(self, tensor: Tensor, out: Tensor) -> None:
        out[:] = np.sum(self._gather(tensor), axis=0)

    def _broadcast(self, tensor: Tensor, root: int) -> None:
        tensor[:] = self._gather(tensor)[root]


def on_ranks(world: int, work: Callable[[Backend, int], Any], capacity: int) -> list[Any]:
    """Call a function for each rank at once; return what it returns, by rank."""
    table = Table(world)
    with ThreadPoolExecutor(world) as pool:
        return list(
            pool.map(lambda rank: work(OnTable(table, rank, world, capacity), rank), range(world))
        )
