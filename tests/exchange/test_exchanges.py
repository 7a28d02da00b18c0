"""Every exchange on real hosts, against the reference."""

import itertools
import os
import signal
from typing import get_args

import numpy as np
import pytest

from testbed.core.errors import CollectiveError
from testbed.exchange.interface import Aggregation
from testbed.fabric import Fabric
from testbed.plan import plan_fabric
from testbed.testing.graphs import draw_partitioned, embeddings
from testbed.worker import Workers
from tests.support.exchange import calls
from tests.support.exchange.hosts import NAMES, WITHIN, Hosts, every
from tests.support.tiers import broad

pytestmark = pytest.mark.net

KINDS = get_args(Aggregation)
DIMS = (1, 3, 64, 512)
NOT_TCP = ["pinch", "gloo"]
"""Those that test_tcp.py does not test."""


@pytest.fixture
def hosts(name: str, fabric: Fabric, workers: Workers) -> Hosts:
    return Hosts(fabric, workers, name)


@pytest.mark.parametrize("ranks", broad([3, 1, 2, 4, 5]))
def test_aggregates_equal_the_references(ranks: int) -> None:
    graph = draw_partitioned(ranks, 150, 1200, ranks)
    # Each kind and each dim occurs; their pairs differ between numbers of ranks.
    grid = list(zip(itertools.islice(itertools.cycle(KINDS), ranks, None), DIMS, strict=False))
    with Fabric(plan_fabric(hosts=ranks)) as fabric, Workers(fabric) as workers:
        # Over TCP, the number of ranks is varied where they are threads.
        for name in NAMES if ranks == 3 else NOT_TCP:
            hosts = Hosts(fabric, workers, name)
            for kind, dim in grid:
                inputs = [embeddings(number, graph, dim) for number in range(3)]
                number = hosts.open(graph, dim, kind)
                results = hosts.aggregate(number, graph, inputs)
                for turn, x in enumerate(inputs):
                    hosts.check(graph, kind, x, [of_rank[turn] for of_rank in results])


@every(NOT_TCP, quick=1)
@pytest.mark.fabric(hosts=4)
@pytest.mark.deep
def test_ranks_may_have_no_vertices_or_no_neighbours(name: str, hosts: Hosts) -> None:
    for empty, aloof in (
        ((1,), (3,)),
        ((0,), ()),
        ((), (0, 2)),
        ((0, 1, 2), ()),
        ((), (0, 1, 2, 3)),
    ):
        graph = draw_partitioned(0, 100, 800, 4, empty=empty, aloof=aloof)
        for kind in KINDS:
            x = embeddings(0, graph, 7)
            number = hosts.open(graph, 7, kind)
            hosts.check(
                graph, kind, x, [results[0] for results in hosts.aggregate(number, graph, [x])]
            )


@every(NOT_TCP, quick=1)
@pytest.mark.fabric(hosts=4)
@pytest.mark.deep
def test_several_exchanges_can_be_open_at_once(name: str, hosts: Hosts) -> None:
    """As in training: layers of different dims alternate, forward and backward."""
    graphs = [draw_partitioned(seed, 200, 2000, 4) for seed in (0, 1)]
    layers = [(graphs[k % 2], dim, KINDS[k % 3]) for k, dim in enumerate((64, 3, 64, 16))]
    numbers = [hosts.open(*layer) for layer in layers]
    for epoch in range(3):
        for k in (0, 1, 2, 3, 2, 1, 0):
            graph, dim, kind = layers[k]
            x = embeddings(10 * epoch + k, graph, dim)
            hosts.check(
                graph, kind, x, [results[0] for results in hosts.aggregate(numbers[k], graph, [x])]
            )


@every()
@pytest.mark.fabric(hosts=4)
@pytest.mark.deep
def test_a_larger_graph_with_a_hub(name: str, hosts: Hosts) -> None:
    graph = draw_partitioned(0, 8000, 60_000, 4, hub=20_000)
    for kind in KINDS:
        x = embeddings(0, graph, 64)
        number = hosts.open(graph, 64, kind)
        hosts.check(graph, kind, x, [results[0] for results in hosts.aggregate(number, graph, [x])])
        sent = hosts.counters(number)
        # Each halo vertex is received at least once, at least as 16-bit numbers; the largest frame
        # is a TSO super-packet.
        assert sent.wire_bytes > sum(halo.num_halo for halo in graph.halos) * 64 * 2
        assert 0 < sent.packets < sent.wire_bytes / 54


@every([name for name in NAMES if name != "pinch"])
@pytest.mark.fabric(hosts=4)
def test_partial_sums_travel_instead_of_rows(name: str, hosts: Hosts) -> None:
    """`pinch` has a test of its own, bit for bit."""
    for graph in (draw_partitioned(0, 8000, 60_000, 4, hub=20_000), draw_partitioned(1, 9, 200, 4)):
        for kind in KINDS:
            x = embeddings(0, graph, 17)
            number = hosts.open(graph, 17, kind, halo="cover")
            hosts.check(
                graph, kind, x, [results[0] for results in hosts.aggregate(number, graph, [x])]
            )


@every(NOT_TCP, quick=1)
@pytest.mark.fabric(hosts=3)
@pytest.mark.parametrize("value", broad([np.nan, np.inf, -np.inf]))
def test_values_that_are_not_finite(name: str, hosts: Hosts, value: float) -> None:
    graph = draw_partitioned(0, 60, 800, 3)
    x = embeddings(0, graph, 3)
    x[graph.halos[1].owned[4], 1] = value
    results = hosts.aggregate(hosts.open(graph, 3, "sum"), graph, [x])
    for of_rank in results:
        assert str(of_rank[0]) == "exchange: rank 1 (h2) has embeddings that are not finite"


@every(NOT_TCP, quick=1)
@pytest.mark.fabric(hosts=3)
@pytest.mark.deep
def test_a_stopped_rank_is_an_error_in_bounded_time(name: str, hosts: Hosts) -> None:
    graph = draw_partitioned(0, 300, 3000, 3)
    number = hosts.open(graph, 64, "sum", timeout=1.0)
    os.kill(hosts.workers["h2"].pid, signal.SIGSTOP)
    x = embeddings(0, graph, 64)
    arguments = hosts.arguments(number, graph, [x] * 2)
    try:
        results = hosts.workers.call_all(
            calls.aggregate, {"h1": arguments[0], "h3": arguments[2]}, timeout=WITHIN
        )
    finally:
        os.kill(hosts.workers["h2"].pid, signal.SIGCONT)
    for of_rank in results.values():
        for error in of_rank:
            assert isinstance(error, CollectiveError)
            if (
                name != "gloo"
            ):  # which says that the time is up, or names an address if it was the first to notice
                assert "rank 1 (h2)" in str(error)
