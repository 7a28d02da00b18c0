"""How long the controller waits for workers that report progress."""

import time

from testbed.worker.controller import _earliest, _timed_out


def test_patience_begins_again_with_each_sign_of_progress() -> None:
    signs = {"h1": (5.0, None), "h2": (9.0, "step 3")}
    assert _earliest(None, signs, 10.0) == 15.0
    assert _earliest(12.0, signs, 10.0) == 12.0
    assert _earliest(12.0, signs, None) == 12.0
    assert _earliest(None, signs, None) is None


def test_an_error_names_the_workers_that_do_not_get_on() -> None:
    now = time.monotonic()
    signs = {"h1": (now - 20, "step 7"), "h2": (now - 20, None), "h3": (now + 1000, "step 9")}
    stuck = "workers h1 (at step 7), h2 have neither answered nor got on for 10 s"
    assert str(_timed_out(signs, None, 10.0)) == stuck
    assert str(_timed_out(signs, 5.0, 100.0)) == "workers h1, h2, h3 did not answer within 5 s"
