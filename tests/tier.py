"""Run a tier of tests. What fails is run once more, alone, after the others.

::

    python -m tests.tier net -n 2 -m "net and not deep"   # the tier's name, then pytest's arguments
    python -m tests.tier                                  # which tests of all tiers were flaky

Tests of tiers that use the kernel share two cores with each other and with whatever else a machine
does. A test that passes the second time does not fail the run, but it is called flaky, and the text
of its first failure is kept in ``build/flaky``: something in it depends on the scheduler. If more
than `MOST` tests of a tier fail, if a worker dies or a file cannot be read, nothing is run again.
More than `MOST` flaky tests of all tiers together fail the run, too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["MOST"]

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "flaky"
MOST = 3
"""Number of flaky tests in a run that passes."""


class Recorder:
    """A pytest plugin that collects first failures.

    :ivar failures: By node id: the failure in one line, and all of it.
    :ivar final: Why no test is run once more, or empty.
    """

    def __init__(self) -> None:
        self.failures: dict[str, tuple[str, str]] = {}
        self.final = ""

    def pytest_configure(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.final = "a file cannot be read"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.failures:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash else report.longreprtext
            sections = [f"--- {name} ---\n{content}" for name, content in report.sections]
            line = next(iter(text.strip().splitlines()), "no reason given")
            self.failures[report.nodeid] = line, "\n".join([report.longreprtext, *sections])

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self) -> None:
        self.final = "a worker died"

    def pytest_sessionfinish(self) -> None:
        if len(self.failures) > MOST:
            self.final = f"{len(self.failures)} tests failed, and at most {MOST} may be flaky"


def run(tier: str, arguments: list[str], kept: Path) -> int:
    """Run a tier, and what has failed once more.

    :param kept: The folder for the texts of first failures.
    :returns: The exit status: 0, or pytest's.
    """
    for path in kept.glob(f"{tier}-*.txt"):
        path.unlink()
    first = Recorder()
    status = int(pytest.main(arguments, plugins=[first]))
    if status != pytest.ExitCode.TESTS_FAILED:
        return status
    if first.final:
        print(f"{tier}: no test is run once more: {first.final}", flush=True)
        return status
    print(f"{tier}: once more, alone: {' '.join(first.failures)}", flush=True)
    config = first.config
    options = [argument for argument in arguments if argument not in config.args]
    command = [sys.executable, "-m", "pytest", *options, "-n", "0", *first.failures]
    status = subprocess.run(command, cwd=config.rootpath, check=False).returncode
    if status:
        return status
    kept.mkdir(parents=True, exist_ok=True)
    for number, (name, (line, text)) in enumerate(first.failures.items(), 1):
        said = f"flaky: {name}: {line}"
        (kept / f"{tier}-{number}.txt").write_text(f"{said}\n\n{text}\n")
        print(said, flush=True)
    return 0


def report(kept: Path) -> int:
    """Name the flaky tests of all tiers; return 1 if there are more than `MOST`, else 0."""
    files = sorted(kept.glob("*.txt"))
    for path in files:
        print(path.read_text().partition("\n")[0])
    if files:
        print(f"flaky: {len(files)} of at most {MOST}; first failures are in {kept}/")
    return int(len(files) > MOST)


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("tier", nargs="?", help="name of the tier; without it: report")
    parser.add_argument("--kept", type=Path, default=KEPT, help="folder for first failures")
    options, arguments = parser.parse_known_args()
    if options.tier is None:
        return report(options.kept)
    return run(options.tier, arguments, options.kept)


if __name__ == "__main__":
    sys.exit(main())
