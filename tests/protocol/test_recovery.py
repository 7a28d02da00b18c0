"""What a rank asks for when results stay away."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.protocol.recovery import missing, plead, slots_of


def ask(text: str, *, rank: int = 0, ranks: int = 2, window: int = 8, overdue: str = "", launched: int = 99, stalled=False):
    """``x``: result is there, ``.``: it is not. ``overdue`` likewise has ``x`` for what was overtaken before."""
    absent = np.array([mark == "." for mark in text])
    before = np.array([mark == "x" for mark in overdue.ljust(len(text))[: len(text)]])
    return plead(rank, ranks, window, absent, before, launched, stalled)


def marks(overtaken) -> str:
    return "".join("x" if mark else "." for mark in overtaken)


@pytest.mark.parametrize(
    ("text", "overtaken"),
    [
        ("xxxx", "...."),
        ("....", "...."),
        (".x..", "...."),  # chunk 1 is another owner's: it overtakes nothing
        ("..x.", "x..."),
        (".x.x", "...."),
        ("...x", ".x.."),
        (".xx.x.", "x....."),
    ],
)
def test_overtaken_by_a_later_chunk_of_the_same_owner(text, overtaken) -> None:
    plea = ask(text)
    assert marks(plea.overtaken) == overtaken
    assert plea.request == plea.resend == []
    assert plea.claim == 0


def test_asked_for_at_the_second_look() -> None:
    assert ask("..xx", overdue="xx").request == [1]
    assert ask("..xx", overdue="xx").resend == [0]
    assert ask("..xx", overdue="xx", rank=1).request == [0]
    assert ask("xxxx", overdue="xx").request == []  # it has come in between


def test_a_stall_asks_for_what_is_launched_and_claims_the_rest() -> None:
    plea = ask("........", rank=0, launched=2, window=3, stalled=True)
    assert plea.request == [1, 3, 5]  # the first window * ranks chunks
    assert plea.resend == [0, 2]
    assert plea.claim == 2
    assert ask("........", rank=0, launched=5, window=3, stalled=True).claim == 0


@given(
    st.integers(2, 8).flatmap(lambda ranks: st.tuples(st.just(ranks), st.integers(0, ranks - 1))),
    st.text("x.", min_size=1, max_size=60),
    st.text("x ", max_size=60),
    st.integers(1, 4),
    st.integers(0, 70),
    st.booleans(),
)
def test_pleas_are_about_what_lacks(who, text, overdue, window, launched, stalled) -> None:
    ranks, rank = who
    plea = ask(text, rank=rank, ranks=ranks, window=window, overdue=overdue, launched=launched, stalled=stalled)
    asked = plea.request + plea.resend
    assert len(asked) == len(set(asked)) <= window * ranks
    assert all(text[chunk] == "." for chunk in asked)
    assert all(chunk % ranks != rank for chunk in plea.request)
    assert all(chunk % ranks == rank and chunk // ranks < launched for chunk in plea.resend)
    assert launched + plea.claim <= max(launched, slots_of(rank, ranks, len(text)))
    if stalled and "." in text:
        first = text.index(".")
        reachable = first % ranks != rank or first // ranks < launched + plea.claim
        assert asked or plea.claim
        assert reachable or plea.claim == window


@given(st.integers(1, 32), st.integers(0, 200))
def test_slots_share_out_all_chunks(ranks, total) -> None:
    owned = [slots_of(rank, ranks, total) for rank in range(ranks)]
    assert sum(owned) == total
    assert owned == [len(range(rank, total, ranks)) for rank in range(ranks)]


def test_missing_is_what_another_generation_stored() -> None:
    assert missing(np.array([0, 7, 6, 8], np.uint32), 7).tolist() == [True, False, True, True]
