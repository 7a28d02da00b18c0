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

_EXEC = 1.0
"""Seconds that execve(2) takes at most."""


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
        fields = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[3] in "ZX" else int(fields[22])


def _stat(pid: int) -> dict[int, str]:
    """Fields of proc_pid_stat(5) from the third on, by their numbers there."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    # The second field is the command's name in parentheses, which may itself hold spaces and
    # parentheses.
    return dict(enumerate(text.rpartition(")")[2].split(), 3))


def processes_of(run_id: str) -> list[ProcessEntry]:
    """All processes with the run's id in their environment, except this one."""
    mark = f"{RUN_VARIABLE}={run_id}".encode()
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        pid = int(directory.name)
        try:
            start = start_time(pid)
            marked = mark in _environment(directory).split(b"\0")
            name = (directory / "comm").read_text(encoding="utf-8").strip()
        except OSError:
            continue  # it ended meanwhile, or not even root may read it
        if marked and start is not None and pid != os.getpid():
            found.append(ProcessEntry(name, pid, start))
    return found


def _environment(directory: Path) -> bytes:
    """A process's environment.

    One that is in execve(2) has none for a moment (``environ_read`` in fs/proc/base.c), until its
    code is there (``create_elf_tables`` in fs/binfmt_elf.c), as others do that have no variables;
    threads of the kernel and zombies have no program at all.

    :raises OSError: It ended meanwhile, or may not be read.
    """
    deadline = time.monotonic() + _EXEC
    while True:
        found = (directory / "environ").read_bytes()
        if found or time.monotonic() > deadline:
            return found
        os.readlink(directory / "exe")
        fields = _stat(int(directory.name))
        if fields[27] != "0" and fields[50] == fields[51]:  # endcode, env_start, env_end
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
