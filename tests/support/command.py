"""The command ``testbed`` in a process of its own."""

import subprocess
import sys

__all__ = ["PROGRAM", "run_testbed"]

PROGRAM = [sys.executable, "-c", "from testbed.cli import main; main()"]


def run_testbed(*arguments: str, timeout: float = 100.0) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    return subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )
