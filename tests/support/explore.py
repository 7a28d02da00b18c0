"""Explicit-state model checking: every state that a small system can reach, by every order of its
moves.

A system implements four methods (`System`). Its states are immutable and hashable: tuples, frozen
dataclasses, or anything else that a snapshot of it consists of; `moves` returns each move that is
possible in a state, with the state that it leads to. States that no later move can distinguish
should be equal: leave out clocks and counters, and keep frames in flight sorted.

`explore` visits states breadth first, so a counterexample is as short as any. Three things are
checked:

- safety: `check` finds nothing wrong with any state;
- no deadlock: a state without moves is an end;
- progress: from each state an end can be reached by moves that are not faults (in CTL, AG EF end).
  If a system makes every move eventually that is possible again and again (strong fairness), it
  then comes to an end once faults stop. If there are too many states to visit all, random walks
  without faults from a sample of them must reach an end.

Faults are moves whose names begin with `FAULT`. The system limits them, for example by a budget
that is part of its state.

    class Coin(System[str]):
        def starts(self):
            return ["up"]

        def moves(self, state):
            after = {"up": [("turn", "down"), ("take", "taken")], "down": [("turn", "up")]}
            return after.get(state, [])

        def check(self, state):
            return None

        def is_end(self, state):
            return state == "taken"

    print(explore(Coin()))  # 3 states, 3 moves, 1 end

Memory is a few hundred bytes per state in addition to the states themselves; states that share
parts (a tuple of ranks' states, of which a move changes one) share the memory of these parts.

Method: C. Baier, J.-P. Katoen, Principles of Model Checking, MIT Press 2008, chapters 3 (safety,
    fairness) and 6 (CTL).
"""

from __future__ import annotations

import gc
import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Container, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, TypeVar

import pytest

__all__ = ["FAULT", "Counterexample", "Explored", "System", "deep", "depth", "explore"]

_WALKS, _STEPS = 1000, 2000

State = TypeVar("State", bound=Hashable)

FAULT = "! "
"""The prefix of the names of moves that are not the system's own."""


class System(ABC, Generic[State]):
    """A system to explore."""

    @abstractmethod
    def starts(self) -> Iterable[State]:
        """Return the states in which it may start."""

    @abstractmethod
    def moves(self, state: State) -> Iterable[tuple[str, State]]:
        """Return each move that is possible in a state: its name, and the state after it."""

    @abstractmethod
    def check(self, state: State) -> str | None:
        """Return what is wrong with a state, or None."""

    @abstractmethod
    def is_end(self, state: State) -> bool:
        """Whether the system has completed its task. It may have moves left."""


class Counterexample(AssertionError):
    """A way in which a system reaches a forbidden state.

    :param moves: Names of the moves from a start to it.
    """

    def __init__(self, what: str, moves: list[str], state: object) -> None:
        self.what, self.moves = what, moves
        steps = "\n".join(f"{number:4}  {move}" for number, move in enumerate(moves, 1))
        super().__init__(f"{what}, after {len(moves)} moves:\n{steps}\nstate: {state}")


@dataclass(frozen=True)
class Explored:
    """The size of what was explored.

    :param ends: Number of states that are ends.
    :param complete: Whether all states were visited; otherwise progress is checked from a sample
        only.
    """

    states: int
    moves: int
    ends: int
    complete: bool

    def __str__(self) -> str:
        more = "" if self.complete else ", and more states"
        return (
            f"{self.states:,} states, {self.moves:,} moves, {self.ends:,}"
            f" end{'s' * (self.ends != 1)}{more}"
        )


def depth(quick: int) -> int:
    """The most states to visit: `quick`, or the value of ``TESTBED_EXPLORE``."""
    return int(os.environ.get("TESTBED_EXPLORE", quick))


def deep(names: Iterable[str], large: Container[str]) -> list[Any]:
    """Parameters of a test; the large ones belong to the tier ``deep``."""
    return [pytest.param(name, marks=pytest.mark.deep if name in large else ()) for name in names]


def explore(system: System[State], most: int = 10_000_000) -> Explored:
    """Visit all states of a system.

    :param most: The most states to visit.
    :raises Counterexample: A state is wrong or a deadlock, or no end can be reached from it.
    """
    with _uncollected():
        return _explore(system, most)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable Python's garbage collector for cycles: it would scan all states again and again, and
    states contain no cycles.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _explore(system: System[State], most: int) -> Explored:
    found: dict[State, int] = {}
    states: list[State] = []
    parents, names = array("q"), list[str]()
    sources, targets = array("q"), array("q")  # moves that are not faults
    ends: list[int] = []
    moves = 0

    def path(number: int) -> list[str]:
        steps = []
        while parents[number] >= 0:
            steps.append(names[number])
            number = parents[number]
        return steps[::-1]

    def visit(state: State, parent: int, name: str) -> int:
        number = found.setdefault(state, len(states))
        if number == len(states):
            states.append(state)
            parents.append(parent)
            names.append(name)
            if (wrong := system.check(state)) is not None:
                raise Counterexample(wrong, path(number), state)
            if system.is_end(state):
                ends.append(number)
        return number

    for state in system.starts():
        visit(state, -1, "")
    number = 0
    while number < len(states) < most:
        stuck = True
        for name, after in system.moves(states[number]):
            stuck, moves = False, moves + 1
            other = visit(after, number, name)
            if other != number and not name.startswith(FAULT):
                sources.append(number)
                targets.append(other)
        if stuck and not system.is_end(states[number]):
            raise Counterexample("deadlock", path(number), states[number])
        number += 1
    complete = number == len(states)
    if complete:
        lost = _cannot_reach(ends, sources, targets, len(states))
        if lost is not None:
            raise Counterexample("no end can be reached any more", path(lost), states[lost])
    else:
        for lost in Random(0).sample(range(number), min(_WALKS, number)):
            if not _ends(system, states[lost], Random(lost)):
                raise Counterexample(
                    f"no end within {_STEPS:,} moves without faults", path(lost), states[lost]
                )
    return Explored(len(states), moves, len(ends), complete)


def _ends(system: System[State], state: State, random: Random) -> bool:
    """Whether a random walk without faults reaches an end. It is fair: a move that stays possible
    is made eventually.
    """
    for _ in range(_STEPS):
        if system.is_end(state):
            return True
        state = random.choice(
            [after for name, after in system.moves(state) if not name.startswith(FAULT)]
        )
    return system.is_end(state)


def _cannot_reach(
    ends: list[int], sources: array[int], targets: array[int], count: int
) -> int | None:
    """The first state from which no path leads to an end."""
    before: list[list[int]] = [[] for _ in range(count)]
    for source, target in zip(sources, targets, strict=True):
        before[target].append(source)
    reached, todo = bytearray(count), list(ends)
    for number in ends:
        reached[number] = 1
    while todo:
        for number in before[todo.pop()]:
            if not reached[number]:
                reached[number] = 1
                todo.append(number)
    lost = reached.find(0)
    return None if lost < 0 else lost
