"""The base of what closes itself."""

import pytest

from testbed.core.closing import Closing


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
