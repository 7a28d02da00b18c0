"""What a measurement should know of the machine: how much memory is free, and whether others are at work on it."""

import os
from pathlib import Path

__all__ = ["caution", "free_memory", "load_average"]

BUSY = 0.5  # load average a processor; a machine that is left alone is far below


def load_average() -> float:
    """Return the load average over the last minute; asked before a measurement adds to it."""
    return os.getloadavg()[0]


def caution(load: float, cpus: int) -> str | None:
    """Return what to say where the machine was busy before a measurement began; None where it was not.

    :param load: Load average over the minute before.
    :param cpus: Processors that the measurement could use.
    """
    if load <= BUSY * cpus:
        return None
    return (
        f"Caution: the machine was busy when the run began, with other work or an earlier run (load average {load:.1f} on "
        f"{cpus} processors), so times, ratios and their reasons may be far off."
    )


def free_memory() -> int:
    """Return the bytes that can be had without swapping: ``MemAvailable`` of proc_meminfo(5)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) << 10
