"""Several captures and an owner change one link in every order, die at every step, and never build
a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import pytest

from testbed.capture.order import enter, leave
from tests.support.explore import Counterexample, System, explore

CAPTURES = (1, 2, 3)
OWNERS = (8, 9)
STEPS = 8  # more than a move has


@dataclass(frozen=True)
class State:
    """A link, and what waits for it.

    :param first: Its program; None: it has ended, and a new one may come.
    :param behind: What each capture's program hands on to; None: nothing yet.
    :param live: Which captures go on.
    :param guards: Of captures that were killed, which are still to be taken out.
    """

    first: int | None = OWNERS[0]
    behind: tuple[int | None, ...] = (None,) * len(CAPTURES)
    live: frozenset[int] = frozenset(CAPTURES)
    guards: frozenset[int] = frozenset()


class Killed(Exception):
    """A capture's process has been killed."""


class Model:
    """The programs of a link, where something happens just before one of the steps.

    :param happening: Changes this object, or raises.
    """

    def __init__(self, state: State, step: int, happening: Callable[[Model], None]) -> None:
        self.state, self.left, self.happening = state, step, happening

    def _step(self) -> None:
        self.check()
        if not self.left:
            self.happening(self)
        self.left -= 1

    def check(self) -> None:
        met = frames_meet(self.state)
        assert self.state.first is None or met[-1] in OWNERS, f"do not reach the owner: {met}"

    def set(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]

    def first(self) -> int | None:
        self._step()
        return self.state.first

    def behind(self, program: int) -> int | None:
        self._step()
        return self.state.behind[program - 1] if program in CAPTURES else None

    def hand_on(self, program: int, following: int) -> bool:
        self._step()
        behind = list(self.state.behind)
        behind[program - 1] = following
        self.set(behind=tuple(behind))
        return True

    def replace(self, old: int, new: int) -> bool:
        self._step()
        if self.state.first != old:
            return False
        self.set(first=new)
        return True


def killed(_: Model) -> None:
    raise Killed


def frames_meet(state: State) -> list[int]:
    """The programs that a frame meets; more than there are, if they are a circle."""
    found, following = [], state.first
    while following is not None and len(found) <= len(CAPTURES) + 1:
        found.append(following)
        following = state.behind[following - 1] if following in CAPTURES else None
    return found


class Captures(System[State]):
    def starts(self) -> Iterable[State]:
        return [State()]

    def moves(self, state: State) -> Iterable[tuple[str, State]]:
        changes = [(f"owner {new}", partial(Model.set, first=new)) for new in (*OWNERS, None)]
        for name, change in changes:
            model = Model(state, 0, change)
            change(model)
            yield name, model.state
        for own in CAPTURES:
            verbs = [("enter", enter), ("leave", leave)] if own in state.live else []
            verbs += [("guard", leave)] if own in state.guards else []
            for verb, act in verbs:
                for name, happening in [*changes, ("killed", killed)]:
                    for step in range(STEPS):
                        model = Model(state, step, happening)
                        try:
                            act(model, own)
                            if verb != "enter":
                                model.set(live=state.live - {own}, guards=state.guards - {own})
                        except Killed:  # from now on, its guard is to take it out
                            model.set(live=state.live - {own}, guards=state.guards | {own})
                        yield f"{verb} {own}, {name} at step {step}", model.state

    def check(self, state: State) -> str | None:
        met = frames_meet(state)
        if state.first is not None and met[-1] not in OWNERS:
            return f"frames do not reach the owner's program: {met}"
        if set(met) - {*OWNERS} - state.live - state.guards:
            return f"a capture that has ended still gets frames: {met}"
        return None

    def is_end(self, state: State) -> bool:
        """All that go on get all frames of a link."""
        met = frames_meet(state)
        return not state.guards and (state.first is None or state.live <= set(met))


def test_no_order_of_moves_builds_a_circle_or_cuts_the_owner_off() -> None:
    assert explore(Captures()).states > 500


def test_a_capture_that_does_not_look_for_itself_builds_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two captures that each put themselves first whenever they are not."""

    def blindly(programs: Model, own: int) -> bool:
        first = programs.first()
        return (
            first not in (None, own)
            and programs.hand_on(own, first)
            and programs.replace(first, own)
        )

    monkeypatch.setitem(globals(), "enter", blindly)
    with pytest.raises((Counterexample, AssertionError), match="do not reach the owner"):
        explore(Captures())
