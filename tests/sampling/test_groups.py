"""Minibatches on ranks that own parts of a graph: those of one process with the whole graph."""

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from testbed.core.errors import CollectiveError, SpecError
from testbed.gnn.graph import GraphData
from testbed.gnn.sampling import Sampler, key_of
from testbed.sampling.graph_part import Part
from testbed.sampling.groups import PARTS, Preparation
from testbed.sampling.peers import Peers
from tests.support.gnn.parts import owners_of, ranks

FANOUT = (4, 3, 2)


def seeds_of(part: Part, size: int) -> list[np.ndarray]:
    return [part.train[first : first + size] for first in range(0, len(part.train), size)]


def same(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.y, other.y)
    for mine, theirs in zip(one.blocks, other.blocks, strict=True):
        assert mine.num_targets == theirs.num_targets
        for name in ("sources", "indptr", "senders"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))


@pytest.mark.parametrize("world", [1, 2, 5])
@pytest.mark.parametrize("together", [1, 3, 100])
def test_minibatches_are_those_of_the_whole_graph(
    graph: GraphData, world: int, together: int
) -> None:
    """Whatever is prepared together, and however many ranks there are; all ranks at once."""
    key = key_of(1, 2)

    def work(peers: Peers) -> None:
        sampler = Sampler(graph)
        preparation = Preparation(peers.part, peers, FANOUT)
        seeds = seeds_of(peers.part, 7)
        for first in range(0, len(seeds), together):
            group = seeds[first : first + together]
            for some, made in zip(group, preparation.prepare(group, key), strict=True):
                blocks = sampler.blocks(some, FANOUT, key)
                assert len(made.blocks) == len(blocks)
                for mine, whole in zip(made.blocks, blocks, strict=True):
                    np.testing.assert_array_equal(mine.sources, whole.sources)
                    np.testing.assert_array_equal(mine.edge_index, whole.edge_index)
                np.testing.assert_array_equal(
                    preparation.gathered(made), graph.x[blocks[0].sources]
                )
                np.testing.assert_array_equal(made.y, graph.y[some])
        groups = -(-len(seeds) // together)
        # Seeds are this rank's own, so nobody is asked for the first layer.
        assert peers.relays == (groups * len(FANOUT) if world > 1 else 0)
        assert (preparation.asked.repeated_vertices > 0) == (together > 1)
        assert set(preparation.seconds) == set(PARTS)

    with ranks(graph, owners_of(graph, world), world) as found, ThreadPoolExecutor(world) as pool:
        list(pool.map(work, found))


def test_vertices_that_minibatches_share_are_asked_about_once(graph: GraphData) -> None:
    with ranks(graph, owners_of(graph, 2), 2) as found:
        alone, together = (Preparation(found[0].part, found[0], FANOUT) for _ in range(2))
        seeds = seeds_of(found[0].part, 8)[:4]
        for some in seeds:
            alone.prepare([some], 3)
        one = found[0].bytes
        relays = found[0].relays
        together.prepare(seeds, 3)
        assert found[0].relays - relays == len(FANOUT) == relays / len(seeds)
        assert found[0].bytes - one < one / 2
        assert together.asked.asked_vertices + together.asked.repeated_vertices == (
            alone.asked.asked_vertices
        )


def test_a_rank_that_is_gone_is_named(graph: GraphData) -> None:
    with ranks(graph, owners_of(graph, 3), 3) as found:
        found[2].close()
        with pytest.raises(CollectiveError, match=r"^sampling: rank 2 has closed its connection"):
            Preparation(found[0].part, found[0], FANOUT).prepare([found[0].part.train[:9]], 1)


def test_a_rank_that_does_not_answer_is_named(graph: GraphData) -> None:
    part = Part.of(graph, owners_of(graph, 2), 0, 2)
    asks, silent = socket.socketpair()
    with asks, silent, Peers(part, {1: asks}, {}, 0.2, ["rank 0", "rank 1"]) as peers:
        with pytest.raises(CollectiveError, match=r"^sampling: rank 1 was silent for 0\.2 s$"):
            Preparation(part, peers, FANOUT).prepare([part.train[:9]], 1)
        silent.sendall(b"x" * 64)
        with pytest.raises(CollectiveError, match=r"^sampling: rank 1 sent something else than an"):
            Preparation(part, peers, FANOUT).prepare([part.train[:9]], 1)


def test_ranks_that_differ_in_owners_are_told(graph: GraphData) -> None:
    owners = owners_of(graph, 2)
    with ranks(graph, owners, 2) as found:
        other = Part.of(graph, 1 - owners, 0, 2)
        peers = found[0]
        peers.part = other
        with pytest.raises(CollectiveError, match=r"rank 1 does not own what it was asked about"):
            Preparation(other, peers, FANOUT).prepare([other.train[:9]], 1)


@pytest.mark.parametrize("data", [b"", b"nonsense" * 9, b"PRTS" + b"\xff" * 60])
def test_what_is_no_question_ends_a_connection_and_nothing_else(
    graph: GraphData, data: bytes
) -> None:
    part = Part.of(graph, owners_of(graph, 2), 0, 2)
    bad, answers = socket.socketpair()
    with bad, answers, Peers(part, {}, {1: answers}, 1.0, ["rank 0", "rank 1"]):
        bad.sendall(data)
        bad.shutdown(socket.SHUT_WR)
        bad.settimeout(5.0)
        assert bad.recv(1) == b""


def test_owners_have_to_be_ranks(graph: GraphData) -> None:
    owners = owners_of(graph, 2)
    with pytest.raises(SpecError, match=r"^owners: must be one for each of \d+ vertices, 0\.\.1$"):
        Part.of(graph, owners + 1, 0, 2)
    with pytest.raises(SpecError, match=r"^owners: must be one for each"):
        Part.of(graph, owners[1:], 0, 2)
