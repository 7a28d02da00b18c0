"""How the tiers run: a test that fails is run once more, alone, and is called flaky if it passes
then. On small suites, in a process of their own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiers import broad

ROOT = Path(__file__).parents[1]
#: Fails as often as its name says; the file counts how often it has run.
SUITE = """
import os, pathlib, pytest

@pytest.mark.parametrize("failures", {failures}, ids=str)
@pytest.mark.parametrize("number", range({tests}))
def test_that_fails(number, failures):
    runs = pathlib.Path(__file__).with_name(f"runs-{{number}}-{{failures}}")
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    assert len(runs.read_text()) > failures, f"failure {{len(runs.read_text())}}"
"""
DEADLY = """
import os, pathlib

def test_worker_dies_once():
    dead = pathlib.Path(__file__).with_name("dead")
    if not dead.exists():
        dead.touch()
        os._exit(3)

def test_fails_once():
    failed = pathlib.Path(__file__).with_name("failed")
    if not failed.exists():
        failed.touch()
        assert False
"""


def tier(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tests.tier", "--kept", str(folder / "kept"), *arguments],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def run_suite(
    folder: Path, source: str, workers: int = 0, *more: str, name: str = "net"
) -> "subprocess.CompletedProcess[str]":
    """Run a suite as a tier."""
    suite = folder / "test_suite.py"
    suite.write_text(source)
    options = ["-n", str(workers), "-q", "-p", "no:cacheprovider", f"--rootdir={folder}"]
    return tier(folder, name, *options, *more, str(suite))


def test_a_test_that_fails_once_is_flaky_and_passes(tmp_path: Path) -> None:
    done = run_suite(tmp_path, SUITE.format(failures=[0, 1], tests=2))
    assert done.returncode == 0, done.stdout
    assert "2 failed, 2 passed" in done.stdout
    *_, passed, first, second = done.stdout.splitlines()
    assert "2 passed" in passed
    told = tier(tmp_path)
    assert {first, second} == set(told.stdout.splitlines()[:-1])
    assert told.returncode == 0
    *lines, last = told.stdout.splitlines()
    assert sorted(lines) == [
        f"flaky: test_suite.py::test_that_fails[{number}-1]: AssertionError: failure 1"
        for number in range(2)
    ]
    assert last == f"flaky: 2 of at most 3; first failures are in {tmp_path}/kept/"
    first = (tmp_path / "kept" / "net-1.txt").read_text()
    assert "runs.write_text" in first  # all of it, not only the message


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    done = run_suite(tmp_path, SUITE.format(failures=[1, 2], tests=1))
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 1 passed" in done.stdout
    assert tier(tmp_path).stdout == ""


@pytest.mark.deep
def test_four_flaky_tests_of_one_tier_fail_the_run_at_once(tmp_path: Path) -> None:
    done = run_suite(tmp_path, SUITE.format(failures=[1], tests=4), workers=2)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "no test is run once more: 4 tests failed, and at most 3 may be flaky" in done.stdout
    assert {path.read_text() for path in tmp_path.glob("runs-*")} == {"x"}


@pytest.mark.deep
def test_four_flaky_tests_of_several_tiers_fail_the_run_at_its_end(tmp_path: Path) -> None:
    for name in ("kernel", "net"):
        (tmp_path / name).mkdir()
        suite = tmp_path / name / "test_suite.py"
        suite.write_text(SUITE.format(failures=[1], tests=2))
        assert tier(tmp_path, name, "-q", f"--rootdir={tmp_path}", str(suite)).returncode == 0
    told = tier(tmp_path)
    assert told.returncode == 1
    assert [line.split("::")[0] for line in told.stdout.splitlines()[:-1]] == [
        *["flaky: kernel/test_suite.py"] * 2,
        *["flaky: net/test_suite.py"] * 2,
    ]
    again = run_suite(tmp_path, SUITE.format(failures=[0], tests=1))  # it forgets the tier's own
    assert again.returncode == 0
    assert tier(tmp_path).stdout.count("\n") == 3


def test_a_worker_that_dies_fails_the_run(tmp_path: Path) -> None:
    done = run_suite(tmp_path, DEADLY, workers=2)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "no test is run once more: a worker died" in done.stdout


@pytest.mark.deep
def test_a_file_that_cannot_be_read_fails_the_run(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "import nothing_of_this_name", workers=2)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "no test is run once more: a file cannot be read" in done.stdout


@pytest.mark.deep
def test_a_tier_without_tests_fails_the_run(tmp_path: Path) -> None:
    assert run_suite(tmp_path, "").returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_pure_tests_are_run_once(tmp_path: Path) -> None:
    done = run_suite(tmp_path, SUITE.format(failures=[1], tests=1), name="pure")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert (tmp_path / "runs-0-1").read_text() == "x"


FIRST = """
import os, pathlib, pytest
first = pathlib.Path(__file__).with_name("first")

def is_first():
    try:
        first.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
"""
# What would pass if the exit status of pytest alone decided: suite, workers, further arguments, and
# what is said.
LOST = {
    "the first run ends early": (
        "def test_a(): os._exit(0)\ndef test_b(): assert False",
        0,
        [],
        "pytest itself died",
    ),
    "the second run ends early": (
        "def test_a():\n    if is_first(): assert False\n    os._exit(0)",
        0,
        [],
        "once more, alone: test_suite.py::test_a",
    ),
    "the second run skips": (
        "def test_a():\n    if is_first(): assert False\n    pytest.skip('lost')",
        0,
        [],
        "once more, alone: test_suite.py::test_a",
    ),
    "the first run stops at a failure": (
        "def test_a(): assert not is_first()\ndef test_b(): assert False",
        0,
        ["-x"],
        "no test is run once more: it was stopped early",
    ),
    "a worker cannot say how a test failed": (
        "def test_a(): assert not is_first(), b'\\xff'.decode(errors='surrogateescape')\n"
        "def test_b(): print('\\udcff')",
        2,
        [],
        "",
    ),
}


@pytest.mark.parametrize(("source", "workers", "more", "said"), broad(LOST.values(), 3), ids=LOST)
def test_a_test_without_an_outcome_fails_the_run(
    tmp_path: Path, source: str, workers: int, more: list[str], said: str
) -> None:
    done = run_suite(tmp_path, FIRST + source, workers, *more)
    assert done.returncode != 0
    assert said in done.stdout
    assert "flaky:" not in done.stdout


ENDS = {
    "dies": "def pytest_sessionfinish(session):\n    if WORKER: os._exit(3)",
    "crashes": "def pytest_unconfigure(config):\n    if WORKER: os.kill(os.getpid(), 11)",
}


@pytest.mark.deep
@pytest.mark.parametrize("source", ENDS.values(), ids=ENDS)
def test_a_worker_that_dies_after_its_tests_fails_the_run(tmp_path: Path, source: str) -> None:
    worker = "import os\nWORKER = 'PYTEST_XDIST_WORKER' in os.environ\n"
    (tmp_path / "conftest.py").write_text(worker + source)
    done = run_suite(tmp_path, "def test_a(): pass\ndef test_b(): pass", workers=2)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert re.search(r"no test is run once more: a (worker died|process crashed)", done.stdout)
