"""The exchange in the kernel on real hosts, bit for bit: many in a row, two at once, frames of
earlier ones, a cache.
"""

import threading
from itertools import pairwise

import numpy as np
import pytest

from testbed.core.errors import CollectiveError
from testbed.exchange.pinch.fixed_point import Numbers
from testbed.exchange.pinch.layout import HEADROOM, RowLayout
from testbed.exchange.pinch.vertex_tables import make_tables
from testbed.protocol.wire import PinchKind
from testbed.testing import assert_faults_fired
from testbed.testing.aggregates import Format, exact, magnitude
from testbed.testing.graphs import Partitioned, draw_partitioned, embeddings
from tests.support.exchange.pinch_hosts import WITHIN, PinchHosts, aggregate_in, assert_exact
from tests.support.fabric.tap import received, replay, tapped
from tests.support.tiers import broad

pytestmark = [pytest.mark.net, pytest.mark.fabric(hosts=4, datapath="xdp")]

both_lanes = pytest.mark.parametrize("lanes", broad(["int16", "int32"]))


@pytest.fixture
def hosts(fabric, workers) -> PinchHosts:
    return PinchHosts(fabric, workers)


@pytest.mark.parametrize(
    ("kind", "lanes"), broad([("sum", "int16"), ("weighted", "int32"), ("max", "int16")])
)
def test_aggregates_are_exact(hosts, kind, lanes, assert_nothing_left) -> None:
    for ranks, processing in ((2, "pinned"), (4, "spread")):
        graph = draw_partitioned(ranks, 500, 4000, ranks, hub=3000)
        with hosts.open(graph, 100, kind, lanes, processing=processing) as exchange:
            exchange.check([embeddings(turn, graph, 100) for turn in range(3)])
    assert_nothing_left()


@pytest.mark.parametrize(
    "mtu",
    broad(
        pytest.param(mtu, marks=pytest.mark.fabric(hosts=3, mtu=mtu)) for mtu in (9000, 576, 3506)
    ),
)
def test_other_mtus(hosts, mtu) -> None:
    graph = draw_partitioned(0, 200, 1500, 3)
    for dim, kind, lanes in (
        (5, "sum", "int16"),
        (512, "weighted", "int32"),
        (512, "max", "int16"),
    ):
        with hosts.open(graph, dim, kind, lanes) as exchange:
            exchange.check([embeddings(0, graph, dim)])


@pytest.mark.deep
def test_magnitudes_from_one_exchange_to_the_next(hosts) -> None:
    """Ranks do not agree on a scale that some of them have already given up."""
    graph = draw_partitioned(0, 200, 2000, 4)
    x = embeddings(0, graph, 8) / np.float32(4096)
    scales = [np.float32(10.0**power) for power in (0, 30, -30, 0, -36, 5)]
    with hosts.open(graph, 8) as exchange:
        exchange.check([x * scale for scale in scales] + [np.zeros_like(x), x])


@both_lanes
@pytest.mark.deep
def test_partial_sums_are_added_exactly(hosts, lanes) -> None:
    """They are divided by powers of two, and added as often."""
    graph = draw_partitioned(0, 3000, 20_000, 4, hub=5000)
    inputs = [embeddings(turn, graph, 17) for turn in range(3)]
    for kind in ("sum", "weighted", "max"):
        with hosts.open(graph, 17, kind, lanes, halo="cover") as exchange:
            exchange.check(inputs)
    with hosts.open(graph, 17, "sum", lanes, halo="cover", bound=0.0) as cached:
        first, second = cached.aggregate([inputs[0], inputs[0]])
        for one, other in zip(first, second, strict=True):
            assert np.array_equal(one, other)


@pytest.mark.parametrize("processing", broad(["pinned", "spread"]))
def test_packed_sums_never_overflow(hosts, processing) -> None:
    """Every lane is the largest there is, and hubs have many accumulators."""
    graph = draw_partitioned(0, 1500, 12_000, 4, hub=3000)
    assert max(int(np.diff(halo.indptr).max()) for halo in graph.halos) > 4 << HEADROOM
    for dim in (1, 17, 512):
        x = embeddings(0, graph, dim)
        largest = np.full_like(x, np.nextafter(np.float32(8), np.float32(0)))
        with hosts.open(graph, dim, "sum", "int32", processing=processing, sums="packed") as made:
            made.check([x, largest, -largest, np.copysign(largest, x)], times=2)


def test_sums_are_packed_only_where_lanes_leave_room(hosts) -> None:
    graph = draw_partitioned(1, 400, 3000, 4)
    x = embeddings(0, graph, 17)
    for kind, lanes, halo in (
        ("weighted", "int32", "rows"),
        ("max", "int32", "rows"),
        ("sum", "int16", "rows"),
        ("sum", "int32", "cover"),
    ):
        with hosts.open(graph, 17, kind, lanes, sums="packed", halo=halo) as exchange:
            exchange.check([x])


@pytest.mark.parametrize("halo", broad(["cover", "rows"]))
@pytest.mark.parametrize("kind", broad(["weighted", "sum", "max"]))
def test_the_process_may_add_up_rows(hosts, kind, halo) -> None:
    """In float32, as they are, also in several frames each, and on any CPU."""
    graph = draw_partitioned(0, 1500, 12_000, 4, hub=3000)
    for dim, processing in ((1, "pinned"), (17, "spread"), (64, "pinned"), (512, "spread")):
        options = {"processing": processing, "aggregate": "process", "halo": halo}
        with hosts.open(graph, dim, kind, **options) as exchange:
            exchange.check([embeddings(turn, graph, dim) for turn in range(3)], times=3)


@pytest.mark.deep
def test_float32_rows_need_no_scale(hosts) -> None:
    graph = draw_partitioned(0, 60, 600, 4)
    x = embeddings(0, graph, 8)
    with hosts.open(graph, 8, aggregate="process", exponent=-20) as exchange:
        exchange.check([x * np.float32(1e-30), x * np.float32(1e30), x])
        halo = graph.halos[1]
        x[halo.owned[halo.sends[0][0]]] = np.nan
        for result in exchange.aggregate([x])[0]:
            assert "rank 1 (h2) has embeddings that are not finite" in str(result)


@pytest.mark.deep
def test_a_thousand_in_a_row(hosts) -> None:
    graph = draw_partitioned(0, 300, 2000, 4)
    with hosts.open(graph, 16) as exchange:
        exchange.check([embeddings(turn, graph, 16) for turn in range(4)], times=250)


def both_in(context, one, other, inputs, times):
    """Aggregate in two exchanges at once, in a thread each."""
    results = {}

    def work(number: int) -> None:
        results[number] = aggregate_in(context, number, inputs, times)

    threads = [threading.Thread(target=work, args=(number,)) for number in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results[one], results[other]


def test_two_at_once_on_the_same_hosts(hosts) -> None:
    graph = draw_partitioned(0, 1000, 8000, 4)
    x = embeddings(0, graph, 64)
    with (
        hosts.open(graph, 64) as one,
        hosts.open(graph, 64, "max", "int32", processing="spread") as other,
    ):
        arguments = [
            {"one": one.number, "other": other.number, "inputs": each["inputs"], "times": 30}
            for each in one.arguments([x])
        ]
        by_rank = one.call(both_in, arguments)
        for exchange, which in ((one, 0), (other, 1)):
            assert_exact(
                graph, exchange.kind, exchange.lanes, x, [results[which][0] for results in by_rank]
            )


@pytest.mark.fabric(hosts=4, switch="bridge", datapath="xdp")
def test_replayed_frames_of_earlier_exchanges_do_no_harm_in_later_ones(hosts, fabric) -> None:
    """A host outside replays them, with the cookie that is still valid. A bridge forwards to it
    what a switch program does not.
    """
    graph = draw_partitioned(0, 400, 4000, 3, hub=1000)
    with hosts.open(graph, 64, "weighted") as exchange, tapped(fabric) as tap:
        exchange.check([embeddings(turn, graph, 64) for turn in range(3)])
        kinds = {PinchKind.EMBED, PinchKind.ACK, PinchKind.HANDSHAKE}
        kind_of = {data: frame.header.kind for data, frame in received(tap)}
        assert kinds <= set(kind_of.values())
        recorded = sorted(data for data, kind in kind_of.items() if kind in kinds)
        before = exchange.measures()["bad_seq"]
        replayed = threading.Thread(target=replay, args=(fabric, recorded))
        replayed.start()
        turn = 3
        while replayed.is_alive() or turn < 6:
            exchange.check([embeddings(turn, graph, 64)])
            turn += 1
        replayed.join()
        assert exchange.measures()["bad_seq"] > before


# With a known scale.


@both_lanes
@pytest.mark.parametrize(
    "words", broad([(("drop p=0.05", "duplicate p=0.05", "reorder p=0.05 behind=5"),), ((),)])
)
def test_ranks_that_have_nothing_to_agree_on(hosts, faults, lanes, words) -> None:
    """Only frames keep them together: some are an exchange ahead of others. Closing waits for
    nobody, or workers would not answer within `WITHIN`.
    """
    graph, form = (
        draw_partitioned(0, 400, 3000, 4, hub=2000),
        Format(16 if lanes == "int16" else 32),
    )
    inputs = [embeddings(turn, graph, 32) for turn in range(10)]
    with hosts.open(graph, 32, "sum", lanes, 10 * WITHIN, exponent=11) as exchange:
        with faults(*words) as injected:
            results = exchange.aggregate(inputs)
        if words:
            assert_faults_fired(injected)
    for x, of_ranks in zip(inputs, results, strict=True):
        assert magnitude(x) <= 11
        for found, wanted in zip(
            of_ranks, exact(graph, form.quantize(x, 11), "sum", form, 11), strict=True
        ):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("value", "what"),
    [(4.0, "of 2**2 or more, which exponent = 2 leaves out"), (np.nan, "that are not finite")],
)
def test_values_beyond_a_known_scale(hosts, faults, value, what) -> None:
    """The rank that has them tells the others, which do not wait for it, even if its first message
    is lost.
    """
    graph = draw_partitioned(0, 200, 2000, 3)
    x = np.full((200, 4), 3.99, np.float32)
    lost = "drop kind=handshake attempt=0 link=h2->h3"
    with (
        hosts.open(graph, 4, timeout=10 * WITHIN, exponent=2) as exchange,
        faults(lost) as injected,
    ):
        assert all(isinstance(result, np.ndarray) for result in exchange.aggregate([x])[0])
        x[graph.halos[1].owned[0], 1] = value
        for rank, error in enumerate(exchange.aggregate([x])[0]):
            assert isinstance(error, CollectiveError)
            said = what if rank == 1 else "that are not finite, or of 2**2 or more"
            assert str(error) == f"exchange: rank 1 (h2) has embeddings {said}"
        assert_faults_fired(injected)
        for rank, error in enumerate(exchange.aggregate([x])[0]):
            assert "this exchange has failed before, open it again: " in str(error), rank


# With a cache.


def moving(
    graph: Partitioned, dim: int, turns: int, share: float = 0.3, step: float = 0.1
) -> list[np.ndarray]:
    """Embeddings, some of which change a little from turn to turn."""
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (len(graph.owner), dim)).astype(np.float32)
    x[0, 0] = 0.99  # keeps the scale
    found = []
    for _ in range(turns):
        moved = random.random(len(x)) < share
        moved[0] = False
        x = np.clip(
            x + moved[:, None] * random.uniform(-step, step, x.shape), -0.9999, 0.9999
        ).astype(np.float32)
        found.append(x)
    return found


def cached(
    graph: Partitioned, kind: str, lanes: str, x: np.ndarray, exponent: int
) -> list[np.ndarray]:
    """The results with a cache of bound 0: those without a cache at half the range."""
    form = Format(16 if lanes == "int16" else 32, halved=True)
    return exact(graph, form.quantize(x, exponent), kind, form, exponent)


def test_packed_sums_stay_exact_with_a_cache(hosts) -> None:
    graph = draw_partitioned(0, 500, 4000, 4, hub=1000)
    inputs, form = moving(graph, 16, 6), Format(32, halved=True, packed=True)
    with hosts.open(graph, 16, "sum", "int32", bound=0.0, sums="packed") as exchange:
        results = exchange.aggregate(inputs)
    for x, of_ranks in zip(inputs, results, strict=True):
        wanted = exact(graph, form.quantize(x, 0), "sum", form, 0)
        for rank in range(4):
            np.testing.assert_array_equal(of_ranks[rank], wanted[rank])


@both_lanes
@pytest.mark.parametrize(
    ("kind", "words"), [("sum", ()), ("weighted", ("drop p=0.05", "duplicate p=0.05"))]
)
def test_a_bound_of_0_gives_what_no_cache_gives(hosts, faults, lanes, kind, words) -> None:
    graph = draw_partitioned(0, 500, 4000, 4, hub=1000)
    inputs = moving(graph, 16, 6)
    with hosts.open(graph, 16, kind, lanes, bound=0.0) as exchange:
        with faults(*words) as injected:
            results = exchange.aggregate(inputs)
        if words:
            assert_faults_fired(injected)
        measures = exchange.measures()
    for x, of_ranks in zip(inputs, results, strict=True):
        for found, wanted in zip(of_ranks, cached(graph, kind, lanes, x, 0), strict=True):
            np.testing.assert_array_equal(found, wanted)
    outgoing = sum(len(np.unique(np.concatenate(halo.sends))) for halo in graph.halos)
    assert measures["cache_lookups"] == len(inputs) * outgoing
    still = [(after == before).all(axis=1) for before, after in pairwise(inputs)]
    sends = np.concatenate(
        [halo.owned[np.unique(np.concatenate(halo.sends))] for halo in graph.halos]
    )
    # Some embeddings have moved by less than a step, so their lanes have not changed.
    assert measures["cache_hits"] >= sum(int(each[sends].sum()) for each in still) > 0
    assert measures["bytes_saved"] > 0


@both_lanes
def test_a_scale_that_is_too_small_or_too_large_is_replaced(hosts, lanes) -> None:
    """All ranks start over with a scale for the new magnitudes; for magnitudes in between the old
    one stays.
    """
    graph = draw_partitioned(0, 300, 2000, 4)
    inputs, exponents, scale = [], [], None
    for power in (0, 3, 2, 0, -1, -1, -20, -20, 0):
        x = moving(graph, 8, 1)[0] * np.float32(2.0**power)
        assert magnitude(x) == power
        if scale is None or not scale - 3 <= power <= scale:
            scale = power
        inputs.append(x)
        exponents.append(scale)
    with hosts.open(graph, 8, "sum", lanes, bound=0.0) as exchange:
        results = exchange.aggregate(inputs)
    for x, exponent, of_ranks in zip(inputs, exponents, results, strict=True):
        for found, wanted in zip(of_ranks, cached(graph, "sum", lanes, x, exponent), strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("words", broad([(("drop p=0.05", "reorder p=0.05 behind=5"),), ((),)]))
def test_aggregates_stay_within_the_bound(hosts, faults, words) -> None:
    graph = draw_partitioned(0, 500, 4000, 4)
    inputs, bound = moving(graph, 16, 12, share=1.0, step=0.02), 0.05
    with hosts.open(graph, 16, "weighted", "int16", bound=bound, staleness=4) as exchange:
        with faults(*words):
            results = exchange.aggregate(inputs)
        measures = exchange.measures()
    layout = RowLayout.plan(16, 16, 1500)
    off = 0.0
    for x, of_ranks in zip(inputs, results, strict=True):
        for halo, found, wanted in zip(
            graph.halos, of_ranks, graph.aggregates(x, "weighted"), strict=True
        ):
            scale = make_tables(halo, layout, "weighted").scale
            most = Numbers(layout, "weighted", scale, halved=True).error_bound(halo, 1.0, bound)
            assert (np.abs(found - wanted) <= most).all()
            off = max(off, float(np.abs(found - wanted).max()))
    assert off > 1e-3  # the omitted changes are visible
    assert 0 < measures["cache_hits"] <= measures["cache_lookups"] * 3 / 4 + 1


def test_no_vertex_is_older_than_staleness(hosts) -> None:
    """Embeddings that stop changing are right after this many exchanges, however large the
    bound.
    """
    graph = draw_partitioned(0, 300, 2000, 4)
    first = moving(graph, 8, 1)[0]
    then = np.clip(first * np.float32(0.9), -1, 1).astype(np.float32)
    then[0, 0] = first[0, 0]
    with hosts.open(graph, 8, "sum", "int16", bound=10.0, staleness=3) as exchange:
        results = exchange.aggregate([first] + [then] * 3)
    for found, wanted in zip(results[-1], cached(graph, "sum", "int16", then, 0), strict=True):
        np.testing.assert_array_equal(found, wanted)
