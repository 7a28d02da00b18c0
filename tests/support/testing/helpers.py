"""Runs of pytest on a test that is written for the purpose."""

import os
import re
import subprocess
import sys
from pathlib import Path

TESTBED = Path(sys.executable).with_name("testbed")
DOCS = Path(__file__).resolve().parents[3] / "docs" / "testing.md"


def run_pytest(directory: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a test's source in a directory that has nothing of the project but what is installed."""
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


def examples() -> dict[str, str]:
    """Return the examples of docs/testing.md by the file's name that they begin with."""
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert blocks
    return dict(blocks)
