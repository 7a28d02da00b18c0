"""The log: what it says, and that it does not depend on what else is imported."""

import logging
import re
from pathlib import Path

import pytest

from testbed.core.logs import logger_of, timed

ROOT = Path(__file__).parents[1]


def test_steps_are_logged_with_their_times(caplog: pytest.LogCaptureFixture) -> None:
    logger = logger_of("testbed.tests.steps")
    with caplog.at_level(logging.INFO, "testbed"):
        with timed(logger, logging.INFO, "built %d hosts", 4):
            pass
        with pytest.raises(KeyError), timed(logger, logging.INFO, "built"):
            raise KeyError
        with timed(logger, logging.DEBUG, "a detail"):
            pass
    said = [record.getMessage() for record in caplog.records]
    assert [re.sub(r"[0-9.]+ ms", "T ms", line) for line in said] == [
        "built 4 hosts: T ms",
        "built: failed after T ms",
    ]


def test_loggers_are_pythons_own_whatever_is_imported_before() -> None:
    """Mininet makes `logging.getLogger` return loggers that have a level and a handler."""
    pytest.importorskip("mininet.log")
    logger = logger_of("testbed.tests.after_mininet")
    assert type(logger) is logging.Logger
    assert (logger.level, logger.handlers) == (logging.NOTSET, [])


def test_no_module_makes_a_logger_by_itself() -> None:
    users = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "testbed").rglob("*.py")
        if "getLogger(" in path.read_text()
    ]
    assert users == ["testbed/core/logs.py"]
