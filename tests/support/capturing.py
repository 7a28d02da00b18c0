"""The verb ``capture``, in a process of its own."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.fabric import Fabric
from tests.support.command import PROGRAM

__all__ = ["capturing"]


@contextmanager
def capturing(fabric: Fabric, path: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Capture into a file; entered once the capture goes on, and killed at the end.

    :param arguments: Ports, and further options.
    """
    command = [*PROGRAM, "capture", *arguments, "--run", fabric.run_id, "-o", str(path), "--json"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that a test can kill its process group, as shells do
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("capturing ")
            yield process
        finally:
            process.kill()
