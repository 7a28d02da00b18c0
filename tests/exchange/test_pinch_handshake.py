"""How ranks enter and leave exchanges on real hosts if a rank is late, alone or gone, or frames are
lost.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from testbed.core.errors import CollectiveError, WorkerDied
from testbed.exchange.interface import ExchangeSpec
from testbed.exchange.registry import open_exchange
from testbed.testing import assert_faults_fired
from testbed.testing.graphs import Partitioned, draw_partitioned, embeddings
from testbed.worker import WorkerContext
from tests.support.exchange.pinch_hosts import WITHIN, PinchHosts, aggregate_in
from tests.support.tiers import broad

pytestmark = [pytest.mark.net, pytest.mark.fabric(hosts=3, datapath="xdp")]

HANDSHAKES = [
    ("drop p=0.3 kind=handshake",),
    ("duplicate p=0.5 kind=handshake copies=2", "delay delay=1ms jitter=1ms kind=handshake p=0.5"),
    (
        "drop p=0.1 kind=handshake",
        "corrupt p=0.2 kind=handshake bits=2",
        "duplicate p=0.2",
        "delay delay=2ms jitter=2ms p=0.1",
    ),
]


@pytest.fixture
def hosts(fabric, workers) -> PinchHosts:
    return PinchHosts(fabric, workers)


def lonely() -> Partitioned:
    """Ranks 0 and 1 share edges; rank 2 shares none with any rank."""
    share, random = 100, np.random.default_rng(0)
    firsts = np.repeat([share, 0, 2 * share], share)
    indices = (firsts[:, None] + random.integers(0, share, (3 * share, 5))).ravel()
    owner = np.repeat(np.arange(3), share).astype(np.int32)
    return Partitioned(
        np.arange(0, 15 * share + 1, 5),
        indices.astype(np.int32),
        np.ones(15 * share, np.float32),
        owner,
        3,
    )


def chain() -> Partitioned:
    """Rank 1 shares edges with ranks 0 and 2, which share none with each other."""
    share, random = 100, np.random.default_rng(0)
    firsts = np.array([share, 0, share])
    indices = firsts[:, None, None] + random.integers(0, share, (3, share, 6))
    indices[1, :, :3] += 2 * share  # edges of rank 2
    owner = np.repeat(np.arange(3), share).astype(np.int32)
    indptr, weights = np.arange(0, 18 * share + 1, 6), np.ones(18 * share, np.float32)
    return Partitioned(indptr, indices.ravel().astype(np.int32), weights, owner, 3)


def whole_life(context: WorkerContext, spec: ExchangeSpec, inputs: list[Any]) -> list[Any]:
    """Open, aggregate and close, without waiting for the other workers; return the results, the
    last of which may be an error.
    """
    results: list[Any] = []
    with open_exchange("pinch", context, spec) as exchange:
        try:
            exchange.connect()
            for x in inputs:
                results.append(exchange.aggregate(x))
        except CollectiveError as error:
            results.append(error)
    return results


def live(
    hosts: PinchHosts,
    graph: Partitioned,
    inputs: list[np.ndarray],
    timeouts: Sequence[float] = (2.0, 2.0, 2.0),
    turns: Sequence[int | None] = (None, None, None),
    **options: Any,
) -> list[list[Any]]:
    """Open, aggregate and close on all ranks; `turns` is the number of inputs that each rank
    aggregates.
    """
    groups = hosts.groups(graph.world, lanes="int16")
    parts = [graph.split(x) for x in inputs]
    arguments = {}
    for rank, (name, group, halo) in enumerate(
        zip(hosts.fabric.hosts, groups, graph.halos, strict=True)
    ):
        spec = ExchangeSpec(
            group.model_copy(update={"timeout": timeouts[rank]}),
            halo,
            inputs[0].shape[1],
            broadcast="tc",
            **options,
        )
        arguments[name] = {"spec": spec, "inputs": [part[rank] for part in parts[: turns[rank]]]}
    return list(hosts.workers.call_all(whole_life, arguments, timeout=WITHIN).values())


@pytest.mark.parametrize(
    "words",
    [
        "drop link=h1->h3 kind=handshake seq=3 attempt=0",
        "drop link=h1->h2 kind=ack seq=3 attempt=0",
    ],
)
def test_who_closes_leaves_nobody_behind(hosts, faults, words) -> None:
    """A rank is done while another lacks its last handshake or acknowledgement. The exchange with
    sequence number 2 has no scale yet.
    """
    graph = lonely() if "handshake" in words else draw_partitioned(0, 300, 2000, 3)
    x = embeddings(0, graph, 16)
    with faults(words) as injected:
        found = live(hosts, graph, [x])
    assert_faults_fired(injected)
    assert all(isinstance(result, np.ndarray) for results in found for result in results), found


def test_all_are_told_of_values_that_are_not_finite(hosts, faults) -> None:
    """This includes a rank for which the handshake was lost of one that has raised its error and
    closed.
    """
    graph = draw_partitioned(0, 300, 2000, 3)
    x = embeddings(0, graph, 16)
    x[graph.halos[0].owned] = np.inf
    with faults("drop link=h1->h2 kind=handshake seq=2 attempt=0") as injected:
        found = live(hosts, graph, [x])
    assert_faults_fired(injected)
    for (error,) in found:
        assert str(error) == "exchange: rank 0 (h1) has embeddings that are not finite"


def test_ranks_that_share_no_frames_do_not_wait_for_each_other(hosts) -> None:
    """If the scale is known, ranks that share frames do not wait for other ranks, which may still
    be connecting.
    """
    graph = lonely()
    x = np.clip(embeddings(0, graph, 16), -1, 1).astype(np.float32)
    for _ in range(5):
        found = live(hosts, graph, [x] * 50, exponent=11)
        assert all(
            len(results) == 50 and isinstance(results[-1], np.ndarray) for results in found
        ), found


@pytest.mark.parametrize("words", broad((words,) for words in HANDSHAKES))
def test_handshakes_that_are_lost_late_and_twice(hosts, faults, words) -> None:
    """With scales that change, so that ranks enter exchanges twice."""
    graph = draw_partitioned(1, 200, 1500, 3, hub=1200)
    x = embeddings(0, graph, 8) / np.float32(4096)
    scales = [np.float32(10.0**power) for power in (0, 3, -3, 0, -36, 5, 5, 1)]
    with hosts.open(graph, 8) as exchange, faults(*words) as injected:
        exchange.check([x * scale for scale in scales] + [np.zeros_like(x), x])
        exchange.check([x], times=20)
    assert_faults_fired(injected)


def aggregate_or_compute(
    context: WorkerContext, number: int, inputs: list[Any], compute: bool
) -> list[Any]:
    """Aggregate, or be busy with something else until the end."""
    if compute:
        threading.Event().wait(WITHIN)
    return aggregate_in(context, number, inputs)


def test_who_dies_while_others_wait_is_named_and_nobody_else(hosts, faults) -> None:
    """It has answered for a while that it is up. Another rank that also waits for it, and has
    therefore sent nothing, is not to blame.
    """
    graph = draw_partitioned(0, 300, 2000, 3)
    x = embeddings(0, graph, 16)
    exchange = hosts.open(graph, 16, timeout=2.0)
    exchange.check([x])
    arguments = {
        name: {**each, "compute": name == "h2"}
        for name, each in zip(exchange.names, exchange.arguments([x]), strict=True)
    }
    with faults("kill host=h2 at=500ms"):
        found = hosts.workers.call_all(
            aggregate_or_compute, arguments, timeout=WITHIN, errors="return"
        )
    assert isinstance(found.pop("h2"), WorkerDied)
    for name, (error,) in found.items():  # the first rank that gives up tells the others why
        told = f"({name}): the others have given up as nothing comes from rank 1 (h2) (exchange "
        assert f"({name}): rank 1 (h2) silent for 2 s (exchange " in str(error) or told in str(
            error
        ), error


@pytest.mark.deep
def test_a_rank_that_waits_indirectly_for_one_that_is_gone_is_told_so(hosts) -> None:
    """Rank 2 closes and is soon gone, because its timeout is short. Rank 0, which shares no frames
    with it, has waited for rank 1 for its whole timeout before rank 1 gives up.
    """
    graph = chain()
    x = np.clip(embeddings(0, graph, 16), -1, 1).astype(np.float32)
    found = live(hosts, graph, [x] * 3, timeouts=(2.4, 3.0, 1.0), turns=(3, 3, 0), exponent=1)
    first, second = str(found[0][-1]), str(found[1][-1])
    assert (
        "rank 0 (h1): the others have given up as nothing comes from rank 2 (h3) (exchange "
        in first
    )
    assert "rank 1 (h2): rank 2 (h3) silent for 3 s (exchange " in second


@pytest.mark.deep
def test_a_rank_that_computes_for_longer_than_the_timeout_is_up(hosts) -> None:
    graph = draw_partitioned(0, 300, 2000, 3)
    x = embeddings(0, graph, 16)
    with hosts.open(graph, 16, timeout=1.0) as exchange:
        exchange.check([x])
        two = dict(list(zip(exchange.names, exchange.arguments([x]), strict=True))[:2])
        for name, (error,) in hosts.workers.call_all(aggregate_in, two, timeout=WITHIN).items():
            found_out = f"({name}): rank 2 (h3) up, but not in this exchange after 1 s (exchange "
            told = (
                f"({name}): the others have given up waiting for rank 2 (h3), which is up"
                " (exchange "
            )
            assert found_out in str(error) or told in str(error), error
        (late,) = hosts.workers["h3"].call(aggregate_in, **exchange.arguments([x])[2])
        assert "rank 2 (h3): the others have given up waiting for this rank (exchange " in str(late)
