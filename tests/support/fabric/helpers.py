"""Helpers that the fabric's tests share."""

import os
import re
from pathlib import Path

from testbed.fabric.state import ROOT


def namespaces(but: str | None = None) -> dict[int, str]:
    """Network namespaces of all processes: inode -> a process in it.

    :param but: A run: processes of other runs are left out, since the kernel reuses inode numbers.
    """
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            link = os.readlink(process / "ns/net")
        except OSError:
            continue
        if but and (run := run_of(process)) and run != but:
            continue
        match = re.fullmatch(r"net:\[(\d+)\]", link)
        assert match
        found[int(match[1])] = process.name
    return found


def run_of(process: Path) -> str | None:
    """The run that a process belongs to, by its environment."""
    try:
        match = re.search(rb"\0TESTBED_RUN=([^\0]*)", b"\0" + (process / "environ").read_bytes())
    except OSError:
        return None
    return match[1].decode() if match else None


def traces(run_id: str) -> list[str]:
    """What exists of a run: files, and processes with its id in their environment."""
    found = [str(path) for path in ROOT.glob(f"*{run_id}*")]
    for process in Path("/proc").glob("[0-9]*"):
        if run_of(process) == run_id:
            found.append(f"process {process.name}")
    return found
