"""The exchange in the kernel under faults: a small matrix in which every pair of values occurs, and
failures of links and hosts.

Each cell asserts four things: aggregates exact bit for bit, an end in bounded time, faults that
have fired, and nothing left.
"""

from contextlib import nullcontext

import pytest

from testbed.testing import assert_faults_fired, pairwise
from testbed.testing.graphs import draw_partitioned, embeddings
from tests.support.busy import busy_cpus
from tests.support.exchange.pinch_hosts import (
    PinchHosts,
    aggregate_in,
    assert_exact,
    close_in,
)
from tests.support.levels import EVENTS, NONE, levels
from tests.support.tiers import broad

pytestmark = pytest.mark.net

HOSTS = 8

FAULTS = levels("5ms")
FACTORS = {
    "switch": ["xdp", "bridge"],
    "ranks": [2, 3, 4, HOSTS],
    "lanes": ["int16", "int32"],
    "kind": ["sum", "weighted", "max"],
    "processing": ["spread", "pinned"],
    "aggregate": ["kernel", "process", "tokens", "tokens, kernel"],
    "halo": ["rows", "cover"],
    "dim": [1, 64, 512],
    **FAULTS,
}
SIZES = {1: (3000, 20_000), 64: (1500, 12_000), 512: (300, 2400)}  # vertices and entries
TURNS = 3
WORST = {"kind": "weighted", "dim": 64, **{name: levels[-1] for name, levels in FAULTS.items()}}
OPTIONS = {"processing", "aggregate", "halo", "sums"}
KERNEL = {"aggregate": "kernel", "halo": "rows"}
CELLS = [
    *pairwise(FACTORS, seed=2),
    {**KERNEL, "switch": "xdp", "ranks": 4, "lanes": "int16", "processing": "pinned", **WORST},
    {
        **KERNEL,
        "switch": "bridge",
        "ranks": HOSTS,
        "lanes": "int32",
        "processing": "spread",
        **WORST,
    },
    {
        "aggregate": "tokens, kernel",
        "halo": "cover",
        "switch": "xdp",
        "ranks": 4,
        "lanes": "int32",
        "processing": "spread",
        **WORST,
    },
    # Only sums of 32-bit lanes can be packed, so these are cells of their own.
    *(
        {
            **WORST,
            **KERNEL,
            "switch": switch,
            "ranks": 4,
            "lanes": "int32",
            "processing": processing,
            "kind": "sum",
            "sums": "packed",
        }
        for switch, processing in (("xdp", "pinned"), ("bridge", "spread"))
    ),
]
SWITCHES = [
    pytest.param(switch, marks=pytest.mark.fabric(hosts=4, switch=switch, datapath="xdp"))
    for switch in FACTORS["switch"]
]
#: Counters of frames that are refused by the rank for which they are meant.
REFUSED = (
    "bad_cookie",
    "bad_chunk",
    "bad_length",
    "bad_tensor",
    "bad_rank",
    "bad_kind",
    "bad_checksum",
)


def parameters():
    """Return cells as parameters, grouped by fabric, each with its number as the seed."""
    found = []
    for seed, cell in sorted(enumerate(CELLS), key=lambda numbered: numbered[1]["switch"]):
        setting = "-".join(
            str(cell[name])
            for name in (
                "switch",
                "ranks",
                "lanes",
                "kind",
                "processing",
                "aggregate",
                "halo",
                "dim",
            )
        )
        setting += "-packed" if "sums" in cell else ""
        marks = pytest.mark.fabric(hosts=HOSTS, switch=cell["switch"], datapath="xdp")
        found.append(pytest.param(cell, seed, marks=marks, id=f"{setting}-{seed}"))
    return broad(
        sorted(found, key=lambda each: (each.values[0]["ranks"] != 3, each.values[0]["dim"])), 2
    )


@pytest.mark.parametrize(("cell", "seed"), parameters())
def test_aggregates_are_exact(fabric, workers, faults, assert_nothing_left, cell, seed):
    wanted = [cell[name] for name in FAULTS if cell[name] != NONE]
    graph = draw_partitioned(seed, *SIZES[cell["dim"]], cell["ranks"], hub=2000)
    inputs = [embeddings(turn, graph, cell["dim"]) for turn in range(TURNS)]
    hosts = PinchHosts(fabric, workers)
    options = {name: cell[name] for name in OPTIONS & cell.keys()}
    if options["aggregate"].startswith("tokens"):
        adder = "kernel" if options["aggregate"].endswith("kernel") else "process"
        options |= {"broadcast": "tokens", "aggregate": adder, "processing": "pinned"}
        if cell["lanes"] == "int32":
            options["dtype"] = "int32" if adder == "kernel" else "float32"
    with hosts.open(graph, cell["dim"], cell["kind"], cell["lanes"], **options) as exchange:
        before = exchange.measures()["sent"]
        with faults(*(words for _, words in wanted), seed=seed) as injected:
            exchange.check(inputs)
        frames = exchange.measures()["sent"] - before
        for p, words in wanted:
            if (
                frames * p > 100
            ):  # a drop may hide a frame from the rules after it, but practically never all frames
                assert_faults_fired(injected, words.split()[0])
    assert_nothing_left()


@pytest.mark.parametrize(
    "words",
    broad(["drop p=0.2 kind=embed", "drop p=0.5 kind=ack", "corrupt p=0.1 bits=3 kind=embed,ack"]),
)
@pytest.mark.fabric(hosts=4, datapath="xdp")
def test_frames_of_one_kind(fabric, workers, faults, words):
    graph = draw_partitioned(0, 2000, 16_000, 4)
    with PinchHosts(fabric, workers).open(graph, 64) as exchange:
        with faults(words) as injected:
            exchange.check([embeddings(turn, graph, 64) for turn in range(TURNS)])
        assert_faults_fired(injected)
        # What is lost is sent again, and a rank that lacks an acknowledgement asks for it.
        assert exchange.measures()["resent" if "embed" in words else "asks"] > 0


@pytest.mark.parametrize("event", broad(EVENTS))
@pytest.mark.fabric(hosts=4, datapath="xdp")
def test_aggregates_are_exact_after_an_interruption(
    fabric, workers, faults, assert_nothing_left, event
):
    graph = draw_partitioned(0, 2000, 16_000, 4)
    with PinchHosts(fabric, workers).open(graph, 64, "weighted") as exchange:
        with faults(f"{event} at=20ms") as injected:
            turn = 0
            while turn < 3 or not any(entry.ended for entry in injected.timeline.log()):
                exchange.check([embeddings(turn, graph, 64)])
                turn += 1
        assert_faults_fired(injected)
    assert_nothing_left()


def aggregate_and_part_in(context, number, inputs):
    try:
        return aggregate_in(context, number, inputs)
    finally:
        close_in(context, number)


@pytest.mark.parametrize("event", ["link-down", "pause"])
@pytest.mark.fabric(hosts=4, datapath="xdp")
@pytest.mark.deep
def test_a_rank_that_was_away_gets_its_results_from_those_that_close(
    fabric, workers, faults, assert_nothing_left, event
):
    """All ranks close at once. Soon after the others are done, h3 is cut off for three seconds, and
    it gets no acknowledgements until it has asked 16 times.
    """
    graph = draw_partitioned(0, 2000, 16_000, 4)
    exchange = PinchHosts(fabric, workers).open(graph, 64, timeout=10.0)
    exchange.check([embeddings(0, graph, 64)])  # agrees on the scale
    x, lost = embeddings(1, graph, 64), "drop link=*->h3 kind=ack attempt=0..15"
    with faults(lost, f"{event} host=h3 at=500ms for=3s") as injected:
        by_rank = exchange.call(aggregate_and_part_in, exchange.arguments([x]))
    exchange.open = False
    assert_faults_fired(injected)
    results = [results[0] for results in by_rank]
    assert_exact(graph, "sum", "int16", x, results, exchange.guess)
    assert_nothing_left()


def assert_only_foreign_frames_are_dropped(found):
    """Check that ranks refused only frames for others; a copy of each frame sent may have reached
    two ranks for which it was not meant.
    """
    assert (
        0
        < found["bad_receiver"]
        <= 2 * sum(found[kind] for kind in ("sent", "acks", "asks", "handshakes"))
    )
    assert {name: found[name] for name in REFUSED} == dict.fromkeys(REFUSED, 0)


@pytest.mark.parametrize(
    ("lanes", "processing"),
    broad(
        pytest.param(
            *cell, marks=pytest.mark.fabric(hosts=4, switch=switch, datapath="xdp"), id=switch
        )
        for switch, *cell in (("xdp", "int16", "spread"), ("bridge", "int32", "pinned"))
    ),
)
def test_aggregates_are_exact_while_a_switch_floods(
    fabric, workers, faults, assert_nothing_left, lanes, processing
):
    """The exchange is opened, used and closed while the switch knows no host."""
    graph, hosts = draw_partitioned(0, 1000, 8000, 4), PinchHosts(fabric, workers)
    with (
        faults("flood switch=s1") as injected,
        hosts.open(graph, 64, "weighted", lanes, processing=processing) as exchange,
    ):
        exchange.check([embeddings(turn, graph, 64) for turn in range(10)])
        assert_only_foreign_frames_are_dropped(exchange.measures())
    assert_faults_fired(injected)
    assert_nothing_left()


@pytest.mark.parametrize("machine", ["idle", "busy"])
@pytest.mark.parametrize("processing", FACTORS["processing"])
@pytest.mark.parametrize("lanes", FACTORS["lanes"])
@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.alone
def test_hardly_anything_is_retransmitted_without_faults(
    fabric, workers, switch, lanes, processing, machine
):
    """However busy the machine is, late frames are not lost. On a bridge, frames of one stream
    arrive on several CPUs.
    """
    graph = draw_partitioned(0, 4000, 40_000, 4)
    with (
        PinchHosts(fabric, workers).open(
            graph, 64, "sum", lanes, processing=processing
        ) as exchange,
        busy_cpus() if machine == "busy" else nullcontext(),
    ):
        exchange.check([embeddings(turn, graph, 64) for turn in range(4)], times=6)
        found = exchange.measures()
    print(
        {
            name: found[name]
            for name in ("sent", "resent", "asks", "acks", "handshakes", "duplicate")
        }
    )
    assert found["sent"] > 10_000
    assert found["resent"] < found["sent"] / 1000
