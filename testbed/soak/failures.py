"""The findings of a soak, and what it keeps of a failure."""

import json
import re
import shutil
import traceback
from pathlib import Path

from testbed.core.errors import TestbedError
from testbed.core.files import write_whole
from testbed.soak.scenario import Scenario

__all__ = ["Finding", "accused", "keep"]


class Finding(TestbedError):
    """A check of a scenario has failed; the text says which."""


_RANKS = r"((?:rank \d+ \(\w+\)(?:, )?)+)"
_GONE = re.compile(
    rf"{_RANKS} (?:was )?silent|{_RANKS} has closed|(?:in vain for|nothing comes from|no answer"
    rf" from) {_RANKS}",
)


def accused(error: str) -> set[str]:
    """The names of the hosts that an error calls silent, without those that are up but in another
    collective or behind.
    """
    return {
        name for found in _GONE.findall(error) for name in re.findall(r"\((\w+)\)", "".join(found))
    }


def keep(scenario: Scenario, error: Exception, folder: Path, run: Path) -> None:
    """Keep the remains of a failed scenario: its description, the error, and the logs of its
    fabric.

    :param folder: The target; remains of an earlier failure there are replaced.
    :param run: The fabric's directory.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_whole(folder / "scenario.json", json.dumps(scenario.to_dict(), indent=2) + "\n")
    write_whole(folder / "error.txt", "".join(traceback.format_exception(error)))
    for log in run.glob("*.log"):
        shutil.copy(log, folder)
