"""Which CPU adds for which rank."""

import pytest

from testbed.exchange.pinch.placement import Placement
from testbed.protocol.pinch.packet import ANYWHERE


def test_ranks_take_turns_on_the_cpus_that_there_are() -> None:
    placement = Placement.plan(2, 5, "pinned", [1, 3])
    assert placement == Placement(homes=(1, 3, 1, 3, 1), cpu=1, banks=1)
    assert placement.flows == [1, 3]
    assert placement.flow_limit == 4
    assert placement.ranks_of(1) == 0b10101
    assert placement.ranks_of(3) == 0b01010


def test_spread_frames_are_added_where_they_arrive() -> None:
    placement = Placement.plan(1, 3, "spread", [0, 2])
    assert placement == Placement(homes=(0, 0, 0), cpu=ANYWHERE, banks=3)
    assert placement.flows == [0]


@pytest.mark.parametrize(("last", "banks"), [(7, 8), (8, 1)])
def test_no_more_than_eight_cpus_have_accumulators_of_their_own(last: int, banks: int) -> None:
    assert Placement.plan(0, 2, "spread", range(last + 1)).banks == banks
