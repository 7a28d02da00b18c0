"""The exchange in the kernel on some of a fabric's hosts, checked bit for bit."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from testbed.comm.group import GroupSpec, Lanes, make_groups
from testbed.core.closing import Closing
from testbed.core.errors import CollectiveError
from testbed.datapath import set_datapath
from testbed.exchange.interface import Aggregation, ExchangeSpec
from testbed.exchange.options import Adder, Broadcast, HaloChoice, RowType, SumWidth
from testbed.exchange.pinch.fixed_point import SLACK
from testbed.exchange.registry import open_exchange
from testbed.fabric import Fabric
from testbed.protocol.scale import ScaleGuess
from testbed.testing.aggregates import Kept, exact_aggregates, float_aggregates, token_aggregates
from testbed.testing.graphs import Partitioned
from testbed.worker import WorkerContext, Workers
from tests.support.exchange import hosts
from tests.support.kept import kept

__all__ = ["Opened", "PinchHosts", "assert_exact"]

WITHIN = 60.0  # seconds for a call


def open_in(context: WorkerContext, spec: ExchangeSpec) -> None:
    """Open an exchange."""
    with ExitStack() as stack:
        exchange = stack.enter_context(open_exchange("pinch", context, spec))
        exchange.connect()
        kept(context)[f"pinch/{spec.group.group_id}"] = exchange, stack.pop_all()


def aggregate_in(
    context: WorkerContext, number: int, inputs: list[Any], times: int = 1
) -> list[Any]:
    """Aggregate some embeddings `times` times each; return the results or errors of the last
    time.
    """
    exchange, _ = kept(context)[f"pinch/{number}"]
    results: list[Any] = []
    for _ in range(times):
        results = []
        for x in inputs:
            try:
                results.append(exchange.aggregate(x))
            except CollectiveError as error:
                results.append(error)
    return results


def measures_in(context: WorkerContext, number: int) -> dict[str, float]:
    """Return the counters."""
    exchange, _ = kept(context)[f"pinch/{number}"]
    return {**exchange.measures(), **exchange.statistics()}


def close_in(context: WorkerContext, number: int) -> None:
    """Close an exchange."""
    _, stack = kept(context).pop(f"pinch/{number}")
    stack.close()


def assert_exact(
    graph: Partitioned,
    kind: Aggregation,
    lanes: Lanes,
    x: np.ndarray,
    results: Sequence[Any],
    guess: ScaleGuess | None = None,
    choice: HaloChoice = "rows",
    adder: Adder = "kernel",
    width: SumWidth = "wide",
    broadcast: Broadcast = "tc",
    dtype: RowType | None = None,
) -> None:
    """Check that every rank has the sums of its lanes, or of rows, bit for bit.

    :param guess: See `exact_aggregates`; `choice` likewise.
    """
    if broadcast == "tokens":
        expected = token_aggregates(graph, x, kind, dtype, adder, choice)
    elif adder == "process":
        expected = float_aggregates(graph, x, kind, choice)
    else:
        bits = 16 if lanes == "int16" else 32
        expected = exact_aggregates(graph, x, kind, bits, guess, choice, width)
    assert_same(results, expected)


def assert_same(results: Sequence[Any], expected: Sequence[np.ndarray]) -> None:
    """Check the results of all ranks, bit for bit."""
    for rank, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        assert isinstance(result, np.ndarray), (rank, result)
        np.testing.assert_array_equal(result, wanted, err_msg=f"rank {rank}")


class Opened(Closing):
    """One exchange, open on the first of a fabric's hosts."""

    def __init__(
        self,
        on: "PinchHosts",
        graph: Partitioned,
        dim: int,
        kind: Aggregation,
        lanes: Lanes,
        timeout: float,
        options: dict[str, Any],
    ) -> None:
        self.on, self.graph, self.kind, self.lanes = on, graph, kind, lanes
        self.names = list(on.fabric.hosts)[: graph.world]
        self.choice: HaloChoice = options.pop("halo", "rows")
        options.setdefault("broadcast", "tc")
        self.adder: Adder = options.get("aggregate", "kernel")
        self.width: SumWidth = options.get("sums", "wide")
        self.broadcast: Broadcast = options.get("broadcast", "tc")
        self.dtype: RowType | None = options.get("dtype")
        self.open = False
        self.guess = ScaleGuess(slack=SLACK)
        self.kept: Kept | None = None
        if self.broadcast == "tokens" and options.get("bound") is not None:
            bound, staleness = options["bound"], options.get("staleness", 10)
            self.kept = Kept(graph, kind, bound, staleness, self.dtype, self.choice)
        window = {"window": options.pop("window")} if "window" in options else {}
        groups = on.groups(graph.world, lanes=lanes, timeout=timeout, **window)
        self.number = groups[0].group_id
        specs = [
            ExchangeSpec(group, halo, dim, kind, **options)
            for group, halo in zip(groups, graph.halos_of(self.choice), strict=True)
        ]
        self.call(open_in, [{"spec": spec} for spec in specs])
        self.open = True

    def call(
        self, function: Callable[..., Any], arguments: list[dict[str, Any]], **options: Any
    ) -> list[Any]:
        by_host = dict(zip(self.names, arguments, strict=True))
        return list(self.on.workers.call_all(function, by_host, timeout=WITHIN, **options).values())

    def arguments(self, inputs: Sequence[np.ndarray], **more: Any) -> list[dict[str, Any]]:
        parts = [self.graph.split(x) for x in inputs]
        return [
            {"number": self.number, "inputs": [part[rank] for part in parts], **more}
            for rank in range(self.graph.world)
        ]

    def aggregate(self, inputs: Sequence[np.ndarray], times: int = 1) -> list[list[Any]]:
        """Results of all ranks, by input."""
        by_rank = self.call(aggregate_in, self.arguments(inputs, times=times))
        return [[results[turn] for results in by_rank] for turn in range(len(inputs))]

    def check(self, inputs: Sequence[np.ndarray], times: int = 1) -> None:
        """Check that all results of the last of `times` times are exact; no time may change the
        scale.
        """
        for _ in range(times - 1):
            for x in inputs if self.kept else ():
                self.kept.send(x)
        for x, results in zip(inputs, self.aggregate(inputs, times), strict=True):
            if self.kept:
                assert_same(results, self.kept.aggregates(x))
                continue
            assert_exact(
                self.graph,
                self.kind,
                self.lanes,
                x,
                results,
                self.guess,
                self.choice,
                self.adder,
                self.width,
                self.broadcast,
                self.dtype,
            )

    def measures(self) -> dict[str, float]:
        """Sums over ranks."""
        found = self.call(measures_in, [{"number": self.number}] * self.graph.world)
        return {name: sum(each[name] for each in found) for name in found[0]}

    def close(self) -> None:
        if self.open:
            self.open = False
            self.call(close_in, [{"number": self.number}] * self.graph.world, errors="return")


class PinchHosts:
    """A fabric on the datapath that the exchange needs."""

    def __init__(self, fabric: Fabric, workers: Workers) -> None:
        self.fabric, self.workers = fabric, workers
        if fabric.datapath != "xdp":
            set_datapath(fabric, "xdp")

    def groups(self, ranks: int, **options: Any) -> tuple[GroupSpec, ...]:
        plan, directory = self.fabric.plan, str(self.fabric.directory)
        return make_groups(
            plan.hosts[:ranks],
            group_id=next(hosts.GROUPS),
            mtu=plan.mtu,
            rendezvous=directory,
            **options,
        )

    def open(
        self,
        graph: Partitioned,
        dim: int,
        kind: Aggregation = "sum",
        lanes: Lanes = "int16",
        timeout: float = 30.0,
        **options: Any,
    ) -> Opened:
        """Open an exchange on as many hosts as the graph has ranks.

        :param options: Fields of `ExchangeSpec`, and `halo`: what travels.
        """
        return Opened(self, graph, dim, kind, lanes, timeout, options)
