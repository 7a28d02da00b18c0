"""The state file of a run: what must be removed if its controller dies without doing so itself.

``/run/testbed/<run_id>.json`` names the controller, the processes that hold namespaces or work in
them, and the directories. Interfaces need no entry, because all are created inside namespaces and
disappear with them.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from testbed.core.errors import FabricError, SpecError
from testbed.host.processes import ProcessEntry, start_time

__all__ = ["HOLDER_NAME", "ROOT", "State", "StateFile", "new_run_id", "state_files"]

ROOT = Path("/run/testbed")

#: The name in a state file of the process that holds a node's namespaces.
HOLDER_NAME = "namespaces of {}"


def new_run_id() -> str:
    """A run id that no other run has."""
    return "t" + secrets.token_hex(4)


@dataclass
class State:
    """Content of a state file.

    :param plan: The plan of the fabric, from :meth:`testbed.plan.FabricPlan.to_dict`.
    :param directories: Directories to remove, with their contents.
    :param kept: Whether it stays up for interactive use, as `testbed up` leaves it; otherwise it
        belongs to another command.
    :param results: Where the run writes its results, which stays; None: nowhere.
    """

    run_id: str
    controller: ProcessEntry
    plan: dict[str, Any]
    processes: list[ProcessEntry] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)
    kept: bool = False
    results: str | None = None


class StateFile:
    """A state file, changed under a lock and replaced atomically, so that readers never see a
    partial one.

    :param run_id: Its run's id.
    :param root: Directory of state files.
    :raises SpecError: ``run_id`` is not a short name.
    """

    def __init__(self, run_id: str, root: Path = ROOT) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", run_id):
            raise SpecError(f"run id: {run_id!r} is not 1 to 32 letters, digits, '-' or '_'")
        self.path = root / f"{run_id}.json"
        self.run_id = run_id
        #: The error that ended the run's controller after the fabric was up, if there was one.
        self.failure = root / f"{run_id}.error"
        self._next = root / f".{run_id}.json.next"

    def create(self, state: State) -> None:
        """Write the first version.

        :raises FabricError: There is a run with this id.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            if self.path.exists():
                raise FabricError(
                    f"run id: {self.run_id!r} is taken ({self.path}); `testbed down {self.run_id}`"
                    " ends it, `testbed clean` removes it if its controller is dead"
                )
            self.failure.unlink(missing_ok=True)
            self._write(state)

    def read(self) -> State:
        """Read it.

        :raises FabricError: It does not exist, or is not a state file.
        """
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            return State(
                run_id=data["run_id"],
                controller=ProcessEntry(**data["controller"]),
                plan=data["plan"],
                processes=[ProcessEntry(**entry) for entry in data["processes"]],
                directories=data["directories"],
                kept=data.get("kept", False),
                results=data.get("results"),
            )
        except FileNotFoundError:
            raise FabricError(
                f"there is no run {self.run_id!r} ({self.path} does not exist)"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise FabricError(f"{self.path} is not a state file: {error!r}") from error

    @contextlib.contextmanager
    def change(self) -> Iterator[State]:
        """Read it, let the caller change it, and write it back."""
        with self._locked():
            state = self.read()
            yield state
            self._write(state)

    def add_process(self, name: str, pid: int) -> None:
        """List a process, and drop processes that have ended."""
        start = start_time(pid)
        if start is not None:
            with self.change() as state:
                state.processes = [entry for entry in state.processes if entry.alive]
                state.processes.append(ProcessEntry(name, pid, start))

    def remove(self) -> None:
        """Delete it, and any unfinished next version."""
        self._next.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def _write(self, state: State) -> None:
        self._next.write_text(json.dumps(asdict(state), indent=1), encoding="utf-8")
        self._next.replace(self.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # The directory is locked, because each change replaces the file.
        descriptor = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def state_files(root: Path = ROOT) -> list[StateFile]:
    """State files of all runs, by run id."""
    return [StateFile(path.stem, root) for path in sorted(root.glob("[!.]*.json"))]
