"""State that workers keep for later calls, by type."""

from dataclasses import dataclass, field

import pytest

from testbed.plan import plan_fabric
from testbed.worker import WorkerContext

PLAN = plan_fabric()


@dataclass
class State:
    seen: list[int] = field(default_factory=list)


class Empty(dict[str, int]):
    pass


@pytest.fixture
def context() -> WorkerContext:
    return WorkerContext("h1", "host", PLAN.hosts[0], PLAN)


def test_a_state_is_made_once(context: WorkerContext) -> None:
    context.state(State).seen.append(1)
    assert context.state(State).seen == [1]
    assert context.get(State) is context.find(State)
    assert context.state(Empty) is context.state(Empty)  # although it is falsy


def test_kept_state_replaces_state_of_the_same_type(context: WorkerContext) -> None:
    first, second = context.keep(State([1])), context.keep(State([2]))
    assert context.state(State) is second is not first
    assert context.drop(State) is second
    assert context.drop(State) is None
    assert context.find(State) is None
    with pytest.raises(LookupError, match="h1 keeps no State"):
        context.get(State)
