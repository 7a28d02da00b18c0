"""Results whose checksum is right and whose check is wrong: every rank that verifies them refuses
them, and a later round replaces them.
"""

import numpy as np
import pytest

from testbed.protocol.ring.memory import ResultState, WrKind
from testbed.protocol.wire import BLOCK, RESTART, Frame, Kind
from tests.support.protocol.actions import cancel
from tests.support.protocol.network import Network, collectives


def stored(ranks: int, total: int, *, wrong: bool, upstream: bool) -> Network:
    """A network in which all ranks hold all results and none has verified them. If ``wrong``, the
    first result disagrees with its check on every rank.
    """
    todo = collectives(ranks, [total, total], words=2 * BLOCK // 8)
    network = Network(ranks, todo, window=total, chunk_bytes=2 * BLOCK, upstream=upstream)
    for index, member in enumerate(network.members):
        member.step()
        member.step(total)
        serve(network, index)
    if wrong:
        cancel(
            next(
                frame
                for frame in network.in_flight
                if (frame.header.kind, frame.header.chunk) == (Kind.REDUCE, 0)
            )
        )
    mark_verified(network)
    assert all(member.process.finished for member in network.members)
    return network


def serve(network: Network, index: int) -> None:
    while network.members[index].rank.sq:
        network.serve(index)


def mark_verified(network: Network) -> None:
    while network.in_flight:
        network.deliver()


def look(network: Network, index: int) -> None:
    """Let one process verify its results and nack those that it refuses; deliver all frames before
    another process verifies.
    """
    network.members[index].step()
    serve(network, index)
    mark_verified(network)


def refuse(network: Network, index: int, chunk: int) -> Frame:
    """Make a rank refuse a result, whether it is right or wrong; return what it sends."""
    network.members[index].process.refuse(chunk)
    serve(network, index)
    return network.in_flight.pop()


@pytest.mark.parametrize(
    ("ranks", "first"), [(ranks, first) for ranks in (2, 3, 5) for first in range(ranks)]
)
@pytest.mark.parametrize("upstream", [False, True])
def test_ranks_do_not_hand_each_other_what_they_refuse(ranks, upstream, first):
    """They verify one after the other: the first has reduce-scatter started over, and those that
    verify later get the new result as well.
    """
    network = stored(ranks, 2 * ranks, wrong=True, upstream=upstream)
    for turn in range(ranks + 1):
        look(network, (first + turn) % ranks)
    assert all(member.current is None for member in network.members)
    assert network.total("restarted") == 1
    assert network.total("stored") == ranks * 2 * ranks + ranks
    network.run()


@pytest.mark.parametrize("upstream", [False, True])
@pytest.mark.parametrize("asker", [0, 1, 2])
def test_a_refusal_has_the_owner_start_over(upstream, asker):
    network = stored(3, 3, wrong=False, upstream=upstream)
    out = refuse(network, asker, 0)
    record = network.members[asker].rank.chunks[0]
    assert record.result & 0xFF == ResultState.REFUSED
    if asker:
        assert (out.header.kind, out.header.flags, out.header.round, out.header.receiver) == (
            Kind.NACK,
            RESTART,
            0,
            0,
        )
        out = network.members[0].rank.on_frame(out)
    assert (out.header.kind, out.header.hop, out.header.round) == (Kind.REDUCE, 1, 1)


@pytest.mark.parametrize("upstream", [False, True])
def test_a_refusal_of_an_earlier_round_sets_nothing_off(upstream):
    """Two ranks refuse the same result, but the reduce-scatter phase starts over only once.

    A later nack comes from a rank that has not seen the new round: with `origin` the owner answers
    it with a frame of that round.
    """
    network = stored(3, 3, wrong=False, upstream=upstream)
    owner = network.members[0].rank
    owner.nack_holdoff_us = 1000
    one, other = (refuse(network, asker, 0) for asker in (1, 2))
    later = other.copy()
    assert owner.on_frame(one, 5000).header.kind == Kind.REDUCE
    assert owner.on_frame(other, 5999) is None
    again = owner.on_frame(later, 6000)
    assert (again is None) == upstream
    assert upstream or (again.header.kind, again.header.hop, again.header.round) == (
        Kind.REDUCE,
        1,
        1,
    )
    assert network.total("restarted") == 1


@pytest.mark.parametrize("upstream", [False, True])
def test_a_rank_that_has_verified_its_result_answers_a_refusal_with_it(upstream):
    """The owner's verified result is right, so no new sum is made, and the answer counts as one of
    the next round.
    """
    network = stored(3, 3, wrong=False, upstream=upstream)
    holder, asker = network.members[0], network.members[1]
    request = refuse(network, 1, 0)
    holder.step()
    out = holder.rank.on_frame(request)
    assert (out.header.kind, out.header.round, out.header.receiver) == (Kind.RESULT, 1, 1)
    asker.rank.on_frame(out)
    assert asker.process.finished
    asker.step()
    assert asker.current is None
    assert network.total("restarted") == 0


@pytest.mark.parametrize("wrong", [False, True])
def test_upstream_a_verified_result_is_kept_when_a_new_sum_comes_by(wrong):
    """The new sum is forwarded to the rank that lacks it. It may be as wrong as the refused one."""
    network = stored(3, 3, wrong=False, upstream=True)
    last = network.members[2]
    last.step()
    held = last.rank.results[0].copy()
    reduced = network.members[0].rank.on_frame(refuse(network, 1, 0))
    if wrong:
        cancel(reduced)
    network.emit(reduced)
    mark_verified(network)
    np.testing.assert_array_equal(last.rank.results[0], held)
    assert last.rank.chunks[0].result & 0xFFFF == 1 << 8 | ResultState.DONE
    assert network.members[1].process.finished
    asked = network.members[1].rank.results[0][: held.size]
    assert np.array_equal(asked, held) != wrong
    network.run()


def test_origin_a_verified_result_replaces_a_new_sum():
    """At the last rank of reduce-scatter: all ranks that lack the result get the verified one from
    there, however damaged the arriving sum is.
    """
    network = stored(3, 3, wrong=False, upstream=False)
    last = network.members[2]
    last.step()
    held = last.rank.results[0].copy()
    reduced = network.members[0].rank.on_frame(refuse(network, 1, 0))
    cancel(reduced)
    network.emit(reduced)
    mark_verified(network)
    np.testing.assert_array_equal(last.rank.results[0], held)
    assert network.members[1].process.finished
    np.testing.assert_array_equal(network.members[1].rank.results[0], held)


def test_a_result_that_nobody_has_verified_gives_way_to_one_of_a_later_round():
    network = stored(3, 3, wrong=True, upstream=True)
    last = network.members[2].rank
    wrong = last.results[0].copy()
    look(network, 0)
    assert not np.array_equal(last.results[0], wrong)
    assert last.stored == 3
    for member in network.members:
        member.step()
        assert member.current is None


def test_a_result_that_is_not_there_any_more_is_not_refused():
    """A later round has replaced it in the meantime, or it is already refused."""
    network = stored(2, 2, wrong=False, upstream=True)
    process, rank = network.members[0].process, network.members[0].rank
    process.refuse(0)
    process.refuse(0)
    assert rank.stored == 1
    assert [wr.kind for wr in rank.sq] == [WrKind.RESTART]


def test_a_rank_that_made_a_wrong_sum_gets_a_right_one_from_a_rank_that_has_verified_its_own():
    """A result is refused, and reduce-scatter starts over and is damaged. Because the owner has
    verified its result in the meantime, no third sum is needed.
    """
    network = stored(3, 3, wrong=False, upstream=True)
    owner, refusing, last = network.members
    refusing.rank.results[0][0] ^= np.uint64(
        1
    )  # as if two errors on its last hop had cancelled out
    refusing.step()
    serve(network, 1)
    network.deliver()  # to the owner, which starts over
    owner.step()
    assert owner.current is None
    network.deliver()
    assert (network.in_flight[0].header.kind, network.in_flight[0].header.receiver) == (
        Kind.REDUCE,
        2,
    )
    cancel(network.in_flight[0])
    mark_verified(network)
    for _ in range(5):
        network.now_us += 10_000
        for index in (1, 2):
            member = network.members[index]
            if member.current is not None:
                member.step()
            if member.waiting:
                member.process.on_timer(network.now_us)
            serve(network, index)
            mark_verified(network)
    assert refusing.current is None
    assert last.current is None
