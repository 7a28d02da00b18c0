"""Run a tier of tests. What fails is run once more, alone, after the others.

::

    python -m tests.tier net -n 2 -m "net and not deep"   # the tier's name, then pytest's arguments
    python -m tests.tier                                  # which tests of all tiers were flaky

Tests of tiers that use the kernel share two cores with each other and with whatever else a machine
does. A test that passes the second time does not fail the run, but it is called flaky, and the text
of its first failure is kept in ``build/flaky``: something in it depends on the scheduler. If more
than `MOST` tests of a tier fail, if a worker dies, a file cannot be read, or something is left on
the machine, nothing is run again. More than `MOST` flaky tests of all tiers together fail the run,
too. A run passes only if every test that was collected has passed or was skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.outcomes import FILE, ONLY, Outcomes

__all__ = ["MOST"]

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "flaky"
MOST = 3
"""Number of flaky tests in a run that passes."""
ONCE = ("pure", "deep", "vm")
"""Tiers whose tests have no excuse, or run nothing beside them."""
CRASH = b"Fatal Python error"


def run(tier: str, arguments: list[str], kept: Path) -> int:
    """Run a tier, and what has failed once more.

    :param kept: The folder for the texts of first failures.
    :returns: The exit status: 0, or pytest's.
    """
    for path in kept.glob(f"{tier}-*.txt"):
        path.unlink()
    with tempfile.TemporaryDirectory(prefix="testbed-tier-") as folder:
        status, first = execute(arguments, Path(folder))
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return status
        final = first.final
        if not final and first.lost:
            final = f"tests have no outcome: {' '.join(first.lost)}"
        if not final and len(first.failures) > MOST:
            final = f"{len(first.failures)} tests failed, and at most {MOST} may be flaky"
        if final or bool(status) != bool(first.failures):
            print(f"{tier}: no test is run once more: {final or 'no test has failed'}", flush=True)
            return status or int(pytest.ExitCode.TESTS_FAILED)
        if not status or tier in ONCE:
            return status
        print(f"{tier}: once more, alone: {' '.join(first.failures)}", flush=True)
        status, again = execute([*arguments, "-n", "0"], Path(folder), list(first.failures))
        if status or again.final or set(again.passed) - again.failures.keys() != {*first.failures}:
            return status or int(pytest.ExitCode.TESTS_FAILED)
    kept.mkdir(parents=True, exist_ok=True)
    for number, (name, (line, text)) in enumerate(first.failures.items(), 1):
        said = f"flaky: {name}: {line}".encode("ascii", "backslashreplace").decode()
        (kept / f"{tier}-{number}.txt").write_text(
            f"{said}\n\n{text}\n", encoding="utf-8", errors="backslashreplace"
        )
        print(said, flush=True)
    return 0


def execute(
    arguments: Sequence[str], folder: Path, only: Sequence[str] = ()
) -> tuple[int, Outcomes]:
    """Run pytest, in a process of its own; return its exit status and how its tests ended.

    :param only: Ids of the tests to run; without them all are.
    """
    place, names = folder / "outcomes.json", folder / "only.json"
    place.unlink(missing_ok=True)
    environment = {**os.environ, FILE: str(place)}
    if only:
        names.write_text(json.dumps(list(only)), encoding="utf-8")
        environment[ONLY] = str(names)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.outcomes", *arguments]
    said = folder / "stderr.txt"
    with said.open("wb") as errors:
        process = subprocess.Popen(command, env=environment, stderr=errors)
        try:
            status = process.wait()
        except KeyboardInterrupt:
            status = process.wait() or int(pytest.ExitCode.INTERRUPTED)
    text = said.read_bytes()
    sys.stderr.buffer.write(text)
    sys.stderr.flush()
    found = Outcomes.read(place)
    if CRASH in text:
        found.final = "a process crashed"
    return status, found


def report(kept: Path) -> int:
    """Name the flaky tests of all tiers; return 1 if there are more than `MOST`, else 0."""
    files = sorted(kept.glob("*.txt"))
    for path in files:
        print(path.read_text(encoding="utf-8").partition("\n")[0])
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
