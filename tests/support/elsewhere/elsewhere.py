"""Another package's transport, topology and data set."""

import socket
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import numpy as np
from mininet.topo import Topo
from pydantic import Field

from testbed.comm.backend import Backend, Tensor
from testbed.comm.collective import Counters
from testbed.comm.netdev import read_counters
from testbed.comm.rendezvous import Rendezvous
from testbed.core.errors import CollectiveError
from testbed.gnn.datasets import SplitDataset
from testbed.gnn.graph import GraphData, cached, from_edges, random_split


class Hub(Backend):
    """All-reduce over TCP by way of rank 0, which adds, and returns the sum."""

    name = "hub"

    def connect(self) -> None:
        self._stack, self._base = ExitStack(), read_counters(self.context.host.ifname)
        rank, others = self.spec.rank, [(other, 0) for other in range(1, self.spec.size)]
        meeting = Rendezvous(self.name, self.spec, 1 << 18, self._stack)
        made = meeting.connect([(0, 0)] if rank else [], [] if rank else others)
        self._wires = [wire for _, wire in sorted({**made[0], **made[1]}.items())]

    def _all_reduce(self, tensor: Tensor, out: Tensor) -> None:
        np.copyto(out, tensor)
        try:
            if self.spec.rank:
                self._wires[0].sendall(out)
            for wire in self._wires:
                part = out if self.spec.rank else np.empty_like(out)
                if wire.recv_into(part, flags=socket.MSG_WAITALL) < out.nbytes:
                    raise EOFError("the connection has ended")
                if not self.spec.rank:
                    np.add(out, part, out=out)
            for wire in () if self.spec.rank else self._wires:
                wire.sendall(out)
        except (OSError, EOFError) as error:
            raise CollectiveError(f"hub: rank {self.spec.rank}: {error}") from error

    def counters(self) -> Counters:
        return read_counters(self.context.host.ifname) - self._base

    def close(self) -> None:
        self._stack.close()


class Chain(Topo):  # type: ignore[misc]  # Mininet has no types
    """Switches in a row, each with one host."""

    def build(self, hosts: int = 4) -> None:
        switches = [self.addSwitch(f"s{number}") for number in range(1, hosts + 1)]
        for number, switch in enumerate(switches, 1):
            self.addLink(self.addHost(f"h{number}"), switch)
        for left, right in pairwise(switches):
            self.addLink(left, right)


class Grid(SplitDataset):
    """A square grid whose vertices have the labels of its quarters."""

    name: str
    width: int = Field(default=16, ge=4, le=1024)

    def prepare(self) -> Path:
        return cached(f"grid-{self.width}-{self.seed}-{self.train_fraction}", self.draw)

    def draw(self) -> GraphData:
        n = self.width**2
        row, column = np.divmod(np.arange(n), self.width)
        down, right = np.flatnonzero(row + 1 < self.width), np.flatnonzero(column + 1 < self.width)
        ends = np.concatenate([down, right]), np.concatenate([down + self.width, right + 1])
        labels = 2 * (2 * row // self.width) + 2 * column // self.width
        features = np.random.default_rng(self.seed).standard_normal((n, 8), np.float32)
        features[:, :4] += 3 * np.eye(4, dtype=np.float32)[labels]
        split = random_split(n, self.train_fraction, self.val_fraction, self.seed)
        return GraphData("grid", *from_edges(*ends, n), features, labels, *split, num_classes=4)
