"""Under what circumstances a run took place: machine, kernel, versions, commit."""

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from testbed.machine import load_average
from testbed.results.findings import findings

__all__ = ["circumstances", "digest"]

PACKAGES = ("collective-testbed", "numpy", "torch", "torch-geometric", "pandas", "mininet", "mpi4py")


def digest(value: Any) -> str:
    """Return a short hash of anything that JSON can hold."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def circumstances() -> dict[str, Any]:
    """Return what may explain a difference between two runs of one scenario."""
    load, packages = load_average(), versions()
    return {
        "git_commit": git_commit(),
        "kernel": f"{platform.system()} {platform.release()} {platform.version()}",
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_average": load,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "versions": packages,
        "doctor": findings(packages),
    }


def git_commit() -> str | None:
    """Return the commit that the package's code is from, with ``+`` where it has been changed since."""
    root = Path(__file__).parents[2]
    try:
        command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None  # an installed package is no checkout


def cpu_model() -> str:
    """Return the processor's name as the kernel gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
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
