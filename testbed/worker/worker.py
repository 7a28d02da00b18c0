"""One worker, as the controller sees it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.core.errors import WorkerDied
from testbed.worker.forkserver import Process
from testbed.worker.messages import Stop

if TYPE_CHECKING:
    from testbed.worker.controller import Workers

__all__ = ["Worker"]

DEATH_TIMEOUT = 2.0  # seconds between the end of a connection and the end of its process
LOG_TAIL = 2000  # characters


class Worker:
    """One worker; made by :class:`testbed.worker.Workers`.

    :param node: Name of the host or switch that it is in.
    :param process: Its process, if the controller has started it.
    :param log: Where it writes stdout and stderr.
    """

    def __init__(
        self,
        workers: Workers,
        name: str,
        node: str,
        process: Process | None = None,
        log: Path | None = None,
    ) -> None:
        self.name = name
        self.node = node
        self.process = process
        self.log = log
        self.pid = process.pid if process else 0
        self.connection: Connection | None = None
        #: Numbers of the calls that it has not answered.
        self.pending: set[int] = set()
        #: Whether its death is expected: see :meth:`testbed.worker.Workers.expect_death`.
        self.may_die = False
        #: How it died, once an expected death has been noticed.
        self.death: WorkerDied | None = None
        self._workers = workers

    def call(self, function: Callable[..., Any], /, **arguments: Any) -> Any:
        """Call ``function(context, **arguments)`` there: :meth:`testbed.worker.Workers.call_all`
        for one.

        All keywords go to the function; use ``call_all`` for a timeout or progress.
        """
        return self._workers.call_all(function, {self.name: arguments})[self.name]

    def send(self, message: Any) -> None:
        """Send a message.

        :raises WorkerDied: Its connection is closed.
        """
        if self.death:
            raise self.death
        assert self.connection
        try:
            self.connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise self.died() from None

    def died(self) -> WorkerDied:
        """The error to raise when its connection has ended; if its death is expected, later calls
        skip it.
        """
        status = None
        if self.process:
            with suppress(subprocess.TimeoutExpired):
                status = self.process.wait(DEATH_TIMEOUT)
        text = self.log.read_text(errors="replace", encoding="utf-8") if self.log else ""
        death = WorkerDied(self.name, status, text[-LOG_TAIL:].strip())
        if self.may_die:
            self.death = death
            self.pending.clear()
            if self.connection:
                self.connection.close()
                self.connection = None
        return death

    def stop(self) -> None:
        """Ask an idle worker to stop; kill a busy one, because it may be waiting for something that
        never arrives.
        """
        if self.pending and self.process:
            self.process.kill()
        elif self.connection:
            with suppress(OSError):
                self.connection.send(Stop())

    def close(self, deadline: float) -> None:
        """Wait until ``deadline`` on the monotonic clock for its process to end, then kill it."""
        if self.process:
            try:
                self.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.connection:
            self.connection.close()
