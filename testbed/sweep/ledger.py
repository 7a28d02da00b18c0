"""The folder of a sweep: which trials are done, whatever ended the sweep before.

A trial is done when its folder has ``trial.json``, which is written last, once the disk has the
rest. A folder without a whole one is what a killed sweep or a power failure has left; it is
removed, and the trial is run again. It also says which sweep the trial is of, so ``sweep.json`` may
be torn.
"""

import fcntl
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from testbed.core.closing import Stacked
from testbed.core.errors import SpecError, StorageError
from testbed.core.files import read_object, sync_tree, write_whole
from testbed.results import digest
from testbed.sweep.grid import Trial

__all__ = ["Done", "Ledger", "ends"]

SCHEMA: Final = "collective-testbed/sweep/1"
LARGEST = 16 << 20  # bytes of a file
OWN: Final = {"sweep.json", "trials", "failed.json", "results.parquet"}
_TRIAL: Final = re.compile(r"[0-9]+-[0-9]+")


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
        with self._storing():
            self.out.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SpecError(
                    f"--out {self.out}: another sweep is at work there: choose another folder"
                ) from None
            self.done = self.read(self.out, self._facts)
            self._write("sweep.json", {"schema": SCHEMA, **self._facts})
            (self.out / "trials").mkdir(exist_ok=True)

    @contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
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
            found = read_object(out / "sweep.json", LARGEST)
        except SpecError:
            names = {each.name.removeprefix(".").removesuffix(".partial") for each in out.iterdir()}
            if not names <= OWN:
                found = {}
            else:
                for name, (_, of) in _records(out):
                    if of != identity(facts):
                        raise SpecError(
                            f"--out {out}: sweep.json is torn, and trial {name} does not say that"
                            " it is of this sweep: choose another folder"
                        ) from None
                return ends(out)
        if found.pop("schema", None) != SCHEMA:
            raise SpecError(f"--out {out}: holds files that are no sweep's: choose another folder")
        if identity(found) != identity(facts):
            raise SpecError(
                f"--out {out}: holds another sweep, {found.get('name')} of"
                f" {found.get('file')}: choose another folder"
            )
        return ends(out)

    def folder(self, trial: Trial) -> Path:
        """Return a trial's folder."""
        return self.out / "trials" / trial.name

    def begin(self, trial: Trial) -> Path:
        """Return a new, empty folder for a trial; what an earlier attempt has left is removed.

        :raises StorageError: The disk refuses it.
        """
        folder = self.folder(trial)
        with self._storing():
            # trial.json first: a folder that is half removed must not count as done.
            (folder / "trial.json").unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        return folder

    def end(self, trial: Trial, done: Done) -> None:
        """Record that a trial is done, once the disk has its files.

        :raises StorageError: The disk refuses it.
        """
        with self._storing():
            sync_tree(self.folder(trial))
            record = {**asdict(done), "sweep": identity(self._facts)}
            self._write(f"trials/{trial.name}/trial.json", record)
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
        write_whole(self.out / name, json.dumps(value, indent=2) + "\n")


def ends(out: Path) -> dict[str, Done]:
    """Return how the trials of a sweep have ended, by name; torn records are left out."""
    return {name: done for name, (done, _) in _records(out)}


def _records(out: Path) -> Iterator[tuple[str, tuple[Done, str | None]]]:
    """Yield the name of each trial with its end, and the identity of the sweep that it is of."""
    for place in sorted((out / "trials").glob("*/trial.json")):
        try:
            found = read_object(place, LARGEST)
            done = Done(float(found["seconds"]), found["error"])
        except (SpecError, KeyError, TypeError, ValueError, OverflowError):
            continue
        whole = math.isfinite(done.seconds) and isinstance(done.error, str | None)
        if whole and _TRIAL.fullmatch(place.parent.name):
            yield place.parent.name, (done, found.get("sweep"))


def identity(facts: dict[str, Any]) -> str:
    """Return what two sweeps must have in common to share a folder: more trials may be added."""
    return digest(
        {key: value for key, value in facts.items() if key not in ("trials", "description", "file")}
    )
