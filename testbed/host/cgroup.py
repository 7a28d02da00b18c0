"""Control groups that limit a host's processes to a share of a CPU: cpu.max in version 2, the CFS
quota in version 1.

A group is named ``testbed.<run id>.<node>``, so what a killed controller leaves behind can be found
by name.
"""

import errno
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from testbed.core.closing import Closing
from testbed.core.errors import FaultError

__all__ = ["CpuGroup", "Hierarchy", "find_hierarchy", "remove_groups"]

PERIOD = 10_000  # microseconds: short, so that a group waits often but never long
LEAST_QUOTA = 1_000  # microseconds: min_cfs_quota_period in kernel/sched/core.c
REMOVE_TIMEOUT = 2.0  # seconds: a group is busy until the last of its processes has ended


@dataclass(frozen=True)
class Hierarchy:
    """Where the CPU controller is mounted.

    :param root: Its mount point.
    :param version: 1 or 2 (cgroups(7)).
    """

    root: Path
    version: int

    def limit(self, group: Path, share: float) -> None:
        """Limit a group to a share of one CPU."""
        period = max(PERIOD, round(LEAST_QUOTA / share))
        quota = round(period * share)
        if self.version == 2:
            (group / "cpu.max").write_text(f"{quota} {period}", encoding="utf-8")
        else:
            (group / "cpu.cfs_period_us").write_text(str(period), encoding="utf-8")
            (group / "cpu.cfs_quota_us").write_text(str(quota), encoding="utf-8")

    def home(self) -> Path:
        """Return the group that this process is in."""
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if (self.version == 2 and not controllers) or "cpu" in controllers.split(","):
                found = self.root / path.lstrip("/")
                return found if found.is_dir() else self.root
        return self.root


def find_hierarchy(mounts: Path = Path("/proc/self/mounts")) -> Hierarchy | None:
    """Find the CPU controller; ``None`` if this process may not create groups with it.

    :param mounts: As proc_pid_mounts(5).
    """
    for line in mounts.read_text(encoding="utf-8").splitlines():
        _, place, kind, options, *_ = line.split()
        root = Path(place)
        if not os.access(root, os.W_OK) or "ro" in options.split(","):
            continue
        if kind == "cgroup" and "cpu" in options.split(","):
            return Hierarchy(root, 1)
        # Only if it is already enabled for the root's children: enabling it would affect the whole
        # machine.
        if (
            kind == "cgroup2"
            and "cpu" in (root / "cgroup.subtree_control").read_text(encoding="utf-8").split()
        ):
            return Hierarchy(root, 2)
    return None


class CpuGroup(Closing):
    """A group of processes that get a share of one CPU together, from the constructor to
    :meth:`close`.

    :param hierarchy: From :func:`find_hierarchy`.
    :param run_id: The run that the processes belong to.
    :param node: Name of the host.
    :param share: Share of one CPU.
    :raises FaultError: The kernel refused it.
    """

    def __init__(self, hierarchy: Hierarchy, run_id: str, node: str, share: float) -> None:
        self._hierarchy = hierarchy
        self.path = hierarchy.root / f"{_prefix(run_id)}{node}"
        try:
            self.path.mkdir()
            hierarchy.limit(self.path, share)
        except OSError as error:
            self.close()
            raise FaultError(
                f"{error.filename}: a CPU share of {share:g} is refused: {error.strerror}"
            ) from error

    def add(self, pids: Iterable[int]) -> None:
        """Move processes into the group; their later children start there."""
        _move(pids, self.path)

    def close(self) -> None:
        """Move its processes to this process's group, and remove it."""
        if self.path.is_dir():
            _remove(self.path, self._hierarchy.home())


def remove_groups(run_id: str) -> Iterator[Path]:
    """Remove the groups of a run whose processes have ended."""
    hierarchy = find_hierarchy()
    for path in sorted(hierarchy.root.glob(f"{_prefix(run_id)}*")) if hierarchy else ():
        _remove(path, hierarchy.root if hierarchy else path)
        yield path


def _prefix(run_id: str) -> str:
    return f"testbed.{run_id}."  # no run id has a dot


def _move(pids: Iterable[int], group: Path) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended
            (group / "cgroup.procs").write_text(str(pid), encoding="utf-8")


def _remove(path: Path, home: Path) -> None:
    deadline = time.monotonic() + REMOVE_TIMEOUT
    while True:
        _move(map(int, (path / "cgroup.procs").read_text(encoding="utf-8").split()), home)
        try:
            path.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise FaultError(f"{path} cannot be removed: {error.strerror}") from error
        else:
            return
