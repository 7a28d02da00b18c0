"""The fabric's verbs without root: one line that says what to do."""

import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(os.geteuid() == 0, reason="this is root")
@pytest.mark.parametrize(
    "arguments", [["up"], ["exec", "h1", "true"], ["exec", "--run", "x", "h1", "true"], ["status"], ["down"], ["clean"]]
)
def test_root_is_asked_for(arguments: list[str]) -> None:
    command = [sys.executable, "-c", "from testbed.cli import main; main()", *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert answer.stderr.startswith("error: ")
    assert answer.stderr.endswith("run it with sudo\n")
    assert answer.stderr.count("\n") == 1
