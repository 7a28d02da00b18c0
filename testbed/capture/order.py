"""The order of the programs on a link that captures have put themselves in front of. Pure.

Several captures may watch one end, and none of them owns it: its program is that of a host's chain
or of a switch, whose worker changes it at any time. So no process remembers the order. It is
in the kernel alone, where all can read it: a capture's program hands each frame on by a tail call
through a map of its own, and what has no such map is the owner's.

Whoever changes the order holds the run's lock (`locked`), and then does one of two things:

- `enter` puts a program in front of all others, unless it is in the order already. What it
  hands on to was first until now, and so never leads back to it: there can be no circle.
- `leave` takes it out, wherever it is by then.

The owner needs no lock. When it changes its link's program, all captures are out of the order, and
each enters again when it next looks. `tests/capture/test_order.py` goes through every sequence of
these moves.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

__all__ = ["Programs", "enter", "leave", "locked", "order"]


class Programs(Protocol):
    """The programs on a link, by the kernel's numbers."""

    def first(self) -> int | None:
        """The link's program; None: the link has ended."""

    def behind(self, program: int) -> int | None:
        """What a capture's program hands on to; None: it is no capture's, or has ended."""

    def hand_on(self, program: int, following: int) -> bool:
        """Let a capture's program hand on to another one; False: one of them has ended."""

    def replace(self, old: int, new: int) -> bool:
        """Replace the link's program; False: it has another one by now, or has ended."""


def order(programs: Programs) -> list[int]:
    """The programs that a frame meets, the owner's as the last; empty if the link has ended."""
    found: list[int] = []
    following = programs.first()
    while following is not None and following not in found:
        found.append(following)
        following = programs.behind(following)
    return found


def enter(programs: Programs, own: int) -> bool:
    """Put a capture's program in front, and return whether it is in the order now."""
    present = order(programs)
    if own in present:
        return True
    return bool(present) and programs.hand_on(own, present[0]) and programs.replace(present[0], own)


def leave(programs: Programs, own: int) -> None:
    """Take a capture's program out; does nothing if it is not in the order."""
    present = order(programs)
    if own not in present[:-1]:
        return
    place = present.index(own)
    if place:
        programs.hand_on(present[place - 1], present[place + 1])
    else:
        programs.replace(own, present[1])


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let no other process change the order meanwhile.

    :param folder: The run's; if it has gone, so have its links.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # ends with this process, however it ends
        yield
    finally:
        os.close(descriptor)
