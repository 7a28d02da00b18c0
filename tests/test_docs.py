"""What the docs show runs as it is shown: each block of commands, in the order of its page, as a
reader in the root of a checkout would paste it.

A block says what it is: ``sh`` is run, except after a comment ``<!-- not run: REASON -->``;
``python``, ``toml`` and ``c`` whose first line is a comment with a file's name become that file;
``text`` is what commands print, or notation.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
KINDS = {"sh", "text", "python", "toml", "c"}
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")
FILE = re.compile(r"(?:#|//) ([\w.]+\.(?:py|c|toml))$")
COMMAND = re.compile(r"(sudo |\.venv/bin/|make |testbed )")
DEADLINE = 900.0  # seconds for a page


@dataclass(frozen=True)
class Block:
    """A fenced block.

    :param line: Of its first fence.
    :param not_run: Why it is not run; empty: it is.
    """

    kind: str
    text: str
    line: int
    not_run: str = ""


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    lines, found, at = page.read_text().splitlines(), [], 0
    while at < len(lines):
        if lines[at].startswith("```"):
            end = lines.index("```", at + 1)
            why = NOT_RUN.fullmatch(lines[at - 1])
            text = "\n".join(lines[at + 1 : end])
            found.append(Block(lines[at][3:], text, at + 1, why[1] if why else ""))
            at = end
        at += 1
    return found


def commands_of(page: Path) -> list[Block]:
    """The blocks of a page that are run."""
    return [each for each in blocks_of(page) if each.kind == "sh" and not each.not_run]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_say_what_they_are(page: Path) -> None:
    for block in blocks_of(page):
        where = f"{page.name}:{block.line}"
        assert block.kind in KINDS, f"{where}: {block.kind!r}: must be one of {sorted(KINDS)}"
        hidden = [line for line in block.text.splitlines() if COMMAND.match(line)]
        assert block.kind == "sh" or not hidden, f"{where}: has commands, and must be sh: {hidden}"
        assert block.kind == "sh" or not block.not_run, f"{where}: is never run"
        if block.kind == "python":
            ast.parse(block.text)
        elif block.kind == "toml":
            tomllib.loads(block.text)
        elif block.kind == "sh":
            checked = subprocess.run(["bash", "-n"], input=block.text, text=True, check=False)
            assert checked.returncode == 0, where


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What a reader has: a checkout, and files of their own that pages speak of."""
    folder = tmp_path / "checkout"
    for name in ("scenarios", "analysis", "topologies", "bpf"):
        shutil.copytree(ROOT / name, folder / name)
    for name in (".venv", "Makefile", "pyproject.toml", "testbed"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "tests/support/elsewhere/elsewhere.py", folder / "mine.py")
    random = np.random.default_rng(1)
    edges = {name: random.integers(0, 5000, 50_000) for name in ("src", "dst")}
    pq.write_table(pa.table(edges), folder / "edges.parquet")
    np.save(folder / "x.npy", random.standard_normal((5000, 16), np.float32))
    (folder / "home").mkdir()
    return folder


@pytest.fixture
def environment(checkout: Path) -> Iterator[dict[str, str]]:
    """A shell's environment, with a ``sudo`` that keeps as little as sudoers(5) does by default.
    Runs that are left up are ended.
    """
    shim, home = checkout.parent / "bin" / "sudo", checkout / "home"
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec env -i PATH={path} HOME={home} TERM=dumb "$@"\n')
    shim.chmod(0o755)
    found = {"PATH": f"{shim.parent}:{os.environ['PATH']}", "HOME": str(home), "TERM": "dumb"}
    yield found
    run("sudo .venv/bin/testbed down --all", checkout, found)


def run(script: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Paste a block into a shell."""
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


@pytest.mark.net
@pytest.mark.alone  # pages speak of the only fabric that is up
@pytest.mark.timeout(DEADLINE)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if commands_of(page)], ids=lambda page: page.name
)
def test_commands_run_as_shown(page: Path, checkout: Path, environment: dict[str, str]) -> None:
    for block in blocks_of(page):
        if name := FILE.match(block.text.partition("\n")[0]):
            (checkout / name[1]).write_text(block.text + "\n")
    for block in commands_of(page):
        done = run(block.text, checkout, environment)
        said = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert done.returncode == 0, f"{page.name}:{block.line}: {block.text}\n{said}"
    left = run("sudo .venv/bin/testbed status --json", checkout, environment)
    assert json.loads(left.stdout) == [], f"{page.name}: leaves runs up"
