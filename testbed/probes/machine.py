"""Probes of rights and of file systems: root, cgroups, tracefs, locked memory."""

import os
import resource
from pathlib import Path

from testbed.kernel import BpfObject
from testbed.probes.finding import Missing

__all__ = ["cgroup", "memlock", "root", "tracefs"]

# Bits of linux/capability.h that are needed to load programs, and to create devices and namespaces.
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_SYS_ADMIN": 21}
TRACEFS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
MAP_BYTES = 64 << 20  # the largest tensor of the standard benchmark


def root() -> str:
    """Check for user id 0 and the capabilities that containers often drop."""
    if os.geteuid() != 0:
        raise Missing(f"effective user id is {os.geteuid()}, not 0")
    status = dict(
        line.split(":\t", 1)
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        if ":\t" in line
    )
    effective = int(status["CapEff"], 16)
    lacking = [name for name, bit in CAPABILITIES.items() if not effective >> bit & 1]
    if lacking:
        raise Missing(
            f"user id 0 without {', '.join(lacking)}", "start the container with --privileged"
        )
    return f"user id 0 with {', '.join(CAPABILITIES)}"


def cgroup() -> str:
    """Create a cgroup of version 2, and remove it."""
    mounts = [
        line.split()[:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    ]
    mount = next((Path(where) for _, where, kind in mounts if kind == "cgroup2"), None)
    if mount is None:
        raise Missing("no file system of type cgroup2 is mounted")
    group = mount / f"testbed-probe-{os.getpid()}"
    group.mkdir()
    try:
        controllers = (group / "cgroup.controllers").read_text(encoding="utf-8").split()
    finally:
        group.rmdir()
    return (
        f"{mount} is writable, controllers:"
        f" {' '.join(controllers) or 'none (version 1 holds them)'}"
    )


def tracefs() -> str:
    """Read a tracepoint's format where BCC looks for it."""
    for mount in TRACEFS:
        if (mount / "events" / "net").is_dir():
            return f"{mount} has the tracepoints of net"
    raise Missing(f"no events in {' or '.join(map(str, TRACEFS))}")


def memlock() -> str:
    """Create a map larger than the limit on locked memory, against which old kernels charge
    maps.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    with BpfObject("probe", max_entries={"memory": MAP_BYTES // 8}):
        limit_text = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit >> 10} KiB"
        return f"a map of {MAP_BYTES >> 20} MiB was made (limit on locked memory: {limit_text})"
