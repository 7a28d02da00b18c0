"""The folder of a sweep: which trials are done, whatever ended the sweep before.

A trial is done when its folder has ``trial.json``, which is written last, by a rename. A folder
without it is what a killed sweep has left; it is removed, and the trial is run again.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from testbed.core.closing import Stacked
from testbed.core.errors import SpecError, StorageError
from testbed.core.files import read_regular
from testbed.results import digest
from testbed.sweep.grid import Trial

__all__ = ["Done", "Ledger"]

SCHEMA: Final = "collective-testbed/sweep/1"
LARGEST = 16 << 20  # bytes of a file


@dataclass(frozen=True)
class Done:
    """The end of a trial.

    :param error: Of one that failed.
    """

    seconds: float
    error: str | None = None


class Ledger(Stacked):
    """A sweep's folder, which one sweep at a time may fill. A context manager.

    :param out: Made if it does not exist.
    :param facts: Say which sweep this is; that of an earlier one in the folder must be equal.
    :ivar done: The ends of trials by their names.
    :raises SpecError: On entry: the folder holds another sweep or other files, or one is at work
        there.
    """

    def __init__(self, out: Path, facts: dict[str, Any]) -> None:
        self.out, self._facts = out, facts
        self.done: dict[str, Done] = {}

    def _enter(self, stack: ExitStack) -> None:
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.done = self.read(self.out, self._facts)
            self._write("sweep.json", {"schema": SCHEMA, **self._facts})
            (self.out / "trials").mkdir(exist_ok=True)
        except BlockingIOError:
            raise SpecError(
                f"--out {self.out}: another sweep is at work there: choose another folder"
            ) from None
        except OSError as error:
            raise StorageError(f"--out {self.out}: cannot be written: {error.strerror}") from error

    @staticmethod
    def read(out: Path, facts: dict[str, Any]) -> dict[str, Done]:
        """Return the ends of the trials that are done in a folder; nothing is changed.

        :raises SpecError: The folder holds another sweep, or other files.
        """
        if not out.exists() or not any(out.iterdir()):
            return {}
        try:
            found = json.loads(read_regular(out / "sweep.json", LARGEST))
            schema = found.pop("schema")
        except (SpecError, ValueError, KeyError, AttributeError):
            schema = None
        if schema != SCHEMA:
            raise SpecError(f"--out {out}: holds files that are no sweep's: choose another folder")
        if identity(found) != identity(facts):
            raise SpecError(
                f"--out {out}: holds another sweep, {found.get('name')} of"
                f" {found.get('file')}: choose another folder"
            )
        ends = {}
        for place in sorted((out / "trials").glob("*/trial.json")):
            ends[place.parent.name] = Done(**json.loads(place.read_text(encoding="utf-8")))
        return ends

    def folder(self, trial: Trial) -> Path:
        """Return a trial's folder."""
        return self.out / "trials" / trial.name

    def begin(self, trial: Trial) -> Path:
        """Return a new, empty folder for a trial; what an earlier attempt has left is removed."""
        folder = self.folder(trial)
        # trial.json first: a folder that is half removed must not count as done.
        (folder / "trial.json").unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def end(self, trial: Trial, done: Done) -> None:
        """Record that a trial is done."""
        self._write(f"trials/{trial.name}/trial.json", asdict(done))
        self.done[trial.name] = done

    def pending(self, trials: Sequence[Trial], retry: bool = False) -> list[Trial]:
        """Return the trials that are to be run.

        :param retry: Also those that have failed.
        """
        return [
            trial
            for trial in trials
            if trial.name not in self.done or (retry and self.done[trial.name].error is not None)
        ]

    def _write(self, name: str, value: Any) -> None:
        place = self.out / name
        partial = place.with_name(f".{place.name}.partial")
        partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, place)


def identity(facts: dict[str, Any]) -> str:
    """Return what two sweeps must have in common to share a folder: more trials may be added."""
    return digest(
        {key: value for key, value in facts.items() if key not in ("trials", "description", "file")}
    )
