"""Undoes what a process did, even if it is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from typing import NoReturn

from testbed.core.closing import Stacked

__all__ = ["Guard"]


class Guard(Stacked):
    """A process of its own that outlives this one, for a moment. A context manager; to be entered
    while there are no other threads.

    It holds all that this process has open by then: a map from which programs take what they call
    is emptied as soon as no process holds it.

    :param undo: What it does when this process has ended; doing it twice must do no harm.
    """

    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo = undo

    def _enter(self, stack: ExitStack) -> None:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(writing)
            self._wait(reading)
        os.close(reading)
        stack.callback(os.waitpid, child, 0)
        stack.callback(os.close, writing)

    def _wait(self, reading: int) -> NoReturn:
        """The child: until nobody holds the other end."""
        status = 1
        try:
            os.setsid()  # a shell's `kill -9 %1` and timeout(1) kill a whole process group
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            os.read(reading, 1)
            self._undo()
            status = 0
        finally:
            os._exit(status)
