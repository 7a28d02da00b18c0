"""Verbs that build or enter networks, without root: they print one line that says what to do, and
create nothing.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.another_user import as_another_user
from tests.support.command import PROGRAM
from tests.support.tiers import broad

ROOT = Path(__file__).parents[2]

VERBS = [
    ["up"],
    ["exec", "h1", "true"],
    ["exec", "--run", "x", "h1", "true"],
    ["status"],
    ["down"],
    ["clean"],
    ["bench", "allreduce"],
    ["run", str(ROOT / "scenarios" / "ddp_synthetic.toml"), "--out", "run"],
]


def call(arguments: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    folder.chmod(0o777)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}
    return subprocess.run(
        as_another_user(*PROGRAM, *arguments),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=folder,
    )


@pytest.mark.parametrize("arguments", broad(VERBS, 2), ids=" ".join)
def test_the_error_asks_for_root(arguments: list[str], tmp_path: Path) -> None:
    answer = call(arguments, tmp_path)
    assert answer.stderr == "error: namespaces and interfaces need root: run it with sudo\n"
    assert (answer.stdout, answer.returncode) == ("", 1)
    assert list(tmp_path.iterdir()) == []
