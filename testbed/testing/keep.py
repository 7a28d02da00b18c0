"""``--keep``: the fabric of a failed test outlives pytest, like one of ``testbed up``.

A fabric belongs to the process that built it: its workers die with that. So pytest runs in a child
from the start, and its parent ends with pytest's status when that is known; the child then stays in
the background for as long as the fabric is kept.
"""

import os
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from testbed.fabric import Fabric

__all__ = ["Keeper"]


class Keeper:
    """Made before any test runs. Returns in the child alone; the parent waits for :meth:`finish`,
    and exits.
    """

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        child = os.fork()
        if child:
            os.close(self._writer)
            _wait(reader, child)
        os.close(reader)
        self._kept: tuple[Fabric, ExitStack] | None = None

    @property
    def holds(self) -> bool:
        """Whether a fabric is kept already; there is no place for another."""
        return self._kept is not None

    def keep(self, fabric: "Fabric", stack: ExitStack) -> str:
        """Keep a fabric.

        :param stack: What takes it down.
        :returns: What to tell the user.
        """
        self._kept = fabric, stack
        with fabric.state.change() as state:
            state.kept = True
        run = fabric.run_id
        return (
            f"run {run} stays up, held by process {os.getpid()}:\n"
            f"  testbed status\n  testbed exec --run {run} h1 -- ip addr\n  testbed down {run}"
        )

    def finish(self, status: int) -> NoReturn:
        """Tell the parent to exit; stay until a signal or a worker's death ends the fabric that is
        kept, if there is one.
        """
        try:
            if self._kept:
                os.setsid()
                null = os.open(os.devnull, os.O_RDWR)
                for descriptor in (0, 1, 2):
                    os.dup2(null, descriptor)
            os.write(self._writer, bytes([status]))
            os.close(self._writer)
            if self._kept:
                fabric, stack = self._kept
                with stack:
                    from testbed.worker import Workers

                    Workers.of(fabric).check(timeout=None)
        finally:
            os._exit(status)


def _wait(reader: int, child: int) -> NoReturn:
    """The parent: a Ctrl-C at the terminal reaches the child, too, which says how it ended; other
    signals are handed on.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(child, number))
    status = os.read(reader, 1)
    if status:
        os._exit(status[0])
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(code if code >= 0 else 128 - code)
