"""Rules of the project's own files that no other tool checks."""

import ast
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from testbed.kernel import compile_bpf
from testbed.kernel.compile import sources
from tests.support.another_user import NOBODY, as_another_user

ROOT = Path(__file__).resolve().parents[1]


def test_every_bpf_program_states_its_licence() -> None:
    """The kernel offers some helpers only to programs with a licence compatible with GPL-2.0."""
    first = {path: path.read_text().partition("\n")[0] for path in (ROOT / "bpf").rglob("*.[ch]")}
    assert [path for path, line in first.items() if "SPDX-License-Identifier: " not in line] == []


@pytest.mark.parametrize("name", sources())
def test_bpf_compiles(name: str) -> None:
    """With warnings as errors, because of the kernel layer's flags."""
    assert compile_bpf(name).read_bytes()[:4] == b"\x7fELF"


def test_packages_are_pinned() -> None:
    required = [
        line
        for line in (ROOT / "requirements.txt").read_text().splitlines()
        if line[:1] not in ("", "#")
    ]
    assert [line for line in required if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


def test_make_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^\.PHONY: (.*)", text, re.MULTILINE)[0].split())
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert {line.split()[1] for line in shown.stdout.splitlines()} == targets


def test_make_clean_removes_what_root_has_made(tmp_path: Path) -> None:
    """A user who ran `make test`, with sudo, finds folders of root's: only sudo removes them."""
    checkout = tmp_path / "a checkout"
    checkout.mkdir()
    (checkout / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    for folder in (".tox/lint", "package/__pycache__"):
        (checkout / folder).mkdir(parents=True)
        (checkout / folder / "of_root").touch()
    if os.geteuid() == 0:
        os.chown(checkout, NOBODY, NOBODY)
    command = ["make", "--no-print-directory", "clean"]
    done = subprocess.run(
        as_another_user(*command), cwd=checkout, capture_output=True, text=True, check=False
    )
    if os.geteuid() == 0:
        assert done.returncode != 0  # this user has no sudo, and is told that it was tried
        assert "sudo" in done.stderr
        subprocess.run(command, cwd=checkout, check=True)
    assert not list(checkout.rglob("of_root"))


def test_text_is_read_and_written_in_a_named_encoding() -> None:
    """Else it is in the locale's, which may be anything: of files, and of what programs print."""
    places = [
        each for top in ("testbed", "analysis", "topologies") for each in (ROOT / top).rglob("*.py")
    ]
    found = [
        f"{place.relative_to(ROOT)}:{call.lineno}"
        for place in places
        for call in ast.walk(ast.parse(place.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and is_text(call)
    ]
    assert places
    assert found == []


def is_text(call: ast.Call) -> bool:
    """Whether a call reads or writes text and does not say in which encoding."""
    keys = {each.arg for each in call.keywords}
    whose, _, name = ast.unparse(call.func).rpartition(".")
    modes = [each.value for each in call.args if isinstance(each, ast.Constant)][-1:]
    if "encoding" in keys:
        return False
    if name in ("read_text", "write_text"):
        return whose not in ("", "options")
    if name in ("open", "fdopen") and whose in ("", "os"):
        return name + whose != "openos" and not any("b" in str(mode) for mode in modes)
    return (name == "open" and modes in (["r"], ["w"], ["a"])) or (
        whose == "subprocess" and "text" in keys
    )


def test_readme_names_real_files() -> None:
    """Every path in back quotes that starts with one of the project's folders exists."""
    tops = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"runs", "build"}
    quoted = re.findall(r"`([\w./-]+)`", (ROOT / "README.md").read_text())
    named = [name for name in quoted if "/" in name and name.split("/")[0] in tops]
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_list_of_apt_packages_is_read_as_intended(tmp_path: Path) -> None:
    """A package that is installed under one of its alternative names is not installed again: no
    output, no root, no network.
    """
    packages = tmp_path / "packages.apt"
    packages.write_text(
        "# comment\n\nno-such-package-{release} | dpkg  # in the distribution itself\napt\n"
    )
    command = [str(ROOT / "setup" / "apt.sh"), str(packages)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), shlex.join(command)
