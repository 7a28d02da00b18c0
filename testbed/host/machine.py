"""The environment of a measurement: machine, kernel, versions, and load."""

import importlib.metadata
import os
import platform
import subprocess
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
    "load_average",
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

BUSY = 0.5  # load average per processor; an idle machine is far below this


def load_average() -> float:
    """Return the load average over the last minute; to be called before a measurement adds to
    it.
    """
    return os.getloadavg()[0]


def caution(load: float, cpus: int) -> str | None:
    """Return a caution if the machine was busy before a measurement began, else None.

    :param load: Load average over the minute before.
    :param cpus: Processors that the measurement could use.
    """
    if load <= BUSY * cpus:
        return None
    return (
        "Caution: the machine was busy when the run began, with other work or an earlier run (load"
        f" average {load:.1f} on {cpus} processors), so times, ratios and their reasons may be far"
        " off."
    )


def free_memory() -> int:
    """Return the bytes available without swapping: ``MemAvailable`` of proc_meminfo(5)."""
    lines = dict(
        line.split(":", 1)
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    )
    return int(lines["MemAvailable"].split()[0]) << 10


def describe(load: float | None = None) -> dict[str, Any]:
    """Return what may explain a difference between two equal measurements.

    :param load: Load average over the minute before; without it, that of now.
    """
    return {
        "git_commit": git_commit(),
        "kernel": f"{platform.system()} {platform.release()} {platform.version()}",
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_average": load_average() if load is None else load,
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
