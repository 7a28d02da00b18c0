"""The environment of a measurement: machine, kernel, versions, and load."""

import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from testbed.host.paths import ROOT

__all__ = [
    "Affinity",
    "caution",
    "cpu_model",
    "describe",
    "free_memory",
    "git_commit",
    "load",
    "versions",
]

PACKAGES = (
    "collective-testbed",
    "numpy",
    "torch",
    "torch-geometric",
    "pandas",
    "mininet",
    "mpi4py",
)

Affinity = Literal["none", "rank", "one"]
"""Where ranks run: ``rank`` pins the processes of rank r to CPU r modulo CPUs, ``one`` those of all
ranks to the first CPU, ``none`` leaves that to the scheduler.
"""

BUSY = 0.25  # share of all CPUs' time; an idle machine is far below this
_LOOK = 0.2  # seconds


def load() -> dict[str, float]:
    """Return how busy the machine is, which takes 0.2 s; to be called before a measurement adds to
    it.

    `busy` is the share of all CPUs' time in which they were not idle: what runs now. `load_average`
    is over the last minute, and so has the run before this one in it.
    """
    before = _cpu_times()
    time.sleep(_LOOK)
    idle, whole = (now - then for now, then in zip(_cpu_times(), before, strict=True))
    busy = 1 - idle / whole if whole else 0.0
    return {"load_average": os.getloadavg()[0], "busy": round(max(0.0, busy), 3)}


def _cpu_times() -> tuple[int, int]:
    """Ticks of all CPUs: idle, and in all (proc_stat(5))."""
    first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    ticks = [int(value) for value in first.split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def caution(facts: Mapping[str, Any]) -> str | None:
    """Return a caution if the machine was busy before a measurement began, else None.

    :param facts: What `describe` has said then; that of earlier versions has no `busy`, and its
        load average stands for it.
    """
    cpus = facts["cpus"]
    if (busy := facts.get("busy")) is None:
        busy = facts["load_average"] / cpus
    if busy <= BUSY:
        return None
    return (
        "Caution: the machine was busy when the run began: other work took"
        f" {min(busy, 1.0):.0%} of the time of its {cpus} processors, so times, ratios and their"
        " reasons may be far off."
    )


def free_memory() -> int:
    """Return the bytes available without swapping: ``MemAvailable`` of proc_meminfo(5)."""
    lines = dict(
        line.split(":", 1)
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    )
    return int(lines["MemAvailable"].split()[0]) << 10


def describe(before: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return what may explain a difference between two equal measurements.

    :param before: What `load` has said before the measurement; without it, that of now.
    """
    return {
        "git_commit": git_commit(),
        "kernel": f"{platform.system()} {platform.release()} {platform.version()}",
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        **(load() if before is None else before),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "versions": versions(),
    }


def git_commit() -> str | None:
    """Return the commit of the package's code, with ``+`` if it has local changes."""
    try:
        command = [
            "git",
            "-C",
            str(ROOT),
            "describe",
            "--always",
            "--abbrev=40",
            "--dirty=+",
            "--exclude=*",
        ]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, encoding="utf-8", errors="replace"
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None  # an installed package is not a checkout


def cpu_model() -> str:
    """Return the processor's name as the kernel reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def versions() -> dict[str, str]:
    """Return the installed versions of the packages that results may depend on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
