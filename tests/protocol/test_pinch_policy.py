"""What a rank does while it waits, and which ranks it blames, as a function of what it observes;
without clocks.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.protocol.pinch.packet import ACK_BEHIND, ACK_WORDS, EXPONENT_BITS, ack_first
from testbed.protocol.pinch.policy import TRIES, Policy, Seen, Up, cover
from testbed.protocol.sequence import word_of

SEQ = 16
HERE = word_of(SEQ, 1 << EXPONENT_BITS)  # the rank has entered, with one frame


def seen(**fields) -> Seen:
    """What rank 0 of three observes when nothing is missing."""
    good = {
        "rank": 0,
        "seq": SEQ,
        "partners": [1, 2],
        "handshakes": [HERE] * 3,
        "received": [0, 1, 1],
        "acked": [0, 0, 0],
        "heard": [0, 0, 0],
        "news": [0, 0, 0],
        "answers": [0, 0, 0],
        "at": [0, SEQ, SEQ],
        "waits": [0, 0, 0],
        "lacking": lambda rank: [],
        "met": True,
        "owed": 0,
    }
    return Seen(**good | fields)


def lacks(numbers: dict[int, Sequence[int]]):
    return lambda rank: numbers.get(rank, [])


def heard(of: Seen, *ranks: int, **fields) -> Seen:
    """The same, with one more frame received from each of some ranks."""
    return replace(
        of, heard=[count + (rank in ranks) for rank, count in enumerate(of.heard)], **fields
    )


def test_nothing_is_done_if_nothing_is_missing() -> None:
    actions = Policy(seen()).act(seen())
    assert (actions.handshake, actions.asks, actions.resends, actions.work) == (0, {}, {}, False)


@pytest.mark.parametrize(
    "missing",
    [
        {"handshakes": [HERE, 0, HERE]},
        {"received": [0, 0, 1]},
        {"met": False},
        {"handshakes": [HERE, 0, 0], "met": False},
    ],
)
def test_a_rank_that_has_more_to_say_is_asked_again_and_again(missing) -> None:
    policy = Policy(seen(**missing))
    assert [policy.act(seen(**missing)).handshake for _ in range(3)] == [1, 2, 3]


def test_work_on_hubs_goes_on() -> None:
    assert Policy(seen()).act(seen(owed=3)).work


def test_without_an_answer_frames_are_asked_about_and_not_retransmitted() -> None:
    """However often the rank asks."""
    wanting = seen(lacking=lacks({1: [3, 4, 9], 2: [7]}))
    policy = Policy(wanting)
    for _ in range(50):
        actions = policy.act(wanting)
        assert (actions.asks, actions.resends) == ({1: [9], 2: [7]}, {})


def test_frames_that_two_answers_do_not_acknowledge_are_retransmitted() -> None:
    now = seen(lacking=lacks({1: [3, 4]}))
    policy, resent = Policy(now), []
    for turn in range(7):
        actions = policy.act(now)
        assert (1 in actions.asks) != (1 in actions.resends)
        resent += [turn] if actions.resends == {1: [3, 4]} else []
        now = heard(now, 1, answers=[0, turn + 1, 0])
    assert resent == [2, 4, 6]


def test_nothing_is_retransmitted_while_answers_acknowledge_something() -> None:
    now = seen(lacking=lacks({1: [3, 4]}))
    policy = Policy(now)
    for turn in range(9):
        assert policy.act(now).resends == {}
        now = heard(now, 1, answers=[0, turn + 1, 0], acked=[0, turn + 1, 0])


def test_the_policy_starts_over_on_progress() -> None:
    waiting = seen(handshakes=[HERE, 0, HERE])
    policy = Policy(waiting)
    for _ in range(TRIES):
        assert not policy.look(waiting)
        policy.act(waiting)
    moved = heard(waiting, 2, news=[0, 0, 1])
    assert policy.look(moved)
    assert not policy.look(heard(moved, 1))
    assert policy.act(moved).handshake == 1


def test_a_rank_that_has_not_been_heard_is_silent() -> None:
    waiting = seen(handshakes=[HERE, 0, 0])
    policy = Policy(waiting)
    policy.act(waiting)
    now = heard(waiting, 2, at=[0, 0, SEQ - 1])
    assert policy.is_sure(now)
    verdict = policy.verdict(now)
    assert (verdict.silent, verdict.up) == ((1,), (Up(2, SEQ - 1, ()),))


def test_a_rank_that_is_up_says_which_ranks_it_waits_for() -> None:
    waiting = seen(received=[0, 1, 0], waits=[0, 0, 0b011])
    policy = Policy(waiting)
    assert policy.verdict(heard(waiting, 2)).up == (Up(2, SEQ, (0, 1)),)


def test_ranks_that_wait_for_another_rank_are_not_blamed() -> None:
    """Rank 2 has entered, but sends nothing because rank 1 has not entered."""
    waiting = seen(handshakes=[HERE, 0, HERE], received=[0, 0, 0])
    policy = Policy(waiting)
    assert policy.verdict(heard(waiting, 2)).silent == (1,)
    assert policy.verdict(heard(waiting, 2)).up == ()


def test_a_rank_that_does_not_acknowledge_is_blamed() -> None:
    waiting = seen(lacking=lacks({2: [5]}))
    assert Policy(waiting).verdict(heard(waiting, 1)).silent == (2,)


@pytest.mark.parametrize("lost", [1, 5, TRIES - 1, TRIES, TRIES + 1])
def test_a_rank_that_was_up_is_silent_after_so_many_questions(lost) -> None:
    """A few missing answers prove nothing, because answers get lost. Whether the rank has died
    since takes more questions to find out.
    """
    waiting = seen(handshakes=[HERE, 0, HERE])
    policy = Policy(waiting)
    policy.act(waiting)
    now = heard(waiting, 1)
    for _ in range(lost):
        policy.act(now)
    assert policy.is_sure(now) == (lost >= TRIES)
    assert policy.verdict(now).silent == ((1,) if lost >= TRIES else ())
    assert policy.is_sure(heard(now, 1))
    assert policy.verdict(heard(now, 1)).silent == ()


def test_no_rank_is_blamed_before_it_has_been_asked_often_enough() -> None:
    """Not even after the timeout: this rank itself may have been stopped all the time."""
    waiting = seen(handshakes=[HERE, 0, HERE])
    policy = Policy(waiting)
    for _ in range(TRIES):
        assert not policy.has_asked
        policy.act(waiting)
    assert policy.has_asked
    assert policy.look(heard(waiting, 2, news=[0, 0, 1]))
    assert not policy.has_asked


def test_a_rank_that_waits_for_another_gets_time_to_find_out_about_it() -> None:
    """Rank 1 waits for rank 2, with which rank 0 shares no frames."""
    waiting = seen(partners=[1], received=[0, 0, 0], waits=[0, 0b101, 0])
    policy = Policy(waiting)
    assert not policy.is_sure(heard(waiting, 1))
    assert policy.is_sure(heard(waiting, 1, waits=[0, 0b001, 0]))
    assert not policy.is_sure(heard(waiting, 1, at=[0, SEQ - 1, 0]))


@given(st.sets(st.integers(0, 100_000), min_size=1, max_size=200))
def test_questions_cover_all_frames_as_far_as_they_suffice(numbers) -> None:
    """An acknowledgement of each frame asked about covers a range; together these reach from the
    last frame backwards.
    """
    ordered = sorted(numbers)
    asked = cover(ordered)
    reached = {
        n for n in ordered if any(ack_first(a) <= n // 32 < ack_first(a) + ACK_WORDS for a in asked)
    }
    assert set(asked) <= numbers
    assert reached >= {n for n in ordered if n // 32 >= asked[-1] // 32 - ACK_BEHIND}
    assert len(asked) <= 8
    if len(asked) < 8:
        assert reached == numbers
