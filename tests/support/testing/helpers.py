"""Run pytest on tests given as source."""

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"


def run_pytest(directory: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a test's source in a directory that contains nothing of the project except what is
    installed.
    """
    (directory / "test_own.py").write_text(source)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-W",
        "error",
        "test_own.py",
        *options,
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return subprocess.run(
        command,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def examples(page: str = "testing.md") -> dict[str, str]:
    """Return the examples of a page of the documentation, by the file name with which each begins.

    Programs in C begin with ``// name``, tests with ``# name``.
    """
    text = (DOCS / page).read_text()
    blocks = re.findall(r"```(?:python|c)\n(?:#|//) (\S+)\n(.*?)```", text, re.DOTALL)
    assert blocks
    return dict(blocks)
