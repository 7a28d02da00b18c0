"""Small graphs, and a backend that sums between threads of one process."""

import threading
from pathlib import Path

import numpy as np
import pytest

from testbed.comm.backend import PHASES, Tensor
from testbed.comm.collective import Counters
from testbed.gnn.graph import GraphData
from testbed.gnn.synthetic import SyntheticSpec, synthetic_graph


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def graph() -> GraphData:
    return synthetic_graph(SyntheticSpec(name="synthetic", scale=8, classes=4, feature_dim=16))


class ThreadGroup:
    """Ranks that are threads: every rank adds in rank order, so all get the same bits."""

    def __init__(self, world: int) -> None:
        self.tensors: list[Tensor | None] = [None] * world
        self.barrier = threading.Barrier(world)

    def backend(self, rank: int) -> "ThreadBackend":
        return ThreadBackend(self, rank)


class ThreadBackend:
    """The part of `Backend` that training uses."""

    needs = "sockets"

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self.group = group
        self.rank = rank
        self.phases = dict.fromkeys(PHASES, 0.0)
        self.calls = 0

    def all_reduce(self, tensor: Tensor, out: Tensor) -> Tensor:
        self.calls += 1
        self.group.tensors[self.rank] = tensor.copy()
        self.group.barrier.wait(30)
        total = np.sum(self.group.tensors, axis=0, dtype=np.float32)
        self.group.barrier.wait(30)
        out[:] = total
        return out

    def counters(self) -> Counters:
        return Counters(packets=2 * self.calls, wire_bytes=3 * self.calls)


@pytest.fixture
def thread_group() -> type[ThreadGroup]:
    return ThreadGroup
