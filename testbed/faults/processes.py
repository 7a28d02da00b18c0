"""Faults of a host's processes: killing, stopping, and slowing them down."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from testbed.core.errors import SpecError
from testbed.fabric import Fabric
from testbed.faults.events import LEAST_SHARE
from testbed.host.cgroup import CpuGroup, find_hierarchy
from testbed.worker import Workers

__all__ = ["kill", "paused", "processes_in", "slow"]

CYCLE = 0.02  # seconds of a cycle of stopping and continuing
STOPPING = 1.0  # seconds for a process to stop; one that waits for a disk may take longer


def kill(workers: Workers, host: str) -> None:
    """Kill a host's workers (SIGKILL); see :meth:`testbed.worker.Workers.kill` for the effect on
    calls.

    :raises SpecError: There is no such host.
    """
    workers.fabric.plan.host(host)
    workers.kill(host)


@contextmanager
def paused(fabric: Fabric, host: str) -> Iterator[None]:
    """Stop all processes of a host (SIGSTOP), and continue them at the end (SIGCONT).

    :raises SpecError: There is no such host.
    """
    fabric.plan.host(host)
    stopped: set[int] = set()
    try:
        _stop(fabric, host, stopped)
        yield
    finally:
        _signal(stopped, signal.SIGCONT)


@contextmanager
def slow(fabric: Fabric, host: str, share: float) -> Iterator[str]:
    """Limit all processes of a host together to a share of one CPU.

    It uses a control group if this process may create one, and otherwise stops and continues them
    in cycles of 20 ms.

    :param share: Share of one CPU, 0.01 to 1.
    :return: The method: ``cgroup`` or ``signals``.
    :raises SpecError: There is no such host, or no such share.
    """
    fabric.plan.host(host)
    if not LEAST_SHARE <= share <= 1:
        raise SpecError(f"share = {share}: must be a number from {LEAST_SHARE} to 1")
    hierarchy = find_hierarchy()
    if hierarchy is None:
        with duty_cycle(fabric, host, share):
            yield "signals"
        return
    with CpuGroup(hierarchy, fabric.run_id, host, share) as group:
        moved: set[int] = set()
        while new := set(processes_in(fabric, host)) - moved:  # until none was started meanwhile
            group.add(new)
            moved |= new
        yield "cgroup"


@contextmanager
def duty_cycle(fabric: Fabric, host: str, share: float) -> Iterator[None]:
    """Stop and continue the processes of a host in turns, so that they may run for a share of the
    time.
    """
    ended = threading.Event()

    def turns() -> None:
        while not ended.wait(CYCLE * share):
            with paused(fabric, host):
                ended.wait(CYCLE * (1 - share))

    thread = threading.Thread(target=turns, name=f"share of {host}")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def processes_in(fabric: Fabric, host: str) -> list[int]:
    """Process ids in a host's network namespace, without its holder, which is idle but must be able
    to exit.
    """
    holder = fabric.hosts[host].pid
    namespace = os.readlink(f"/proc/{holder}/ns/net")
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if os.readlink(directory / "ns/net") == namespace:
                found.append(int(directory.name))
    return [pid for pid in found if pid != holder]


def _stop(fabric: Fabric, host: str, stopped: set[int]) -> None:
    while new := set(processes_in(fabric, host)) - stopped:  # until none was started meanwhile
        stopped |= new
        _signal(new, signal.SIGSTOP)
    deadline = time.monotonic() + STOPPING
    while any(map(_runs, stopped)) and time.monotonic() < deadline:
        os.sched_yield()


def _runs(pid: int) -> bool:
    """Whether a process has not stopped yet: it handles the signal only when it next runs on a
    CPU.
    """
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            not in "TtZX"
        )
    except OSError:  # it has ended
        return False


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
