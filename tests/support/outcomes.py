"""A pytest plugin that writes down how every test of a run ended, for `tests.tier`.

::

    TESTBED_OUTCOMES=FILE python -m pytest -p tests.support.outcomes ...

With ``TESTBED_ONLY``, a file of node ids, only these tests run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

__all__ = ["FILE", "LEFT", "ONLY", "Outcomes"]

FILE = "TESTBED_OUTCOMES"
ONLY = "TESTBED_ONLY"
LEFT = "the tests left behind"
"""Begins what is said of a session that has left something on the machine."""


@dataclass
class Outcomes:
    """How a run went.

    :param collected: Ids of the tests that were to run.
    :param passed: Of those that did, without an error in set-up or teardown; `skipped` likewise.
    :param failures: By id: the first failure in one line, and all of it.
    :param final: Why a failure of this run may not be a matter of chance, or empty.
    """

    collected: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failures: dict[str, tuple[str, str]] = field(default_factory=dict)
    final: str = ""

    @classmethod
    def read(cls, path: Path) -> Outcomes:
        """Read what a run has written; a run that was cut off has written nothing."""
        if not path.exists():
            return cls(final="pytest itself died")
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(**values)

    @property
    def lost(self) -> list[str]:
        """Tests that were to run and have no outcome."""
        known = {*self.passed, *self.skipped, *self.failures}
        return [name for name in self.collected if name not in known]


class Recorder:
    """Records in the process that decides on the exit status, not in xdist's workers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found = Outcomes()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collect([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._collect(ids)

    def _collect(self, ids: list[str]) -> None:
        self.found.collected = list(dict.fromkeys([*self.found.collected, *ids]))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.found.final = "a file cannot be read"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name, found = report.nodeid, self.found
        if report.failed and name not in found.failures:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash else report.longreprtext
            sections = [f"--- {title} ---\n{content}" for title, content in report.sections]
            line = next(iter(text.strip().splitlines()), "no reason given")
            found.failures[name] = line, "\n".join([report.longreprtext, *sections])
        elif report.skipped and name not in found.skipped:
            found.skipped.append(name)
        elif report.passed and report.when == "call" and name not in found.passed:
            found.passed.append(name)

    def pytest_internalerror(self, excrepr: object) -> None:
        self.found.final = "pytest has an internal error"

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self) -> None:
        self.found.final = "a worker died"

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        if error:
            self.found.final = "a worker died"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        yield
        if session.shouldfail or session.shouldstop:
            self.found.final = self.found.final or "it was stopped early"
        if getattr(session.config, "left_behind", ""):
            self.found.final = f"{LEFT} {session.config.left_behind}"  # type: ignore[attr-defined]
        text = json.dumps(asdict(self.found))  # in ASCII, whatever a test has said
        self.path.write_text(text, encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    if FILE in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(os.environ[FILE])))


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    if ONLY in os.environ:
        only = set(json.loads(Path(os.environ[ONLY]).read_text(encoding="utf-8")))
        others = [item for item in items if item.nodeid not in only]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item.nodeid in only]
