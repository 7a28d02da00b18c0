"""Puts programs back on their links, even if the process that replaced them is killed."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, suppress
from typing import NamedTuple

from testbed.core.closing import Stacked
from testbed.core.errors import KernelError
from testbed.kernel.xdp_links import opened_program, replace

__all__ = ["Guard", "Replaced"]


class Replaced(NamedTuple):
    """A link whose program was replaced; programs by their numbers."""

    link: int
    before: int
    now: int

    def undo(self) -> None:
        """Put the earlier program back, unless the link has ended or has another one by now."""
        with opened_program(self.before) as before, opened_program(self.now) as now:
            if before is not None and now is not None:
                replace(self.link, now, before)


class Guard(Stacked):
    """A process of its own that outlives this one, for a moment. A context manager; to be entered
    before threads are started.
    """

    def _enter(self, stack: ExitStack) -> None:
        reading, self._writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(self._writing)
            _wait(reading)
        os.close(reading)
        stack.callback(os.waitpid, child, 0)
        stack.callback(os.close, self._writing)

    def note(self, replaced: Replaced) -> None:
        """Have it undone when this process has ended. Undoing it twice does no harm."""
        os.write(self._writing, (" ".join(map(str, replaced)) + "\n").encode())


def _wait(reading: int) -> None:
    """The child: until nobody holds the other end."""
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with os.fdopen(reading, encoding="utf-8") as lines:
            replaced = [Replaced(*map(int, line.split())) for line in lines]
        for each in replaced:
            with suppress(KernelError):
                each.undo()
        status = 0
    finally:
        os._exit(status)
