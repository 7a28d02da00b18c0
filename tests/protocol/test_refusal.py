"""Results whose sum is right and whose check is wrong: refused by who looks, and replaced, not handed from rank to rank."""

import numpy as np
import pytest

from testbed.protocol.wire import BLOCK, DOUBT, Frame, Header, Kind
from tests.protocol.network import COOKIE, GROUP, Network, collectives

GENERATION = 1


def cancel(frame: Frame) -> None:
    """Two errors that a sum of words does not see: two words that differ in a bit change it."""
    lowest = frame.payload & np.uint64(1)
    frame.payload[[int(np.argmin(lowest)), int(np.argmax(lowest))]] ^= np.uint64(1)


def stored(ranks: int, total: int, *, wrong: bool, upstream: bool) -> Network:
    """All ranks hold all results, and none has looked at them. If ``wrong``, the first is not what its check says, anywhere."""
    todo = collectives(ranks, [total, total], words=2 * BLOCK // 8)
    network = Network(ranks, todo, window=total, chunk_bytes=2 * BLOCK, upstream=upstream)
    for index, member in enumerate(network.members):
        member.step()
        member.step(total)
        while member.rank.orders:
            network.serve(index)
    if wrong:
        cancel(next(frame for frame in network.flying if (frame.header.kind, frame.header.chunk) == (Kind.REDUCE, 0)))
    while network.flying:
        network.deliver()
    assert all(member.process.finished for member in network.members)
    return network


def look(network: Network, index: int) -> None:
    """A process looks at its results and asks for what it refuses, and all frames arrive before anybody else looks."""
    network.members[index].step()
    while network.members[index].rank.orders:
        network.serve(index)
    while network.flying:
        network.deliver()


@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("upstream", [False, True])
def test_ranks_do_not_hand_each_other_what_they_refuse(ranks, upstream, first):
    """They look by turns: whoever looks, the others hold the wrong result. Each refuses it once, and that is that."""
    network = stored(ranks, 2 * ranks, wrong=True, upstream=upstream)
    for turn in range(2 * ranks):
        look(network, (first + turn) % ranks)
    assert all(member.current is None for member in network.members)
    assert network.total("stored") == ranks * 2 * ranks + ranks
    network.run()


@pytest.mark.parametrize("upstream", [False, True])
def test_who_has_looked_answers_a_rank_in_doubt(upstream):
    """Before, a new sum is made: the request goes on to the owner, which begins lap one again."""
    network = stored(3, 3, wrong=False, upstream=upstream)
    holder, asker = network.members[0].rank, network.members[1].rank.config
    chunk = 2 if upstream else 0  # one of the rank before, which the request goes on to, or its own
    header = Header(Kind.REQUEST, GROUP, COOKIE, GENERATION, chunk, last=1, flags=DOUBT, length=2 * BLOCK, tag=GENERATION)
    request = Frame(header, np.zeros(2 * BLOCK // 8, np.uint64), asker.peers[1], asker.peers[0])
    out = holder.on_frame(request)
    assert (out.header.kind, out.header.flags) == (Kind.REQUEST if upstream else Kind.REDUCE, DOUBT)
    network.members[0].step()
    assert holder.on_frame(request).header.kind == Kind.RESULT


def test_a_new_sum_passes_by_who_holds_a_result_in_doubt():
    """The last rank of lap one has not looked yet, and its process may be about to: what it holds stays as it is."""
    network = stored(3, 3, wrong=True, upstream=True)
    owner, last = network.members[0], network.members[2].rank
    held = last.results[0].copy()
    look(network, 0)
    assert owner.process.finished
    np.testing.assert_array_equal(last.results[0], held)
    owner.step()
    assert owner.current is None
