"""Probes and their findings."""

import enum
import logging
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace

from testbed.core.errors import TestbedError
from testbed.core.logs import logger_of, timed

__all__ = ["LIMIT", "Finding", "Level", "Missing", "Probe", "command"]

logger = logger_of(__name__)

LIMIT: ContextVar[float] = ContextVar("LIMIT", default=60.0)
"""Seconds that a command of a probe may take."""


class Level(enum.StrEnum):
    """The state of a capability: present, missing but optional, missing and needed, or not known,
    because trying it took too long.
    """

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"
    SLOW = "SLOW"


@dataclass(frozen=True)
class Finding:
    """The result of one probe.

    :param name: The capability.
    :param level: The state of the capability.
    :param detail: What was observed; if it is missing, the message of the kernel, compiler or
        library.
    :param remedy: The command, or the kernel's configuration, that fixes it; empty if there is
        nothing to fix.
    :param blocked: The capability could not be tried, because another is missing.
    """

    name: str
    level: Level
    detail: str
    remedy: str = ""
    blocked: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}" + (f"; fix: {self.remedy}" if self.remedy else "")


class Missing(TestbedError):
    """A capability is missing.

    :param detail: Why, as the message of what refused it.
    :param remedy: What fixes this particular case; otherwise the probe's general remedy applies.
    """

    def __init__(self, detail: str, remedy: str = "") -> None:
        super().__init__(detail)
        self.remedy = remedy


class TooSlow(TestbedError):
    """What was tried did not end in time, which does not say that it cannot be."""


@dataclass(frozen=True)
class Probe:
    """One capability, tested by using it, never by a version number.

    :param name: The capability.
    :param check: Uses the capability; returns the detail, or raises the error that prevented it.
    :param remedy: What fixes it.
    :param purpose: What does not work without it, if the testbed can do without it; empty if it
        cannot.
    :param needs: Names of the probes that have to succeed before this one can be tried.
    """

    name: str
    check: Callable[[], str]
    remedy: str
    purpose: str = ""
    needs: tuple[str, ...] = ()

    def run(self, earlier: Mapping[str, Finding]) -> Finding:
        """Try the capability.

        :param earlier: The findings of the probes that this one needs.
        """
        blocked = [name for name in self.needs if earlier[name].level is not Level.OK]
        if blocked:
            why, first = f"not tried, because it needs {', '.join(blocked)}", earlier[blocked[0]]
            if all(earlier[name].level is Level.SLOW for name in blocked):
                return Finding(self.name, Level.SLOW, why, first.remedy, blocked=True)
            return replace(self._missing(why, first.remedy), blocked=True)
        try:
            with timed(logger, logging.INFO, "%s", self.name):
                detail = self.check()
            return Finding(self.name, Level.OK, detail)
        except TooSlow as slow:
            return Finding(self.name, Level.SLOW, str(slow), "testbed doctor --timeout 600")
        except Missing as missing:
            return self._missing(str(missing), missing.remedy or self.remedy)
        except (TestbedError, OSError, ImportError, subprocess.SubprocessError) as error:
            return self._missing(summary(str(error)), self.remedy)

    def _missing(self, detail: str, remedy: str) -> Finding:
        if self.purpose:
            return Finding(self.name, Level.WARN, f"{detail} (for {self.purpose})", remedy)
        return Finding(self.name, Level.FAIL, detail, remedy)


def summary(text: str) -> str:
    """Return a long message's first and last lines as one line: what was tried, and how it
    ended.
    """
    # Open MPI frames its messages with lines of dashes.
    lines = [line.strip() for line in text.splitlines() if line.strip(" -")] or ["no reason given"]
    return lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"


def command(
    arguments: Sequence[str], stdin: str = "", environment: Mapping[str, str] | None = None
) -> str:
    """Run a command in the calling thread's namespaces and return its standard output.

    :raises Missing: There is no such command, or it failed; the text is its output.
    :raises TooSlow: It did not end within `LIMIT`.
    """
    limit = LIMIT.get()
    if shutil.which(arguments[0]) is None:
        raise Missing(f"{arguments[0]} is not installed", "make apt")
    try:
        with timed(logger, logging.DEBUG, "%s", shlex.join(arguments)):
            done = subprocess.run(
                arguments,
                input=stdin,
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
                encoding="utf-8",
                errors="replace",
            )
    except subprocess.TimeoutExpired as error:
        raise TooSlow(f"{arguments[0]} did not end within {limit:g} s") from error
    if done.returncode:
        raise Missing(summary(done.stderr or f"{arguments[0]} exited with {done.returncode}"))
    return done.stdout
