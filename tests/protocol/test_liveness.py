"""What a process concludes from the frames that its programs have received: which ranks are silent,
which are in another collective, and which still need it.
"""

from hypothesis import given
from hypothesis import strategies as st

from testbed.protocol.ring.liveness import (
    End,
    Reason,
    absent,
    silent,
    to_blame,
    unacknowledged,
    unverified,
)
from testbed.protocol.ring.memory import Peer
from testbed.protocol.ring.rank import Rank
from testbed.protocol.sequence import NEWEST, is_before, seq_after
from testbed.protocol.wire import Kind
from tests.support.protocol.network import Network, collectives

NOW = 7


def test_a_rank_that_has_been_heard_since_is_not_silent() -> None:
    """A rank never lists itself."""
    assert silent(0, [9.0, 0.5, 0.4, 3.0], 0.5) == [1, 3]
    assert silent(1, [9.0, 0.5, 0.4, 3.0], 0.5) == [0, 3]
    assert silent(2, [0.0, 0.1, 7.0], 0.5) == []


def test_a_rank_whose_probes_are_lost_but_which_sends_data_is_not_silent() -> None:
    """All its probes and answers are lost during a whole all-reduce, while its partial sums and
    results arrive.
    """
    network = Network(3, collectives(3, [12]))
    emit, lost = network.emit, []

    def lossy(frame) -> None:
        if (
            frame is not None
            and frame.header.sender == 1
            and frame.header.kind in (Kind.PROBE, Kind.ALIVE)
        ):
            lost.append(frame)
        else:
            emit(frame)

    network.emit = lossy
    observer = network.members[2].rank
    network.members[1].process.probe(0, 0)
    network.members[0].process.probe(0, 0)  # probes rank 2, its predecessor
    network.serve(1)
    network.serve(0)
    assert lost
    while network.in_flight:
        network.deliver()
    ages = [0.0 if frames else 1.0 for frames in heard(observer)]
    assert silent(2, ages, 1.0) == [1]
    network.run()
    ages = [0.0 if frames else 1.0 for frames in heard(observer)]
    assert silent(2, ages, 1.0) == []
    # A rank reports its state in probes and answers only, and all of these were lost.
    assert [peer.seq for peer in observer.ranks][1] == 0


def heard(rank: Rank) -> list[int]:
    return [
        sum(stream.heard.get(other, 0) for stream in rank.streams)
        for other in range(rank.config.ranks)
    ]


def test_a_rank_that_has_not_entered_is_absent() -> None:
    """A rank in a later collective has entered this one; a rank that has sent nothing has not."""
    peers = [Peer(), Peer(seq=NOW), Peer(seq=NOW - 1), Peer(seq=NOW + 1), Peer()]
    assert absent(0, NOW, peers) == [2, 4]


@given(st.integers(2, NEWEST), st.sampled_from((0, 1)))
def test_sequence_numbers_wrap_for_absent_and_unverified_ranks(seq, later) -> None:
    following = seq_after(seq)
    here = Peer(seq=following if later else seq, verified=seq)
    behind = Peer(seq=seq, verified=seq)
    assert absent(0, seq, [Peer(), here]) == []
    assert absent(0, following, [Peer(), behind]) == [1]
    assert unverified([1], seq, [Peer(), here]) == []
    assert unverified([1], following, [Peer(), behind]) == [1]
    assert is_before(seq, following)


def test_a_rank_that_is_done_or_has_gone_on_needs_nothing_more() -> None:
    peers = [
        Peer(seq=NOW, verified=NOW),
        Peer(seq=NOW, verified=NOW - 1),
        Peer(seq=NOW + 1, verified=NOW - 1),
        Peer(seq=NOW - 1, verified=NOW - 1),
        Peer(),
    ]
    assert unverified(range(5), NOW, peers) == [1, 3, 4]
    assert unverified([0, 3], NOW, peers) == [3]


def test_a_rank_that_was_done_may_have_left_and_is_not_to_blame() -> None:
    peers = [Peer(seq=NOW), Peer(seq=NOW, verified=NOW), Peer(seq=NOW), Peer(seq=NOW)]
    assert to_blame([1, 2], NOW, peers) == [2]
    assert to_blame([1], NOW, peers) == [1]


def test_a_rank_that_has_given_up_needs_nothing_more() -> None:
    peers = [Peer(), Peer(ended=1)]
    assert unverified([0, 1], NOW, peers) == [0]
    assert unacknowledged([0, 1], NOW, peers) == [0]


@given(st.sampled_from(Reason), st.sets(st.integers(0, 31)))
def test_an_end_fits_into_a_word(reason, ranks) -> None:
    end = End(reason, tuple(sorted(ranks)))
    assert End.of(end.word) == end


def test_nobody_has_given_up_at_first() -> None:
    assert End.of(0) is None


def test_a_rank_that_has_not_been_told_may_still_wait() -> None:
    peers = [Peer(verified_acked=NOW), Peer(verified_acked=NOW - 1), Peer()]
    assert unacknowledged(range(3), NOW, peers) == [1, 2]
    assert unacknowledged([0], NOW, peers) == []
