"""Which ranks an error blames: those that it calls silent, not those that it says are up."""

import pytest

from testbed.soak.failures import accused

BEHIND = "(all-reduce 7: 3 of 9 chunks after 10.2 s)"


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (f"rank 0 (h1): rank 2 (h3) silent for 10 s {BEHIND}", {"h3"}),
        (f"rank 0 (h1): rank 2 (h3), rank 11 (h12) silent for 10 s {BEHIND}", {"h3", "h12"}),
        (
            (
                "rank 0 (h1): no answer from rank 1 (h2), rank 3 (h4) within 10 s: every member has"
                " to open the group"
            ),
            {"h2", "h4"},
        ),
        ("rank 1 (h2): others have waited in vain for rank 0 (h1) (exchange 3)", {"h1"}),
        (
            (
                "rank 1 (h2): the others have given up as nothing comes from rank 0 (h1), rank 2"
                " (h3) (exchange 3)"
            ),
            {"h1", "h3"},
        ),
        (
            (
                "rank 1 (h2): the others have given up waiting for rank 0 (h1), which is up"
                " (exchange 3)"
            ),
            set(),
        ),
        (
            (
                "rank 1 (h2): rank 0 (h1) silent; rank 2 (h3) up, waiting for rank 0 (h1), for 1 s"
                " (exchange 4: 1 of 2)"
            ),
            {"h1"},
        ),
        (f"rank 0 (h1): rank 2 (h3) up, but not in this all-reduce after 10 s {BEHIND}", set()),
        (
            (
                "rank 0 (h1): no progress for 10 s: chunk 2 is missing; h3 is up, waiting for"
                f" chunk 4 {BEHIND}"
            ),
            set(),
        ),
        ("tcp-ring: rank 0 (h1): rank 2 (h3) was silent for 10 s", {"h3"}),
        ("tcp-ring: rank 0 (h1): rank 2 (h3) has closed its connection or died", {"h3"}),
    ],
)
def test_an_error_blames_silent_ranks(error, names):
    assert accused(error) == names
