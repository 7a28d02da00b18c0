"""A worker on its own. Needs no root."""

import subprocess
import sys

import pytest

from testbed.host.processes import start_time
from tests.support.waiting import wait_until

CHILD = """
import signal
from testbed.worker.serve import die_with_parent
die_with_parent()
print("ready", flush=True)
signal.pause()
"""

# Starts the child, prints its process id, and exits without telling it.
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
os._exit(0)
"""


def test_a_worker_dies_with_its_parent() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", PARENT, CHILD],
        stdout=subprocess.PIPE,
        text=True,
        timeout=30,
        check=True,
    )
    wait_until(lambda: start_time(int(answer.stdout)) is None)


@pytest.mark.parametrize("arguments", [[], ["--connect", "/nowhere"], ["--name", "h1"]])
def test_a_worker_needs_an_address_and_a_name(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "testbed.worker", *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "the following arguments are required" in answer.stderr
