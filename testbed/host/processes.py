"""Processes of a run: identifying them reliably, and ending them."""

import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["RUN_VARIABLE", "ProcessEntry", "kill", "processes_of", "start_time"]

#: In the environment of every process that a run starts, and so of their descendants; the value is
#: the run id.
RUN_VARIABLE = "TESTBED_RUN"


@dataclass(frozen=True)
class ProcessEntry:
    """A process: the one with this id, if it started at this time, because ids are reused.

    :param start: Its :func:`start_time`.
    """

    name: str
    pid: int
    start: int

    @property
    def alive(self) -> bool:
        """Whether it is still running (a zombie is not)."""
        return start_time(self.pid) == self.start


def start_time(pid: int) -> int | None:
    """When a process started, clock ticks since boot (proc_pid_stat(5), field 22); ``None``: it has
    ended.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command's name in parentheses, which may itself hold spaces and
    # parentheses.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def processes_of(run_id: str) -> list[ProcessEntry]:
    """All processes with the run's id in their environment, except this one."""
    mark = f"{RUN_VARIABLE}={run_id}".encode()
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        pid = int(directory.name)
        try:
            start = start_time(pid)
            marked = mark in (directory / "environ").read_bytes().split(b"\0")
            name = (directory / "comm").read_text(encoding="utf-8").strip()
        except OSError:
            continue  # it ended meanwhile, or not even root may read it
        if marked and start is not None and pid != os.getpid():
            found.append(ProcessEntry(name, pid, start))
    return found


def kill(processes: Iterable[ProcessEntry], timeout: float = 2.0) -> list[ProcessEntry]:
    """SIGKILL processes whose ids have not been reused, and wait until they have ended.

    :param timeout: Seconds to wait; a process in uninterruptible sleep ends later.
    :return: Those that were alive.
    """
    killed: list[tuple[ProcessEntry, int]] = []
    for entry in processes:
        try:
            pidfd = os.pidfd_open(entry.pid)
        except ProcessLookupError:
            continue
        # Checked after pidfd_open: from then on, the descriptor cannot refer to a later process.
        if entry.alive:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            killed.append((entry, pidfd))
        else:
            os.close(pidfd)
    deadline = time.monotonic() + timeout
    for _, pidfd in killed:
        select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))
        os.close(pidfd)
    return [entry for entry, _ in killed]
