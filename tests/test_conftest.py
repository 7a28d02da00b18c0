"""The test suite's own rules, tested on small suites that run in a separate pytest."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.another_user import as_another_user
from tests.support.tiers import broad

TESTS = Path(__file__).parent
ROOT = TESTS.parent
NEEDY = """
import pytest

@pytest.mark.kernel
def test_tier():
    pass

@pytest.mark.needs("verifier")
def test_capability():
    pass
"""
LEAKY = """
import conftest, contextlib, pathlib, pytest, subprocess
from tests.support.waiting import wait_until

conftest.GRACE = 0.5

def running():
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield entry.read_bytes()

@pytest.mark.net
def test_leak():
    # A daemon: its parent ends, and it sits in a session of its own.
    subprocess.run(["setsid", "--fork", "sleep", "60.125"], check=True)
    # A program that is about to begin has no environment to be known by.
    wait_until(lambda: b"sleep\\0" b"60.125\\0" in running())
"""


def suite(
    source: str, directory: Path, require: str = "", another_user: bool = False
) -> subprocess.CompletedProcess[str]:
    (directory / "test_small.py").write_text(source)
    directory.chmod(0o755)
    options = [
        "-p",
        "conftest",
        "-p",
        "no:cacheprovider",
        "-c",
        str(TESTS.parent / "pyproject.toml"),
    ]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(directory)]
    command += [str(directory / "test_small.py")]
    return subprocess.run(
        as_another_user(*command) if another_user else command,
        cwd="/",
        env={
            **os.environ,
            "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}",
            "TESTBED_REQUIRE": require,
            "HOME": str(directory),
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("require", "outcome"),
    broad(
        [
            ("kernel", " 1 skipped, 1 error in "),
            ("", " 2 skipped in "),
            ("kernel, verifier", " 2 errors in "),
        ]
    ),
)
def test_without_root(require: str, outcome: str, tmp_path: Path) -> None:
    done = suite(NEEDY, tmp_path, require, another_user=True)
    assert outcome in done.stdout
    assert "verifier: not tried, because it needs root; fix: run it as root" in done.stdout
    assert done.returncode == (1 if require else 0)


def collected(expression: str) -> list[str]:
    """The tests of a tier."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "--collect-only", "-q", "-m", expression]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.partition("\n\n")[0].splitlines()


@pytest.mark.deep
def test_every_test_is_of_one_tier() -> None:
    """As tox.ini says what is of a tier; also where modules that have none of it are not imported,
    which is so without parentheses only.
    """
    settings = (ROOT / "tox.ini").read_text()
    tiers = re.findall(r"tests\.tier (\S+) [^{]*?-m (?:\"(.+?)\"|(\w+)) ", settings)
    assert [name for name, *_ in tiers] == [
        *["pure", "kernel", "net", "deep", "deep-net", "alone", "vm"]
    ]
    found = []
    for name, several, one in tiers:
        expression = several or one
        tests = collected(expression)
        assert tests == collected(f"({expression})"), name
        found += tests
    assert sorted(found) == sorted(collected(""))


def test_marks_of_tiers_are_written_where_they_are_used() -> None:
    """`pytest_ignore_collect` looks for them there."""
    places = [place for place in (TESTS / "support").rglob("*.py") if place.name != "tiers.py"]
    assert places
    tier = re.compile(r"pytest\.mark\.(kernel|net|vm|alone)")
    shared = [place.name for place in places if tier.search(place.read_text())]
    assert shared == []


def test_unknown_requirement(tmp_path: Path) -> None:
    done = suite(NEEDY, tmp_path, "kernle")
    assert "TESTBED_REQUIRE: unknown kernle; allowed: kernel, net, vm, root, BTF, " in done.stderr
    assert done.returncode == pytest.ExitCode.USAGE_ERROR


@pytest.mark.net
def test_a_leak_is_nothing_that_passes_the_second_time(tmp_path: Path) -> None:
    """Whichever test has made it: those that follow have no part in it."""
    (tmp_path / "test_small.py").write_text(LEAKY + "\n\ndef test_innocent():\n    pass\n")
    options = ["-p", "conftest", "-p", "no:cacheprovider", "-c", f"{ROOT}/pyproject.toml"]
    tier = [sys.executable, "-m", "tests.tier", "--kept", str(tmp_path / "kept"), "net", "-n", "0"]
    done = subprocess.run(
        [*tier, *options, f"--rootdir={tmp_path}", str(tmp_path / "test_small.py")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    left = re.search(r"no test is run once more: the tests left behind process (\d+) ", done.stdout)
    assert left, done.stdout
    os.kill(int(left[1]), signal.SIGTERM)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "2 passed" in done.stdout


@pytest.mark.net
@pytest.mark.deep
def test_leak_is_an_error(tmp_path: Path) -> None:
    done = suite(LEAKY, tmp_path)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 passed" in done.stdout
    left = [line for line in done.stdout.splitlines() if "the tests left behind: process" in line]
    assert left
    assert left[0].endswith("(sleep 60.125)")
    os.kill(int(left[0].rpartition("process ")[2].split()[0]), 15)
