"""Exchanges by tokens on real hosts: rows bit for bit, under faults, and how they end."""

import os
import signal
from typing import Any

import numpy as np
import pytest

from testbed.core.errors import CollectiveError
from testbed.exchange.interface import ExchangeSpec
from testbed.exchange.registry import open_exchange
from testbed.testing import assert_faults_fired
from testbed.testing.graphs import Partitioned, draw_partitioned, embeddings
from tests.support.exchange.pinch_hosts import PinchHosts, aggregate_in, assert_exact, close_in
from tests.support.kept import kept
from tests.support.tiers import broad

pytestmark = [pytest.mark.net, pytest.mark.fabric(hosts=4, datapath="xdp")]

TOKENS = {"broadcast": "tokens", "aggregate": "process"}
ADDERS = ["process", "kernel", "cache"]
WAYS = [
    ("process", "int16"),
    ("kernel", "int16"),
    ("process", "float32"),
    ("kernel", "int32"),
    ("process", "bfloat16"),
]
MAX = np.finfo(np.float32).max
FAULTS = [
    ["drop p=0.1", "duplicate p=0.1", "delay p=0.1 delay=2ms jitter=1ms"],
    ["drop p=0.3"],
    ["corrupt p=0.1 bits=3"],
    ["duplicate p=0.5 copies=2"],
    ["reorder p=0.2 behind=5", "delay p=0.2 delay=5ms jitter=4ms"],
    ["burst enter=0.02 leave=0.5"],
    ["drop p=0.5 kind=ack"],
    ["delay delay=20ms jitter=15ms"],
    ["link-down host=h2 at=5ms for=300ms"],
    ["pause host=h3 at=5ms for=500ms"],
    ["flood switch=s1 for=300ms"],
]


def by(adder: str, dtype: str = "int16") -> dict[str, Any]:
    if adder == "cache":
        return {**by("process", dtype), "bound": 0.05, "staleness": 3}
    return {"broadcast": "tokens", "aggregate": adder, "dtype": dtype}


def moving(graph: Partitioned, dim: int, turns: int) -> list[np.ndarray]:
    """From turn to turn, about a third of the embeddings change, some of them only a little."""
    random = np.random.default_rng(turns)
    x = random.uniform(-1, 1, (len(graph.owner), dim)).astype(np.float32)
    found = [x]
    for _ in range(turns - 1):
        moved = random.random(len(x)) < 0.3
        by = random.uniform(-1, 1, x.shape) * random.choice([0.01, 0.1, 1], (len(x), 1))
        x = np.where(moved[:, None], x + by, x).astype(np.float32)
        found.append(x)
    return found


@pytest.fixture
def hosts(fabric, workers) -> PinchHosts:
    return PinchHosts(fabric, workers)


@pytest.mark.parametrize(("adder", "dtype"), WAYS)
@pytest.mark.parametrize("kind", broad(["weighted", "sum", "max"]))
def test_rows_arrive_bit_for_bit(hosts, kind, adder, dtype, assert_nothing_left) -> None:
    for ranks, dim, halo in ((2, 64, "rows"), (4, 17, "cover"), (3, 512, "rows"), (4, 1, "cover")):
        graph = draw_partitioned(ranks, 500, 4000, ranks, hub=3000)
        inputs = [embeddings(turn, graph, dim) for turn in range(4)]
        with hosts.open(graph, dim, kind, halo=halo, **by(adder, dtype)) as exchange:
            exchange.check(inputs)
    assert_nothing_left()


@pytest.mark.parametrize("adder", ADDERS)
@pytest.mark.parametrize("halo", ["rows", "cover"])
def test_ranks_of_other_magnitudes(hosts, halo, adder) -> None:
    """Programs add lanes whose steps differ, from one sender to the next and from one exchange to
    the next.
    """
    graph = draw_partitioned(0, 500, 4000, 4)
    inputs = [embeddings(turn, graph, 24) for turn in range(5)]
    for turn, x in enumerate(inputs):
        for rank, each in enumerate(graph.halos):
            x[each.owned] *= np.float32(2.0 ** ((turn - 2) * 3 * rank))
    inputs.append(np.zeros_like(inputs[0]))
    for kind in ("sum", "weighted", "max"):
        with hosts.open(graph, 24, kind, halo=halo, **by(adder)) as exchange:
            exchange.check(inputs, times=2)


@pytest.mark.parametrize(
    "mtu",
    broad(
        pytest.param(mtu, marks=pytest.mark.fabric(hosts=3, mtu=mtu, datapath="xdp"))
        for mtu in (65535, 9000, 576, 3506)
    ),
)
def test_other_mtus(hosts, mtu) -> None:
    """With the largest, tokens carry all frames but the first; else the kernel makes them."""
    graph = draw_partitioned(0, 2000, 15_000, 3)
    for dim, adder, dtype in (
        (5, "process", "int16"),
        (512, "process", "float32"),
        (512, "kernel", "int16"),
        (63, "kernel", "int32"),
        (512, "cache", "int16"),
    ):
        with hosts.open(graph, dim, "weighted", **by(adder, dtype)) as exchange:
            exchange.check(moving(graph, dim, 3))


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(settings, marks=pytest.mark.fabric(hosts=3, datapath="xdp", **settings))
        for settings in ({"switch": "bridge"}, {"xdp": "generic"}, {"queues": 1})
    ],
    ids=str,
)
def test_other_fabrics(hosts, settings) -> None:
    """A bridge cuts off what is behind a packet's end; in the stack, frames are not redirected."""
    graph = draw_partitioned(0, 2000, 15_000, 3)
    for halo, adder in (("rows", "kernel"), ("cover", "process"), ("cover", "cache")):
        with hosts.open(graph, 64, "weighted", halo=halo, **by(adder)) as exchange:
            exchange.check(moving(graph, 64, 3))


@pytest.mark.parametrize("window", [1, 2, 256])
def test_other_windows(hosts, window) -> None:
    graph = draw_partitioned(0, 2000, 15_000, 4)
    for adder in ("process", "cache"):
        with hosts.open(graph, 64, window=window, **by(adder)) as exchange:
            exchange.check(moving(graph, 64, 3), times=3)


@pytest.mark.parametrize("adder", ["process", "cache"])
def test_many_in_a_row(hosts, adder) -> None:
    graph = draw_partitioned(0, 60, 500, 4)
    with hosts.open(graph, 3, **by(adder)) as exchange:
        exchange.check(moving(graph, 3, 3), times=200)


@pytest.mark.deep
@pytest.mark.parametrize("adder", ADDERS)
def test_ranks_without_vertices_or_partners(hosts, adder) -> None:
    for empty, aloof in (((1,), (3,)), ((0, 1, 2), ()), ((), (0, 1, 2, 3))):
        graph = draw_partitioned(0, 100, 800, 4, empty=empty, aloof=aloof)
        with hosts.open(graph, 7, "max", **by(adder)) as exchange:
            exchange.check([embeddings(turn, graph, 7) for turn in range(3)])


@pytest.mark.parametrize(
    ("words", "adder"),
    broad(
        [
            (FAULTS[0], "process"),
            (FAULTS[2], "kernel"),
            (FAULTS[0], "cache"),
            (FAULTS[0], "kernel"),
            *((words, adder) for words in FAULTS[1:] for adder in ("process", "cache")),
        ],
        quick=3,
    ),
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_rows_arrive_under_faults(hosts, faults, words, adder, assert_nothing_left) -> None:
    graph = draw_partitioned(0, 1500, 12_000, 4)
    with hosts.open(graph, 64, "weighted", **by(adder)) as exchange:
        with faults(*words, seed=3) as injected:
            turn, inputs = 0, moving(graph, 64, 10)
            while turn < 3 or not all(entry.ended for entry in injected.timeline.log()):
                exchange.check([inputs[turn % len(inputs)]])
                turn += 1
        for fault in words:
            assert_faults_fired(injected, fault.split()[0])
    assert_nothing_left()


@pytest.mark.parametrize(
    ("kind", "halo"), [("sum", "rows"), ("max", "cover")], ids=lambda value: value
)
@pytest.mark.parametrize(
    ("broadcast", "adder"),
    [("tokens", "process"), ("tokens", "kernel"), ("tokens", "cache"), ("tc", "process")],
)
def test_what_is_not_finite_is_an_error_where_it_is_needed(
    hosts, kind, halo, broadcast, adder
) -> None:
    graph = draw_partitioned(0, 60, 800, 4)
    x = embeddings(0, graph, 3)
    bad = x.copy()
    sender = graph.halos[1]
    bad[sender.owned[sender.sends[0][0]], 1] = -np.inf
    options = by(adder) if broadcast == "tokens" else {"broadcast": "tc", "aggregate": adder}
    with hosts.open(graph, 3, kind, halo=halo, **options) as exchange:
        exchange.check([x])
        results = exchange.aggregate([bad])[0]
        said = "exchange: rank 1 (h2) has embeddings that are not finite"
        assert str(results[0]) == str(results[1]) == said
        if exchange.kept:
            exchange.kept.send(bad)
        if broadcast == "tokens":
            exchange.check([x])


@pytest.mark.parametrize(("adder", "dtype"), [*WAYS, ("cache", "int16")])
def test_values_near_the_largest_are_neither_infinite_nor_an_error(hosts, adder, dtype) -> None:
    graph = draw_partitioned(0, 60, 800, 4)
    x = np.full((60, 3), 1.0, np.float32)
    x[::2] = MAX
    x[1::2, 1] = -MAX
    weights = np.abs(np.concatenate([halo.weights for halo in graph.halos])).sum()
    for halo in ("rows", "cover"):
        with hosts.open(graph, 3, "max", halo=halo, **by(adder, dtype)) as exchange:
            for rank, result in enumerate(exchange.aggregate([x])[0]):
                assert isinstance(result, np.ndarray), result
                some = np.diff(graph.halos[rank].indptr) > 0
                assert np.isfinite(result[some]).all()
    assert weights > 0


OTHER = [
    ({"dim": 15}, {"dim": 16}),
    ({"dtype": "int16", "dim": 16}, {"dtype": "float32", "dim": 8}),
    ({"dtype": "int16"}, {"dtype": "bfloat16"}),
    ({"bound": 0.0}, {"bound": None}),
    ({"kind": "sum"}, {"kind": "max"}),
    ({"halo": "rows"}, {"halo": "cover"}),
    ({"aggregate": "kernel", "dtype": "int16"}, {"aggregate": "kernel", "dtype": "int32"}),
]


def open_alone(context, spec):
    try:
        with open_exchange("pinch", context, spec) as exchange:
            exchange.connect()
        return None
    except CollectiveError as error:
        return str(error)


@pytest.mark.parametrize(("one", "other"), broad(OTHER, 2), ids=str)
def test_ranks_that_open_with_other_options_are_told(hosts, workers, one, other) -> None:
    """At once, and by both; whatever is asked for again."""
    graph = draw_partitioned(0, 60, 500, 2)
    groups = hosts.groups(2, timeout=20.0, connect_timeout=20.0)
    specs = []
    for rank, options in enumerate((one, other)):
        chosen = {"dim": 16, "kind": "sum", "halo": "rows", **TOKENS, **options}
        halo = graph.halos_of(chosen.pop("halo"))[rank]
        dim, kind = chosen.pop("dim"), chosen.pop("kind")
        specs.append(ExchangeSpec(groups[rank], halo, dim, kind, **chosen))
    calls = {f"h{rank + 1}": {"spec": spec} for rank, spec in enumerate(specs)}
    found = workers.call_all(open_alone, calls, timeout=15.0)
    said = [
        f"exchange: rank {rank} (h{rank + 1}) sends rows of another format than this rank expects"
        for rank in (1, 0)
    ]
    told = zip(found.values(), said, strict=True)
    assert any(str(error).startswith(words) for error, words in told)
    assert all(found.values())


def jump(context, number, seq):
    """Go on with a later exchange, as if only first frames had been sent since."""
    exchange, _ = kept(context)[f"pinch/{number}"]
    port = exchange.port
    assert (port.seq - seq) % 2 == 0
    for partner in port.layout.partners:
        port.slots["claim"][:, partner.slot] = 0
    port.open(seq)


@pytest.mark.deep
def test_slots_that_are_not_used_for_long_do_not_belong_to_the_future(hosts) -> None:
    """Messages with few rows leave most slots alone, for more exchanges than numbers have order."""
    graph = draw_partitioned(5, 1000, 8000, 3)
    x, y = (embeddings(turn, graph, 64) for turn in range(2))
    with hosts.open(graph, 64, bound=0.0, timeout=5.0, **TOKENS) as exchange:
        exchange.check([x, y, x])  # slots of both parities are used
        for quarter in (1, 2, 3):
            turns = (exchange.measures()["seq"] // 3) % 2
            seq = quarter * 2**30 - 4 + int(turns)
            exchange.call(jump, [{"number": exchange.number, "seq": seq}] * 3)
            exchange.check([x], times=12)
        exchange.check([y, x])


def test_a_killed_rank_is_named(hosts, workers) -> None:
    graph = draw_partitioned(0, 300, 3000, 4)
    exchange = hosts.open(graph, 16, timeout=2.0, **TOKENS)
    exchange.check([embeddings(0, graph, 16)])
    workers.kill("h2")
    arguments = exchange.arguments([embeddings(1, graph, 16)])
    names = exchange.names
    others = {name: arguments[rank] for rank, name in enumerate(names) if name != "h2"}
    found = workers.call_all(aggregate_in, others, timeout=60.0)
    for name, (error,) in found.items():
        assert isinstance(error, CollectiveError), name
        assert "rank 1 (h2)" in str(error), str(error)
    left = {name: {"number": exchange.number} for name in others}
    workers.call_all(close_in, left, timeout=60.0)
    exchange.open = False


def test_a_rank_without_a_link_is_named_in_bounded_time(hosts, faults) -> None:
    """A link without a carrier takes no frame, so nothing may wait until it does."""
    graph = draw_partitioned(0, 300, 3000, 4)
    with hosts.open(graph, 16, timeout=1.0, **TOKENS) as exchange:
        with faults("link-down host=h2"):
            found = exchange.aggregate([embeddings(1, graph, 16)])[0]
        for rank, error in enumerate(found):
            assert isinstance(error, CollectiveError), rank
            assert "rank 1 (h2)" in str(error) or rank == 1, str(error)


@pytest.mark.deep
def test_a_stopped_rank_is_named_in_bounded_time(hosts, workers) -> None:
    graph = draw_partitioned(0, 300, 3000, 4)
    exchange = hosts.open(graph, 16, timeout=1.0, **TOKENS)
    arguments = exchange.arguments([embeddings(1, graph, 16)])
    os.kill(workers["h3"].pid, signal.SIGSTOP)
    try:
        others = {"h1": arguments[0], "h2": arguments[1], "h4": arguments[3]}
        found = workers.call_all(aggregate_in, others, timeout=60.0)
    finally:
        os.kill(workers["h3"].pid, signal.SIGCONT)
    for (error,) in found.values():
        assert "rank 2 (h3)" in str(error), str(error)
    exchange.open = False
    workers.call_all(close_in, {each: {"number": exchange.number} for each in exchange.names})


def aggregate_and_close(context, number, inputs):
    try:
        return aggregate_in(context, number, inputs)
    finally:
        close_in(context, number)


@pytest.mark.parametrize("seed", broad(range(4)))
def test_ranks_that_close_at_once_leave_nobody_behind(hosts, faults, seed) -> None:
    graph = draw_partitioned(seed, 1000, 8000, 4)
    exchange = hosts.open(graph, 64, timeout=10.0, **TOKENS)
    x = embeddings(1, graph, 64)
    with faults("drop p=0.2", seed=seed):
        by_rank = exchange.call(aggregate_and_close, exchange.arguments([x]))
    exchange.open = False
    results = [of_rank[0] for of_rank in by_rank]
    assert_exact(graph, "sum", "int16", x, results, adder="process", broadcast="tokens")


# The cache.


@pytest.mark.parametrize("dtype", broad(["int16", "float32", "bfloat16"]))
@pytest.mark.parametrize("kind", broad(["weighted", "sum", "max"]))
def test_rows_that_have_hardly_changed_are_not_sent(hosts, kind, dtype) -> None:
    for ranks, dim, halo in ((2, 64, "cover"), (4, 17, "rows"), (3, 256, "cover"), (4, 1, "rows")):
        graph = draw_partitioned(ranks, 900, 6000, ranks, hub=3000)
        inputs = moving(graph, dim, 6)
        for bound, staleness in ((0.0, 10), (0.05, 3), (1e9, 2)):
            options = {"bound": bound, "staleness": staleness, "dtype": dtype}
            with hosts.open(graph, dim, kind, halo=halo, **TOKENS, **options) as exchange:
                exchange.check(inputs)
                exchange.check(inputs[-1:], times=3)
                found = exchange.measures()
            assert found["cache_lookups"] == exchange.kept.lookups
            assert found["cache_hits"] == exchange.kept.hits > 0
            assert found["bytes_saved"] >= found["cache_hits"] * 2 * dim


@pytest.mark.parametrize("halo", ["rows", "cover"])
def test_rows_that_are_kept_are_as_large_as_ever(hosts, halo) -> None:
    """Sums of large values pass through infinity in float32, even after an exchange in which none
    of them was sent.
    """
    graph = draw_partitioned(0, 60, 800, 4)
    x = np.full((60, 3), 0.9 * MAX, np.float32)
    x[::2] *= -1
    later = x.copy()
    later[7] = 1.0
    with hosts.open(graph, 3, "sum", halo=halo, **by("cache", "float32")) as exchange:
        found = exchange.aggregate([x, later, later])
    finite = 0
    for values, results in zip((x, later, later), found, strict=True):
        exact = graph.aggregates(values.astype(np.float64), "sum")
        for result, wanted in zip(results, exact, strict=True):
            fits = np.abs(wanted) < MAX
            finite += fits.sum()
            np.testing.assert_allclose(result[fits], wanted[fits], rtol=1e-5, atol=1e-5 * MAX)
    assert finite


def test_what_did_not_change_is_not_on_the_wire(hosts) -> None:
    """A message without rows is a bit for each, in as many frames as these need."""
    graph = draw_partitioned(0, 3000, 20_000, 4)
    x = embeddings(0, graph, 64)
    with hosts.open(graph, 64, bound=0.0, **TOKENS) as exchange:
        exchange.check([x])
        first = exchange.measures()
        exchange.check([x], times=5)
        found = exchange.measures()
    partners = sum(len(rows) > 0 for halo in graph.halos for rows in halo.sends)
    assert found["sent"] - first["sent"] == 5 * partners
    rows = sum(len(rows) for halo in graph.halos for rows in halo.sends)
    assert found["bytes_saved"] - first["bytes_saved"] == 5 * rows * (2 * 64 + 4)
