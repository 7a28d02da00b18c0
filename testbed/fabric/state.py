"""The state file of a run: what would have to be removed if its controller died without doing so itself.

``/run/testbed/<run_id>.json`` names the controller, the processes that hold namespaces or work in them, and the
directories. Each with enough to know it again: a process id alone may since belong to another process, so the time
it started is kept as well. Interfaces need no entry: all are made inside namespaces, and go with them.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from testbed.errors import FabricError, SpecError

__all__ = ["ROOT", "ProcessEntry", "State", "StateFile", "new_run_id", "start_time", "state_files"]

ROOT = Path("/run/testbed")


def new_run_id() -> str:
    """A run id that no other run has."""
    return "t" + secrets.token_hex(3)


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot (proc_pid_stat(5), field 22); ``None`` if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command's name in parentheses, which may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True)
class ProcessEntry:
    """A process: the one with this id, if it started at this time."""

    name: str
    pid: int
    start: int

    @property
    def alive(self) -> bool:
        """Whether it still runs (a zombie does not)."""
        return start_time(self.pid) == self.start


@dataclass
class State:
    """Content of a state file.

    :param plan: The plan of the fabric (:meth:`testbed.plan.FabricPlan.to_dict`).
    :param directories: Removed with all that is in them.
    """

    run_id: str
    controller: ProcessEntry
    plan: dict[str, Any]
    processes: list[ProcessEntry] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)


class StateFile:
    """A state file, changed under a lock and replaced as a whole, so that readers never see half of it.

    :raises SpecError: ``run_id`` is not a short name.
    """

    def __init__(self, run_id: str, root: Path = ROOT) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", run_id):
            raise SpecError(f"run id: {run_id!r} is not 1 to 32 letters, digits, '-' or '_'")
        self.path = root / f"{run_id}.json"
        self.run_id = run_id

    def create(self, state: State) -> None:
        """Write the first version.

        :raises FabricError: There is a run with this id.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            if self.path.exists():
                raise FabricError(
                    f"run {self.run_id} exists ({self.path}); `testbed down {self.run_id}` ends it, "
                    "`testbed clean` removes it if its controller is dead"
                )
            self._write(state)

    def read(self) -> State:
        """Read it.

        :raises FabricError: It is gone, or is no state file.
        """
        try:
            data = json.loads(self.path.read_text())
            return State(
                run_id=data["run_id"],
                controller=ProcessEntry(**data["controller"]),
                plan=data["plan"],
                processes=[ProcessEntry(**entry) for entry in data["processes"]],
                directories=data["directories"],
            )
        except FileNotFoundError:
            raise FabricError(f"there is no run {self.run_id} ({self.path} does not exist)") from None
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise FabricError(f"{self.path} is not a state file: {error!r}") from error

    @contextlib.contextmanager
    def change(self) -> Iterator[State]:
        """Read, let the caller change it, and write it back."""
        with self._locked():
            state = self.read()
            yield state
            self._write(state)

    def add_process(self, name: str, pid: int) -> None:
        """List a process. One that is gone already needs no entry."""
        start = start_time(pid)
        if start is not None:
            with self.change() as state:
                state.processes = [entry for entry in state.processes if entry.alive]
                state.processes.append(ProcessEntry(name, pid, start))

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)

    def _write(self, state: State) -> None:
        descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.run_id}.")
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(state), file, indent=1)
        os.replace(name, self.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # The lock is the directory's: the file itself is replaced at each change.
        descriptor = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def state_files(root: Path = ROOT) -> list[StateFile]:
    """State files of all runs, by run id."""
    return [StateFile(path.stem, root) for path in sorted(root.glob("[!.]*.json"))]
