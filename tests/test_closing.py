"""The base class of objects that close themselves."""

from contextlib import ExitStack, suppress

import pytest

from testbed.core.closing import Closing, Stacked


class Door(Closing):
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_it_closes_itself_also_after_an_error() -> None:
    with Door() as door:
        assert door.closed == 0
    assert door.closed == 1
    with pytest.raises(ZeroDivisionError), door:
        raise ZeroDivisionError
    assert door.closed == 2


def test_what_cannot_close_is_none() -> None:
    with pytest.raises(TypeError, match="close"):
        type("Open", (Closing,), {})()


class Pair(Stacked):
    """Two resources, of which the second may not open."""

    def __init__(self, events: list[str], opens: bool = True) -> None:
        self.events, self.opens = events, opens

    def _enter(self, stack: ExitStack) -> None:
        stack.callback(self.events.append, "first released")
        if not self.opens:
            raise OSError("second")
        stack.callback(self.events.append, "second released")


def test_resources_are_released_in_reverse_order_whether_or_not_there_was_an_error() -> None:
    for error in (None, ValueError):
        events: list[str] = []
        with suppress(ValueError), Pair(events):
            events.append("entered")
            if error:
                raise error
        assert events == ["entered", "second released", "first released"]


def test_what_is_open_is_released_if_the_rest_cannot_be_opened() -> None:
    events: list[str] = []
    with pytest.raises(OSError, match="second"), Pair(events, opens=False):
        pytest.fail("it was entered")
    assert events == ["first released"]
