"""A fabric on which exchanges are opened and checked: their names, in one place, and the error that
each may have.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from testbed.comm.collective import Counters
from testbed.comm.group import GroupSpec, make_groups
from testbed.datapath import set_datapath
from testbed.exchange.interface import Aggregation, ExchangeSpec
from testbed.exchange.options import HaloChoice
from testbed.exchange.registry import EXCHANGES
from testbed.fabric import Fabric
from testbed.protocol.rows import ERRORS
from testbed.testing.graphs import Partitioned
from testbed.worker import Workers
from tests.support.exchange import calls
from tests.support.tiers import broad

__all__ = ["BOUNDS", "NAMES", "WITHIN", "Hosts", "every"]

NAMES = ["pinch", "tcp-push", "tcp-pull", "gloo"]


def every(names: Sequence[str] = NAMES, quick: int = 2) -> pytest.MarkDecorator:
    """Run a test with each of some exchanges, on the datapath that it needs: with the first few, or
    with all in `make test-all`.
    """
    parameters = (
        pytest.param(name, marks=pytest.mark.fabric(datapath=EXCHANGES[name].needs))
        for name in names
    )
    return pytest.mark.parametrize("name", broad(parameters, quick))


WITHIN = 60.0  # seconds for a call

Bounds = list[np.ndarray]

GROUPS = itertools.cycle(range(4096))


def float32_bounds(graph: Partitioned, x: np.ndarray, kind: Aggregation) -> Bounds:
    return graph.float32_bounds(x, kind)


def pinch_bounds(graph: Partitioned, x: np.ndarray, kind: Aggregation) -> Bounds:
    """Error bounds with rows of int16, the default."""
    return graph.float32_bounds(x, kind, ERRORS["int16"])


#: Largest error of an exchange's aggregates; exchanges that are not listed compute in float32.
BOUNDS: dict[str, Callable[[Partitioned, np.ndarray, Aggregation], Bounds]] = {
    "pinch": pinch_bounds
}


class Hosts:
    """A fabric on which exchanges of one name are opened, on the datapath that they need."""

    def __init__(self, fabric: Fabric, workers: Workers, name: str) -> None:
        self.fabric, self.workers, self.name = fabric, workers, name
        needed = EXCHANGES[name].needs
        if fabric.datapath != needed:
            set_datapath(fabric, needed)

    def groups(self, **options: Any) -> tuple[GroupSpec, ...]:
        plan, directory = self.fabric.plan, str(self.fabric.directory)
        return make_groups(
            plan.hosts, group_id=next(GROUPS), mtu=plan.mtu, rendezvous=directory, **options
        )

    def open(
        self,
        graph: Partitioned,
        dim: int,
        kind: Aggregation,
        halo: HaloChoice = "rows",
        **options: Any,
    ) -> int:
        """Open an exchange on all hosts; return its number."""
        specs = [
            ExchangeSpec(group, part, dim, kind)
            for group, part in zip(self.groups(**options), graph.halos_of(halo), strict=True)
        ]
        self._each(calls.open_one, [{"name": self.name, "spec": spec} for spec in specs])
        return specs[0].group.group_id

    def aggregate(
        self, number: int, graph: Partitioned, inputs: Sequence[np.ndarray]
    ) -> list[list[Any]]:
        """Each rank's results or errors when it aggregates inputs one after the other."""
        return self._each(calls.aggregate, self.arguments(number, graph, inputs))

    def arguments(
        self, number: int, graph: Partitioned, inputs: Sequence[np.ndarray]
    ) -> list[dict[str, Any]]:
        parts = [graph.split(x) for x in inputs]
        return [
            {"group_id": number, "inputs": [part[rank] for part in parts]}
            for rank in range(graph.world)
        ]

    def check(
        self, graph: Partitioned, kind: Aggregation, x: np.ndarray, results: Sequence[Any]
    ) -> None:
        bounds = BOUNDS.get(self.name, float32_bounds)(graph, x, kind)
        for rank, (result, exact, bound) in enumerate(
            zip(results, graph.aggregates(x, kind), bounds, strict=True)
        ):
            assert isinstance(result, np.ndarray), (rank, result)
            assert (result.dtype, result.shape) == (np.float32, exact.shape)
            other = result != exact  # infinities are equal
            assert (np.abs(result[other] - exact[other]) <= bound[other]).all(), (rank, kind)

    def counters(self, number: int) -> Counters:
        return sum(
            self._each(calls.count, [{"group_id": number}] * len(self.fabric.hosts)), Counters()
        )

    def _each(self, function: Callable[..., Any], arguments: list[dict[str, Any]]) -> list[Any]:
        by_host = dict(zip(self.fabric.hosts, arguments, strict=True))
        return list(self.workers.call_all(function, by_host, timeout=WITHIN).values())
