"""Two CPUs process the same frame at the same time: it is added once, and no summand is lost."""

import os

import numpy as np
import pytest

from testbed.kernel import XDP_TX
from testbed.kernel.abi import dtype
from testbed.protocol.pinch.packet import SQ_ENTRIES
from testbed.testing.graphs import Partitioned, embeddings
from tests.support.kernel.pair import PATIENCE, Pair
from tests.support.kernel.pinch import SEQ, Loaded, ack, first_kick, hub, meet
from tests.support.tiers import broad

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: nothing can race"),
]

ROUNDS = 1500


def frames_of_one_vertex(neighbours: int, **options) -> Loaded:
    """Rank 0's few vertices aggregate messages of all of rank 1's many vertices, each of which is
    in a frame of its own.
    """
    targets, sources = 8, ROUNDS
    near = [np.arange(v, sources, targets)[:, None] + np.arange(neighbours) for v in range(targets)]
    source = [targets + each.ravel() % sources for each in near]
    indptr = np.concatenate(
        [np.cumsum([0, *map(len, source)]), np.full(sources, sum(map(len, source)))]
    )
    owner = (np.arange(targets + sources) >= targets).astype(np.int32)
    weights = np.random.default_rng(0).uniform(-1, 1, indptr[-1]).astype(np.float32)
    graph = Partitioned(indptr, np.concatenate(source).astype(np.int32), weights, owner, 2)
    return Loaded(graph, embeddings(0, graph, 128), lanes="int32", mtu=576, **options)


@pytest.mark.parametrize("kind", broad(["weighted", "sum", "max"]))
def test_a_frame_and_its_duplicate_are_added_once(kind) -> None:
    with frames_of_one_vertex(3, kind=kind) as loaded:
        frames = loaded.frames_to(0)
        rounds = len(frames)
        Pair(lambda turn: loaded.link(0, frames[turn])).run(rounds)
        counters, port = loaded.counters(0), loaded.ports[0]
        assert (
            counters["received"]
            == port.maps.control.received
            == port.maps.peers["received"][1]
            == rounds
        )
        assert counters["duplicate"] + counters.get("contended", 0) == rounds
        assert counters.get("bad_checksum", 0) == 0
        assert set(loaded.events(0)) == {SEQ}
        np.testing.assert_array_equal(loaded.results(0), loaded.expected(0))


def test_different_frames_for_the_same_accumulators_are_all_added() -> None:
    with frames_of_one_vertex(8) as loaded:
        frames = loaded.frames_to(0)
        rounds = len(frames) // 2
        pids = sorted(os.sched_getaffinity(0))[:2]

        def work(turn: int) -> None:
            loaded.link(0, frames[2 * turn + (os.sched_getaffinity(0) == {pids[1]})])

        Pair(work).run(rounds)
        for data in frames[2 * rounds :]:
            loaded.link(0, data)
        assert loaded.counters(0)["received"] == len(frames)
        np.testing.assert_array_equal(loaded.results(0), loaded.expected(0))


@pytest.mark.deep
def test_slices_of_hubs_are_added_once() -> None:
    with hub(True) as loaded:
        for seq in range(SEQ, SEQ + 40):
            loaded.seq = seq
            loaded.open(0, seq)
            for data in loaded.frames_to(0):
                loaded.link(0, data)
            slices = int(loaded.ports[0].maps.control.owed)
            Pair(lambda _: loaded.work(0)).run(slices)
            assert loaded.ports[0].maps.control.owed == 0
            assert loaded.counters(0)["slices"] == slices
            assert set(loaded.events(0)) == {seq}
            np.testing.assert_array_equal(loaded.results(0), loaded.expected(0))


@pytest.mark.deep
def test_an_acknowledgement_and_its_duplicate_count_once() -> None:
    with frames_of_one_vertex(1, ranks=(1,)) as loaded:
        port, count = loaded.ports[1], loaded.publish(1)
        meet(port, np.zeros(2, np.int64))
        port.maps.flows["next"], port.maps.flows["in_flight"] = count, count
        answers = [ack(port, 0, number, range(number + 1)) for number in range(count)]
        Pair(lambda turn: loaded.link(1, answers[turn])).run(count)
        assert port.maps.control.acked == port.maps.peers["acked"][0] == count
        assert int(port.maps.flows["in_flight"].sum()) == 0
        assert set(loaded.events(1)) == {SEQ}


def test_frames_and_work_requests_are_executed_once() -> None:
    """Both CPUs serve kicks: no frame is lost, none is sent twice."""
    with frames_of_one_vertex(1, ranks=(1,)) as loaded:
        port, count = loaded.ports[1], loaded.publish(1)
        port.maps.control.window = 1 << 30
        kick = first_kick(port)
        Pair(lambda _: loaded.run(1, "pinch_send", kick)).run(count // 32 + 10)
        assert loaded.counters(1)["sent"] == int(port.maps.flows["in_flight"].sum()) == count
        port.sending.post(0, np.arange(SQ_ENTRIES))
        Pair(lambda _: loaded.run(1, "pinch_send", kick)).run(SQ_ENTRIES // 32 + 10)
        assert port.maps.flows["sq_head"].tolist() == [SQ_ENTRIES]
        assert loaded.counters(1)["resent"] == SQ_ENTRIES
        assert (
            port.maps.by_name["pinch_sent"]
            .view(dtype("pinch_sent"))["attempt"]
            .ravel()[:SQ_ENTRIES]
            == 1
        ).all()


def test_frames_that_arrive_while_the_process_enters_their_exchange_count() -> None:
    """Every frame counts from the first one on that is not refused."""
    rounds, cpu = 1000, min(os.sched_getaffinity(0))
    with hub(False) as loaded:
        port, frames = loaded.ports[0], []
        for seq in range(SEQ + 1, SEQ + 1 + rounds):
            loaded.seq = seq
            frames.append(loaded.embed(1, 0, 0))

        def work(turn: int) -> None:
            if os.sched_getaffinity(0) == {cpu}:
                assert not turn or port.maps.control.received == port.maps.peers["received"][1] == 1
                port.process.open(SEQ + 1 + turn)
                return
            for _ in range(PATIENCE):
                if loaded.link(0, frames[turn]).retval == XDP_TX:  # it has arrived before
                    return
            raise TimeoutError

        Pair(work).run(rounds)
        assert loaded.counters(0)["received"] == rounds
