"""What a result depends on besides the code: machine, kernel, versions, fabric."""

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import testbed
from testbed.fabric import Fabric

__all__ = ["describe"]


def describe(fabric: Fabric, load: float, extra: Mapping[str, object]) -> dict[str, object]:
    """Describe machine, fabric and versions; `extra` goes between.

    :param load: Load average of the minute before the measurement.
    """
    plan = fabric.plan
    return {
        "testbed": _commit(),
        "kernel": platform.release(),
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_average": round(load, 2),
        "topology": plan.topology,
        "hosts": len(plan.hosts),
        "switch": plan.switch_kind,
        "mtu": plan.mtu,
        "offload": "on" if plan.offload else "off",
        "queues": plan.queues,
        **extra,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "torch": version("torch"),
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    """The package's version, and the commit where it runs from a checkout."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return testbed.__version__
    return f"{testbed.__version__} ({done.stdout.strip()})"
