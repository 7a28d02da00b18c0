"""Every exchange under faults: results within their bounds, an end in bounded time, and faults that
have fired.
"""

import pytest

from testbed.core.errors import CollectiveError
from testbed.fabric import Fabric
from testbed.testing import assert_faults_fired
from testbed.testing.graphs import draw_partitioned, embeddings
from testbed.testing.plugin import MakeFaults
from testbed.worker import Workers
from tests.support.exchange import calls
from tests.support.exchange.hosts import Hosts, every
from tests.support.tiers import broad

pytestmark = [pytest.mark.net, pytest.mark.fabric(hosts=4)]

FAULTS = [
    ["drop p=0.02"],
    ["duplicate p=0.1"],
    [
        "corrupt p=0.02"
        # one bit: TCP's checksum misses one pair of flipped bits in 32, those that cancel out in
        # its sum
    ],
    ["reorder p=0.05 behind=5", "delay p=0.05 delay=2ms jitter=1ms"],
    # Short bursts: TCP retransmits one frame per timeout, which it doubles, and so gets through a
    # burst one frame at a time.
    ["burst enter=0.01 leave=0.7", "duplicate p=0.01"],
    ["link-down host=h2 at=20ms for=200ms"],
    ["pause host=h3 at=20ms for=500ms"],
]


@every()
@pytest.mark.parametrize("words", broad(FAULTS), ids=" ".join)
def test_aggregates_are_those_of_the_reference(
    name: str, words: list[str], fabric: Fabric, workers: Workers, faults: MakeFaults
) -> None:
    hosts = Hosts(fabric, workers, name)
    graph = draw_partitioned(0, 1000, 9000, 4)
    number = hosts.open(graph, 64, "weighted", timeout=30.0)
    with faults(*words) as injected:
        turn = 0
        while turn < 3 or not all(entry.ended for entry in injected.timeline.log()):
            x = embeddings(turn, graph, 64)
            hosts.check(
                graph,
                "weighted",
                x,
                [results[0] for results in hosts.aggregate(number, graph, [x])],
            )
            turn += 1
    for fault in words:
        assert_faults_fired(injected, fault.split()[0])


@every()
def test_a_killed_rank_is_named_by_all_others(
    name: str, fabric: Fabric, workers: Workers, faults: MakeFaults
) -> None:
    hosts = Hosts(fabric, workers, name)
    graph = draw_partitioned(0, 1000, 9000, 4)
    number = hosts.open(graph, 64, "sum", timeout=2.0)
    arguments = hosts.arguments(number, graph, [embeddings(0, graph, 64)])
    by_host = dict(zip(fabric.hosts, arguments, strict=True))
    errors: dict[str, CollectiveError] = {}
    with faults("kill host=h2 at=50ms"):
        while len(errors) < 3:
            outcomes = workers.call_all(calls.aggregate, by_host, timeout=20, errors="return")
            errors |= calls.errors_of(outcomes)
    assert sorted(errors) == ["h1", "h3", "h4"]
    for error in errors.values():
        # A rank that gives up closes gloo's connections, and others may notice this before they
        # notice the dead rank's.
        assert name == "gloo" or "rank 1 (h2)" in str(error)
