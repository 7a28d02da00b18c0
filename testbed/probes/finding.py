"""What a probe is, and what it finds."""

import enum
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from testbed.core.errors import TestbedError

__all__ = ["Finding", "Level", "Missing", "Probe", "command"]


class Level(enum.StrEnum):
    """The state of a capability: present, missing but optional, or missing and needed."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    """The result of one probe.

    :param name: The capability.
    :param level: How it stands.
    :param detail: What was seen; where it is missing the kernel's, compiler's or library's own
        words.
    :param remedy: The command, or the kernel's configuration, that fixes it; empty where nothing is
        to fix.
    """

    name: str
    level: Level
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}" + (f"; fix: {self.remedy}" if self.remedy else "")


class Missing(TestbedError):
    """A capability is missing.

    :param detail: Why, in the words of whoever refused it.
    :param remedy: What fixes this very case; else the probe's general remedy holds.
    """

    def __init__(self, detail: str, remedy: str = "") -> None:
        super().__init__(detail)
        self.remedy = remedy


@dataclass(frozen=True)
class Probe:
    """One capability, found out by using it, never by a version number.

    :param name: The capability.
    :param check: Uses the capability; returns what to say about it, or raises what hindered it.
    :param remedy: What fixes it.
    :param purpose: What is lost without it, where the main job can do without; empty where it
        cannot.
    :param needs: Names of the probes without which this one cannot even be tried.
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
            return self._missing(
                f"not tried, because it needs {', '.join(blocked)}", f"fix {blocked[0]} first"
            )
        try:
            return Finding(self.name, Level.OK, self.check())
        except Missing as missing:
            return self._missing(str(missing), missing.remedy or self.remedy)
        except (TestbedError, OSError, ImportError, subprocess.SubprocessError) as error:
            return self._missing(summary(str(error)), self.remedy)

    def _missing(self, detail: str, remedy: str) -> Finding:
        if self.purpose:
            return Finding(self.name, Level.WARN, f"{detail} (for {self.purpose})", remedy)
        return Finding(self.name, Level.FAIL, detail, remedy)


def summary(text: str) -> str:
    """Return a long message's first and last lines as one line: what was tried, and what it ended
    with.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    return lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"


def command(
    arguments: Sequence[str], stdin: str = "", environment: Mapping[str, str] | None = None
) -> str:
    """Run a command in the calling thread's namespaces and return its standard output.

    :raises Missing: There is no such command, or it failed; the text is its own.
    """
    if shutil.which(arguments[0]) is None:
        raise Missing(f"{arguments[0]} is not installed", "make apt")
    done = subprocess.run(
        arguments,
        input=stdin,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise Missing(summary(done.stderr or f"{arguments[0]} exited with {done.returncode}"))
    return done.stdout
