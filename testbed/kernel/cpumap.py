"""CPU maps: they hand frames to another CPU, where a kernel thread receives them."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from testbed.kernel.maps import Map

__all__ = ["fill_cpumap"]


def fill_cpumap(cpus: Map, numbers: Iterable[int], queue: int, program: int) -> None:
    """Set up a CPU map; its kernel threads run before all processes (SCHED_FIFO).

    The kernel creates the thread with normal priority (``kernel/bpf/cpumap.c``): on a busy CPU, a
    frame would wait for the end of a scheduler's time slice. Without CAP_SYS_NICE, it keeps that
    priority.

    :param queue: Frames that may wait on a CPU.
    :param program: Descriptor of the ``xdp/cpumap`` program that receives them.
    :raises KernelError: The kernel refused a CPU.
    """
    for cpu in numbers:
        cpus.update(cpu, struct.pack("=Ii", queue, program))  # struct bpf_cpumap_val
    for thread in _threads(cpus.number):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(1))


def _threads(map_id: int) -> list[int]:
    """The threads of a map, found by their name: ``cpumap/<cpu>/map:<id>``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                name = (entry / "comm").read_text(encoding="utf-8").strip()
                if name.startswith("cpumap/") and name.endswith(f"/map:{map_id}"):
                    found.append(int(entry.name))
    return found
