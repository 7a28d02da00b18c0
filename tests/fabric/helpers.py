"""What the fabric's tests share."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from testbed.fabric.state import ROOT


def wait_until(condition: Callable[[], bool], timeout: float = 10.0) -> None:
    """Return as soon as ``condition`` holds; fail when it does not in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:g} s"


def namespaces() -> dict[int, str]:
    """Network namespaces of all processes: inode -> a process in it."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            link = os.readlink(process / "ns/net")
        except OSError:
            continue
        match = re.fullmatch(r"net:\[(\d+)\]", link)
        assert match
        found[int(match[1])] = process.name
    return found


def traces(run_id: str) -> list[str]:
    """What is there of a run: files, and processes with its id in their environment."""
    found = [str(path) for path in ROOT.glob(f"*{run_id}*")]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TESTBED_RUN={run_id}".encode() in (process / "environ").read_bytes():
                found.append(f"process {process.name}")
        except OSError:
            continue
    return found
