"""What can be seen of a fabric: devices, programs, processes. Two looks tell what a
test has left.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyroute2.netlink.rtnl.ifinfmsg import IFF_UP

if TYPE_CHECKING:
    from testbed.fabric import Fabric

__all__ = ["traces"]

_BPF = (
    "prog_id",
    "map_id",
    "link_id",
)  # lines of /proc/PID/fdinfo (Documentation/filesystems/proc.rst)


def traces(fabric: Fabric) -> set[str]:
    """Name every device with its state, every process and every BPF object of a fabric's nodes, and
    faults in force.
    """
    found = {f"faults in force on {fabric.run_id}"} if fabric.faults else set()
    found |= {f"{name}: floods" for name in fabric.floods}
    for name, node in fabric.nodes.items():
        found |= {f"{name}: {device}" for device in _devices(node.namespace.request("get_links"))}
    nodes = {os.readlink(f"/proc/{node.pid}/ns/net"): name for name, node in fabric.nodes.items()}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            inside = nodes.get(os.readlink(process / "ns/net"))
            if inside is not None:
                found.add(f"{inside}: process {_text(process)}")
                found |= {
                    f"{inside}: BPF {item} of process {process.name}" for item in _bpf(process)
                }
    return found


def _devices(links: object) -> list[str]:
    found = []
    for link in links:  # type: ignore[attr-defined]  # pyroute2 has no types
        xdp = link.get_attr("IFLA_XDP")
        program = xdp.get_attr("IFLA_XDP_PROG_ID") if xdp else None
        state = "up" if link["flags"] & IFF_UP else "down"
        found.append(
            f"{link.get_attr('IFLA_IFNAME')} {state}, {link.get_attr('IFLA_QDISC')}, XDP {program}"
        )
    return found


def _text(process: Path) -> str:
    command = (
        (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    )
    state = (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    return f"{process.name} ({command}){' is stopped' if state == 'T' else ''}"


def _bpf(process: Path) -> set[str]:
    found = set()
    for entry in (process / "fdinfo").iterdir():
        with suppress(OSError):  # it has been closed
            for line in entry.read_text(encoding="utf-8").splitlines():
                key, _, value = line.partition(":")
                if key in _BPF:
                    found.add(f"{key.removesuffix('_id')} {value.strip()}")
    return found
