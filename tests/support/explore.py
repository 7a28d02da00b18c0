"""Explicit-state model checking: every state that a small system can get into, by every order of
its moves.

A system plugs in by four methods (`System`). Its states are immutable and hashable: tuples, frozen
dataclasses, or whatever a snapshot of it is made of; `moves` gives each move that can be made in a
state with the state that it leads to. What differs only in ways that no later move can tell should
be one state: leave out clocks and counters, keep what is in flight sorted.

`explore` visits states breadth first, so a counterexample is as short as any. Three things are
checked:

- safety: `check` finds nothing wrong with any state;
- no deadlock: a state without moves is an end;
- progress: from each state an end can be reached by moves that are no faults (in CTL, AG EF end). A
  system that goes on with each of its moves some time, if it can be made again and again (strong
  fairness), then does come to an end once faults do. If not all states can be visited, random walks
  without faults from a sample of them must reach an end.

Faults are moves whose names begin with `FAULT`. The system limits them, by a budget that is part of
its state, say.

    class Coin(System[str]):
        def starts(self): return ["up"] def moves(self, state): return {"up": [("turn", "down"),
        ("take", "taken")], "down": [("turn", "up")]}.get(state, []) def check(self, state): return
        None def is_end(self, state): return state == "taken"

    print(explore(Coin()))  # 3 states, 3 moves, 1 end

Memory is a few hundred bytes a state beyond the states themselves; states that share parts (a tuple
of ranks' states of which a move changes one) share their memory.

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
"""What names of moves begin with that are none of the system's own doing."""


class System(ABC, Generic[State]):
    """What is explored."""

    @abstractmethod
    def starts(self) -> Iterable[State]:
        """States that it may begin in."""

    @abstractmethod
    def moves(self, state: State) -> Iterable[tuple[str, State]]:
        """Each move that can be made in a state: its name, and the state after it."""

    @abstractmethod
    def check(self, state: State) -> str | None:
        """What is wrong with a state, if anything."""

    @abstractmethod
    def is_end(self, state: State) -> bool:
        """Whether the system has done what it was to do. It may have moves left."""


class Counterexample(AssertionError):
    """How a system gets into a state that it must not be in.

    :param moves: Names of the moves from a start to it.
    """

    def __init__(self, what: str, moves: list[str], state: object) -> None:
        self.what, self.moves = what, moves
        steps = "\n".join(f"{number:4}  {move}" for number, move in enumerate(moves, 1))
        super().__init__(f"{what}, after {len(moves)} moves:\n{steps}\nstate: {state}")


@dataclass(frozen=True)
class Explored:
    """How much there was.

    :param ends: States that are ends.
    :param complete: There were no more states; else progress is only checked from some.
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
    """States to visit at most: `quick`, or what ``TESTBED_EXPLORE`` says."""
    return int(os.environ.get("TESTBED_EXPLORE", quick))


def deep(names: Iterable[str], large: Container[str]) -> list[Any]:
    """Parameters of a test, of which the large ones are in the tier ``deep``."""
    return [pytest.param(name, marks=pytest.mark.deep if name in large else ()) for name in names]


def explore(system: System[State], most: int = 10_000_000) -> Explored:
    """Visit all states of a system.

    :param most: States at most.
    :raises Counterexample: One of them must not be.
    """
    with _uncollected():
        return _explore(system, most)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Switch Python's search for cycles off: it would look through all states over and over, and
    states have none.
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
    sources, targets = array("q"), array("q")  # moves that are no faults
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
    """Does a random walk without faults reach an end? It is fair: a move that stays possible is
    made some time.
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
