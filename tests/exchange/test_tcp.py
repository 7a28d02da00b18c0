"""tcp-push and tcp-pull: all ranks as threads over loopback addresses. test_exchanges.py tests them
on a fabric.
"""

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.comm.group import make_groups
from testbed.core.errors import CollectiveError, SpecError
from testbed.exchange import mesh
from testbed.exchange.halo import Halo
from testbed.exchange.interface import Aggregation, Exchange, ExchangeSpec
from testbed.exchange.registry import open_exchange
from testbed.protocol.rows import ERRORS
from testbed.testing.graphs import Partitioned, draw_partitioned, embeddings
from tests.support.exchange.graphs import partitioned
from tests.support.tiers import broad

CONTEXT: Any = SimpleNamespace(host=SimpleNamespace(ifname="lo"))
NAMES = ["tcp-push", "tcp-push-16", "tcp-pull"]
KINDS = get_args(Aggregation)
GROUP_IDS = itertools.cycle(range(4096))

both = pytest.mark.parametrize("name", NAMES)


def make_specs(
    graph: Partitioned, dim: int = 3, kind: Aggregation = "weighted", **options: float
) -> list[ExchangeSpec]:
    hosts = [
        SimpleNamespace(name=f"h{rank + 1}", ip=f"127.78.0.{rank + 1}", mac="")
        for rank in range(graph.world)
    ]
    groups = make_groups(hosts, group_id=next(GROUP_IDS), **{"timeout": 5.0} | options)
    return [
        ExchangeSpec(group, halo, dim, kind)
        for group, halo in zip(groups, graph.halos, strict=True)
    ]


def on_all_ranks(
    name: str, specs: Sequence[ExchangeSpec], work: Callable[[int, Exchange], Any]
) -> list[Any]:
    """Run work(rank, exchange) in one thread per rank; return each one's result, or the
    CollectiveError that it raised.
    """
    left = threading.Barrier(len(specs))

    def one(spec: ExchangeSpec) -> Any:
        with open_exchange(name, CONTEXT, spec) as exchange:
            try:
                exchange.connect()
                return work(spec.group.rank, exchange)
            except CollectiveError as error:
                return error
            finally:
                left.wait(
                    30
                )  # no rank may mistake an exchange that has not failed for a closed one

    with ThreadPoolExecutor(len(specs)) as pool:
        return list(pool.map(one, specs))


def texts(results: Sequence[Any]) -> list[str | None]:
    return [str(result) if isinstance(result, CollectiveError) else None for result in results]


def check(
    graph: Partitioned, kind: Aggregation, x: np.ndarray, results: Sequence[Any], name: str = ""
) -> None:
    for halo, result, exact, bound in zip(
        graph.halos,
        results,
        graph.aggregates(x, kind),
        graph.float32_bounds(x, kind),
        strict=True,
    ):
        assert result.shape == exact.shape
        same = result == exact  # infinities included
        if name == "tcp-push-16":
            bound = bound + ERRORS["int16"] * reach(halo, kind) * np.abs(x).max(initial=0)
        assert (np.abs(result[~same] - exact[~same]) <= bound[~same]).all()


def reach(halo: Halo, kind: Aggregation) -> np.ndarray:
    """How much of an error of its summands, all alike, each vertex's aggregate may have."""
    weights = np.ones(len(halo.indices)) if kind != "weighted" else np.abs(halo.weights)
    target = np.repeat(np.arange(halo.num_owned), np.diff(halo.indptr))
    found = np.bincount(target, weights, halo.num_owned)[:, None]
    return np.minimum(found, 1) if kind == "max" else found


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make rows be gathered a few at a time, and sockets accept only parts of messages."""
    monkeypatch.setattr(mesh, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(mesh, "BUFFER_BYTES", 4608)


@both
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("world", "dim"), [(1, 3), (2, 1), (3, 64), (4, 3), (5, 512)])
def test_aggregates_equal_the_references(
    small_chunks: None, name: str, kind: Aggregation, world: int, dim: int
) -> None:
    graph = draw_partitioned(world, 200, 1500, world)
    inputs = [embeddings(number, graph, dim) for number in range(3)]

    def work(rank: int, exchange: Exchange) -> list[np.ndarray]:
        results = []
        for x in inputs:
            mine = graph.split(x)[rank]
            results.append(exchange.aggregate(mine))
            assert np.array_equal(mine, graph.split(x)[rank])
        return results

    results = on_all_ranks(name, make_specs(graph, dim, kind), work)
    for number, x in enumerate(inputs):
        check(graph, kind, x, [of_rank[number] for of_rank in results], name)


@both
@settings(max_examples=25)
@given(graph=partitioned(), kind=st.sampled_from(KINDS))
def test_any_graph_is_aggregated(name: str, graph: Partitioned, kind: Aggregation) -> None:
    x = embeddings(0, graph, 2)
    results = on_all_ranks(
        name,
        make_specs(graph, 2, kind),
        lambda rank, exchange: exchange.aggregate(graph.split(x)[rank]),
    )
    check(graph, kind, x, results, name)


@both
def test_ranks_may_have_no_vertices_or_no_neighbours(name: str) -> None:
    graph = draw_partitioned(0, 100, 800, 5, empty=[1], aloof=[3])
    x = embeddings(0, graph, 7)
    results = on_all_ranks(
        name, make_specs(graph, 7), lambda rank, exchange: exchange.aggregate(graph.split(x)[rank])
    )
    check(graph, "weighted", x, results, name)
    assert results[1].shape == (0, 7)
    assert not results[3].any()


@both
def test_a_thousand_in_a_row(name: str) -> None:
    """Ranks run ahead of each other as far as they can."""
    graph = draw_partitioned(0, 20, 200, 4)
    x = embeddings(0, graph, 1)

    def work(rank: int, exchange: Exchange) -> list[np.ndarray]:
        mine, out = graph.split(x)[rank], np.empty_like(graph.split(x)[rank])
        return [
            exchange.aggregate(mine * np.float32(2**k), out).copy()
            for k in (0, 3, 1)
            for _ in range(333)
        ]

    results = on_all_ranks(name, make_specs(graph, 1, "sum"), work)
    for number in range(999):
        factor = np.float32(2 ** (0, 3, 1)[number // 333])
        check(graph, "sum", x * factor, [of_rank[number] for of_rank in results], name)


@both
def test_several_exchanges_can_be_open_at_once(name: str) -> None:
    graph = draw_partitioned(0, 60, 400, 3)
    dims = (5, 1, 64)
    specs = [make_specs(graph, dim) for dim in dims]
    inputs = [embeddings(0, graph, dim) for dim in dims]

    def one(rank: int) -> list[np.ndarray]:
        exchanges = [open_exchange(name, CONTEXT, each[rank]) for each in specs]
        for exchange in exchanges:
            exchange.connect()
        results = [exchanges[k].aggregate(graph.split(inputs[k])[rank]) for k in (0, 1, 2, 1, 0)]
        for exchange in exchanges:
            exchange.close()
        return results

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(one, range(3)))
    for number, k in enumerate((0, 1, 2, 1, 0)):
        check(graph, "weighted", inputs[k], [of_rank[number] for of_rank in results], name)


@both
def test_time_is_accounted_for(name: str) -> None:
    graph = draw_partitioned(0, 2000, 9000, 2)
    x = embeddings(0, graph, 64)

    def work(rank: int, exchange: Exchange) -> dict[str, float]:
        exchange.aggregate(graph.split(x)[rank])
        return exchange.phases

    for phases in on_all_ranks(name, make_specs(graph, 64), work):
        assert phases["send"] > 0
        assert phases["wait"] > 0
        assert phases["aggregate"] > 0
        assert phases["quantize"] == phases["dequantize"] == 0


@both
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_an_error_on_all_ranks_but_do_not_end_the_exchange(
    name: str, value: float
) -> None:
    graph = draw_partitioned(0, 60, 800, 4)
    good = embeddings(0, graph, 3)
    bad = good.copy()
    for rank in (1, 3):
        halo = graph.halos[rank]
        sent = [halo.sends[other] for other in range(4) if other != rank]
        everywhere = functools.reduce(np.intersect1d, sent)
        bad[halo.owned[everywhere[0]], 2] = value
    caught: list[list[str]] = [[] for _ in range(4)]

    def work(rank: int, exchange: Exchange) -> np.ndarray:
        for x in (good, bad):
            try:
                exchange.aggregate(graph.split(x)[rank])
            except CollectiveError as error:
                caught[rank].append(str(error))
        return exchange.aggregate(graph.split(good)[rank])

    check(graph, "weighted", good, on_all_ranks(name, make_specs(graph), work), name)
    assert caught == [["exchange: rank 1 (h2), rank 3 (h4) has embeddings that are not finite"]] * 4


@both
def test_what_nobody_needs_may_be_anything(name: str) -> None:
    graph = draw_partitioned(0, 300, 300, 4)
    x = embeddings(0, graph, 3)
    halo = graph.halos[1]
    needed = functools.reduce(np.union1d, halo.sends)
    only = [np.setdiff1d(halo.sends[0], halo.sends[other]) for other in (2, 3)]
    x[np.delete(halo.owned, needed)] = np.nan
    results = on_all_ranks(
        name, make_specs(graph), lambda rank, exchange: exchange.aggregate(graph.split(x)[rank])
    )
    assert texts(results) == [None] * 4
    x[halo.owned[np.intersect1d(*only)[0]]] = np.inf  # which rank 0 alone needs
    results = on_all_ranks(
        name, make_specs(graph), lambda rank, exchange: exchange.aggregate(graph.split(x)[rank])
    )
    said = "exchange: rank 1 (h2) has embeddings that are not finite"
    assert texts(results) == [said, said, None, None]


PATIENCE = 2.0  # seconds; ranks that enter less than a quarter of it apart name the same one


@both
@pytest.mark.parametrize("dim", broad([512, 1]))
def test_all_ranks_name_the_one_that_is_silent(name: str, dim: int) -> None:
    graph = draw_partitioned(0, 4000, 20_000, 4)
    x = embeddings(0, graph, dim)
    entered = threading.Barrier(4)

    def work(rank: int, exchange: Exchange) -> Any:
        entered.wait(30)
        return rank == 1 or exchange.aggregate(graph.split(x)[rank])

    results = on_all_ranks(name, make_specs(graph, dim, timeout=PATIENCE), work)
    expected = f"{name}: rank 1 (h2) was silent for {PATIENCE:g} s"
    assert texts(results) == [expected, None, expected, expected]


@both
@pytest.mark.parametrize("dim", [1, 512])
def test_all_ranks_name_the_one_that_left(name: str, dim: int) -> None:
    graph = draw_partitioned(0, 4000, 20_000, 4)
    x = embeddings(0, graph, dim)

    def work(rank: int, exchange: Exchange) -> Any:
        return exchange.close() if rank == 2 else exchange.aggregate(graph.split(x)[rank])

    results = on_all_ranks(name, make_specs(graph, dim), work)
    expected = f"{name}: rank 2 (h3) has closed its connection or died"
    assert texts(results) == [expected, expected, None, expected]


def chain(world: int) -> Partitioned:
    """Rank r needs the vertex of rank r - 1, and no other."""
    indptr = np.concatenate([[0], np.arange(world)])
    return Partitioned(
        indptr,
        np.arange(world - 1, dtype=np.int32),
        np.ones(world - 1, np.float32),
        np.arange(world, dtype=np.int32),
        world,
    )


def test_ranks_that_do_not_need_the_one_at_fault_name_it_too() -> None:
    graph, entered = chain(4), threading.Barrier(4)

    def work(rank: int, exchange: Exchange) -> Any:
        entered.wait(30)
        return rank == 0 or [exchange.aggregate(np.ones((1, 3), np.float32)) for _ in range(4)]

    results = on_all_ranks("tcp-push", make_specs(graph, timeout=PATIENCE), work)
    expected = f"tcp-push: rank 0 (h1) was silent for {PATIENCE:g} s"
    assert texts(results) == [None, expected, expected, expected]


@both
def test_an_exchange_that_has_failed_repeats_its_error(name: str) -> None:
    graph = draw_partitioned(0, 20, 200, 2)

    def work(rank: int, exchange: Exchange) -> Any:
        x = graph.split(embeddings(0, graph, 3))[rank]
        if rank == 0:
            return exchange.close()
        with pytest.raises(CollectiveError) as first:
            exchange.aggregate(x)
        with pytest.raises(CollectiveError) as second:
            exchange.aggregate(x)
        return str(first.value), str(second.value)

    expected = f"{name}: rank 0 (h1) has closed its connection or died"
    assert on_all_ranks(name, make_specs(graph), work) == [None, (expected, expected)]


@both
def test_a_rank_that_never_comes(name: str) -> None:
    specs = make_specs(draw_partitioned(0, 30, 300, 3), connect_timeout=0.3)
    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(open_exchange(name, CONTEXT, specs[rank]).connect) for rank in (0, 2)
        ]
        errors = [str(future.exception()) for future in futures]
    assert errors == [
        f"{name}: rank 1 (h2) did not come within 0.3 s",
        f"{name}: rank 1 (h2) did not answer within 0.3 s",
    ]


@both
def test_ranks_that_disagree(name: str) -> None:
    graph = draw_partitioned(0, 30, 300, 2)
    narrow, wide = make_specs(graph, 3), make_specs(graph, 4)
    specs = [narrow[0], ExchangeSpec(narrow[1].group, wide[1].halo, 4, "weighted")]
    results = on_all_ranks(
        name,
        specs,
        lambda rank, exchange: exchange.aggregate(
            np.ones((exchange.spec.halo.num_owned, 3 + rank), np.float32)
        ),
    )
    what = "sent unexpected data: ranks differ in halos, dim, or number of calls"
    for result in results:
        assert str(result) in {f"{name}: rank {rank} (h{rank + 1}) {what}" for rank in (0, 1)}


def test_a_request_for_a_vertex_of_another_rank() -> None:
    graph = chain(2)
    specs = make_specs(graph)
    specs[1].halo.sources[0][0] = 77
    results = on_all_ranks(
        "tcp-pull", specs, lambda rank, exchange: exchange.aggregate(np.ones((1, 3), np.float32))
    )
    assert (
        texts(results)
        == ["tcp-pull: rank 1 (h2) asked a rank for a vertex that it does not own"] * 2
    )


@pytest.mark.parametrize(
    ("name", "x", "out", "text"),
    [
        ("tcp-push", np.zeros((4, 3)), None, "x is float64 of shape (4, 3) with strides (24, 8)"),
        (
            "tcp-pull",
            np.zeros((4, 3), np.float32),
            np.zeros((5, 3), np.float32),
            "out is float32 of shape (5, 3) with strides (12, 4)",
        ),
    ],
)
def test_bad_arrays(name: str, x: np.ndarray, out: np.ndarray | None, text: str) -> None:
    spec = make_specs(draw_partitioned(0, 4, 9, 1))[0]
    with pytest.raises(SpecError) as caught:
        open_exchange(name, CONTEXT, spec).aggregate(x, out)
    assert str(caught.value) == f"aggregate: {text}: must be float32 of shape (4, 3), C-contiguous"


@both
def test_arrays_that_cannot_be_written_are_refused_before_anything_is_sent(
    name: str, tmp_path: Path
) -> None:
    graph = draw_partitioned(3, 40, 200, 2)
    specs = make_specs(graph, kind="sum")
    rows = specs[0].halo.num_owned
    np.save(tmp_path / "out.npy", np.ones((rows, 3), np.float32))
    mapped = np.load(tmp_path / "out.npy", mmap_mode="r")  # writing there raises SIGSEGV
    x = np.ones((40, 3), np.float32)

    def work(rank: int, exchange: Exchange) -> np.ndarray:
        mine = x[: exchange.spec.halo.num_owned]
        if rank == 0:
            with pytest.raises(
                SpecError, match="aggregate: out is read-only: must be an array that can be written"
            ):
                exchange.aggregate(mine, mapped)
            with pytest.raises(
                SpecError, match="aggregate: out overlaps x: must be memory of its own"
            ):
                exchange.aggregate(mine, mine)
        return exchange.aggregate(mine)

    check(graph, "sum", x, on_all_ranks(name, specs, work))


@both
def test_not_connected(name: str) -> None:
    spec = make_specs(draw_partitioned(0, 4, 9, 1))[0]
    with pytest.raises(CollectiveError, match=f"^{name}: rank 0 is not connected$"):
        open_exchange(name, CONTEXT, spec).aggregate(np.zeros((4, 3), np.float32))
