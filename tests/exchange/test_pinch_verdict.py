"""The texts of an exchange's errors."""

import pytest

from testbed.exchange.pinch.verdict import Words
from testbed.protocol.pinch.packet import EXPONENT_BITS
from testbed.protocol.pinch.policy import Seen, Up, Verdict
from testbed.protocol.sequence import word_of

SEQ = 16
WORDS = Words(1, ["h1", "h2", "h3", "h4"], 2.0)


def word(frames: int) -> int:
    return word_of(SEQ, frames << EXPONENT_BITS)


def seen(**fields) -> Seen:
    """Rank 1 of four, which expects 5, 6 and 7 frames from the others and has received all of
    them.
    """
    good = {
        "rank": 1,
        "seq": SEQ,
        "partners": [0, 2, 3],
        "handshakes": [word(5), word(0), word(6), word(7)],
        "received": [5, 0, 6, 7],
        "acked": [4, 0, 3, 2],
        "heard": [0] * 4,
        "news": [0] * 4,
        "answers": [0] * 4,
        "at": [SEQ] * 4,
        "waits": [0] * 4,
        "lacking": lambda rank: [],
        "met": True,
        "owed": 0,
    }
    return Seen(**good | fields)


CASES = [
    ({"received": [0, 0, 6, 7]}, Verdict((0,), ()), "rank 0 (h1) silent for 2 s", "13 of 18"),
    (
        {"received": [0, 0, 6, 7]},
        Verdict((3, 0), (Up(2, SEQ, (3,)),)),
        "rank 0 (h1), rank 3 (h4) silent for 2 s",
        "13 of 18",
    ),
    (
        {"handshakes": [0, word(0), word(6), word(7)]},
        Verdict((), (Up(0, SEQ - 1, ()),)),
        "rank 0 (h1) up, but not in this exchange after 2 s",
        "13 of 13",
    ),
    (
        {"handshakes": [0] * 4},
        Verdict((), (Up(0, 0, ()),)),
        "rank 0 (h1) up, but not in this exchange after 2 s",
        "0 of 0",
    ),
    (
        {"received": [5, 0, 2, 7]},
        Verdict((), (Up(2, SEQ, (0, 3)),)),
        (
            "no progress for 2 s: frames of h3 missing: 4 of 6; h3 is up, in exchange 16, waiting"
            " for h1, h4"
        ),
        "14 of 18",
    ),
    (
        {"handshakes": [word(5), word(0), 0, word(7)]},
        Verdict((), (Up(2, SEQ, ()),)),
        "no progress for 2 s: handshake of h3 missing; h3 is up, in exchange 16",
        "12 of 12",
    ),
    (
        {"lacking": lambda rank: [8, 9][: rank - 1]},
        Verdict((), (Up(2, SEQ, ()), Up(3, SEQ, ()))),
        (
            "no progress for 2 s: acknowledgements of h3 missing: 1; acknowledgements of h4"
            " missing: 2; h3 is up, in exchange 16; h4 is up, in exchange 16"
        ),
        "18 of 18",
    ),
    (
        {"owed": 3},
        Verdict((), ()),
        "no progress for 2 s: slices of this rank's own hubs missing: 3",
        "18 of 18",
    ),
    ({}, Verdict((), ()), "no progress for 2 s: this rank's own frames are not sent", "18 of 18"),
]


@pytest.mark.parametrize(("fields", "verdict", "why", "received"), CASES)
def test_an_error_names_ranks_that_are_gone_or_what_is_missing_and_ranks_that_are_behind(
    fields, verdict, why, received
) -> None:
    text = WORDS.gave_up(seen(**fields), verdict, 20, 2.34)
    assert (
        text == f"rank 1 (h2): {why} (exchange 16: {received} frames received, 9 of 20 acknowledged"
        " after 2.3 s)"
    )


def test_an_error_never_counts_more_received_frames_than_were_sent() -> None:
    """Frames may arrive before the handshake that says how many there are."""
    now = seen(handshakes=[0, word(0), word(6), word(2)], received=[50, 0, 3, 2])
    assert "(exchange 16: 5 of 8 frames received, " in WORDS.gave_up(
        now, Verdict((0,), ()), 20, 2.0
    )


def test_an_error_does_not_name_very_many_ranks() -> None:
    words = Words(1, [f"h{number}" for number in range(1, 17)], 2.0)
    ups = tuple(Up(rank, SEQ, ()) for rank in range(2, 16))
    handshakes = [word(1)] * 16
    now = seen(
        partners=list(range(2, 16)), handshakes=handshakes, received=[0] * 16, acked=[0] * 16
    )
    text = words.gave_up(now, Verdict((), ups), 20, 2.0)
    assert "frames of h6 missing: 1 of 1; h3 is up, " in text
    assert "; h6 is up, in exchange 16; and 10 more ranks (" in text


@pytest.mark.parametrize(
    ("gone", "late", "why"),
    [
        ([0], [], "as nothing comes from rank 0 (h1)"),
        ([0, 1], [2], "as nothing comes from rank 0 (h1), this rank"),
        ([], [2], "waiting for rank 2 (h3), which is up"),
        ([], [2, 3], "waiting for rank 2 (h3), rank 3 (h4), which are up"),
        ([], [1], "waiting for this rank"),
        ([], [0, 1], "waiting for rank 0 (h1), this rank"),
    ],
)
def test_an_error_repeats_what_others_have_found_out(gone, late, why) -> None:
    assert (
        WORDS.ended(SEQ, gone, late) == f"rank 1 (h2): the others have given up {why} (exchange 16)"
    )
