"""The process from which workers are forked: it imports what they need once, and forks one into
each node's namespaces.

This is the controller's side; the process runs :mod:`testbed.worker.fork`.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.core.closing import Closing
from testbed.core.errors import FabricError
from testbed.host.processes import RUN_VARIABLE

if TYPE_CHECKING:
    from testbed.fabric import Fabric

__all__ = ["Forkserver", "Process"]

PROGRAM = "testbed.worker.fork"
STOP_TIMEOUT = 2.0  # seconds
_FOREIGN = ("GLOO_", "TORCH_GLOO_")  # environment variables


class Process:
    """A process that a forkserver has forked: the part of :class:`subprocess.Popen` that is needed,
    for a process that is not a child of this one.
    """

    def __init__(self, forkserver: "Forkserver", pid: int) -> None:
        self.pid = pid
        #: Its exit status, negative for a signal, once :meth:`wait` has seen its end.
        self.returncode: int | None = None
        self._forkserver = forkserver
        self._end = os.pidfd_open(
            pid
        )  # it stays a zombie until the forkserver is asked for its status

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status when it has ended.

        :raises subprocess.TimeoutExpired: It has not.
        """
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout or 0.0)
            self.returncode = self._forkserver.status(self.pid)
            os.close(self._end)
        return self.returncode

    def kill(self) -> None:
        """SIGKILL it, if it has not ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._end, signal.SIGKILL)


def environment() -> dict[str, str]:
    """Return this process's environment, without what would change gloo's connections."""
    return {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}


class Forkserver(Closing):
    """The process that forks a fabric's workers, from the constructor to :meth:`close`. It is
    killed when the thread that created it exits.

    :param fabric: A fabric that is up.
    :param connect: The controller's socket, for workers to connect to.
    :param modules: Modules to import before the first worker is forked; missing ones are skipped.
    :raises FabricError: It died.
    """

    def __init__(self, fabric: "Fabric", connect: Path, modules: Iterable[str]) -> None:
        self._log = fabric.directory / "forkserver.log"
        self._lock = threading.Lock()  # any thread may ask for the status of a dead worker
        ours, theirs = socket.socketpair()
        with theirs, self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", PROGRAM, "--connect", str(connect)],
                env={
                    **environment(),
                    RUN_VARIABLE: fabric.run_id,
                    "TMPDIR": str(fabric.directory),  # libraries leave files there
                },
                stdin=theirs.fileno(),
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,  # like its workers: a Ctrl-C at the terminal is for the controller
            )
        self._wire = ours.makefile("rw")
        ours.close()  # the file holds it
        try:
            self._order({"path": sys.path, "modules": list(modules)})
        except BaseException:
            self.close()
            raise

    def fork(self, name: str, holder: int, log: Path) -> Process:
        """Start a worker.

        :param holder: Process id of the holder of its namespaces.
        :param log: Where its output goes; an existing file.
        :raises FabricError: The forkserver has died.
        """
        return Process(self, self._order({"name": name, "holder": holder, "log": str(log)}))

    def status(self, pid: int) -> int:
        """Return the exit status of a worker that has ended."""
        status = self._ask({"ended": pid})
        return -signal.SIGKILL if status is None else status  # workers die with the forkserver

    def close(self) -> None:
        """Let it end; workers should have ended before that."""
        with suppress(OSError):
            self._wire.close()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:  # it is stopped, or still importing
            self._process.kill()
            self._process.wait()

    def _order(self, question: dict[str, Any]) -> int:
        """Return its answer.

        :raises FabricError: It has died.
        """
        answer = self._ask(question)
        if answer is None:
            said = self._log.read_text(errors="replace", encoding="utf-8").strip()[-2000:]
            raise FabricError(
                f"the process that starts workers ended with {self._process.wait()}: {said}"
            )
        return answer

    def _ask(self, question: dict[str, Any]) -> int | None:
        """Return its answer; `None`: it has died."""
        with self._lock, suppress(OSError, ValueError):
            self._wire.write(json.dumps(question) + "\n")
            self._wire.flush()
            if line := self._wire.readline():
                return int(line)
        return None
