"""The base classes of objects that release their resources."""

from contextlib import ExitStack, suppress

import pytest

from testbed.core.closing import Closing, Stacked


class Door(Closing):
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_an_object_closes_itself_even_after_an_error() -> None:
    with Door() as door:
        assert door.closed == 0
    assert door.closed == 1
    with pytest.raises(ZeroDivisionError), door:
        raise ZeroDivisionError
    assert door.closed == 2


def test_a_class_without_close_cannot_be_used() -> None:
    with pytest.raises(TypeError, match="close"):
        type("Open", (Closing,), {})()


class Pair(Stacked):
    """Two resources, the second of which may fail to open."""

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


def test_open_resources_are_released_if_the_rest_cannot_be_opened() -> None:
    events: list[str] = []
    with pytest.raises(OSError, match="second"), Pair(events, opens=False):
        pytest.fail("it was entered")
    assert events == ["first released"]
