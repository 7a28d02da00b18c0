"""The runs on this machine, found by their state files: listing them, entering their hosts, ending
them.
"""

import os
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from testbed.core.errors import FabricError, SpecError, TestbedError
from testbed.core.stdio import default_signals
from testbed.fabric.state import HOLDER_NAME, ROOT, State, StateFile, state_files
from testbed.host.processes import RUN_VARIABLE, ProcessEntry
from testbed.host.rights import require_root
from testbed.plan import FabricPlan

__all__ = ["Failure", "ProgramNotFound", "Run", "failures", "find_run", "runs"]


class ProgramNotFound(TestbedError):
    """The program to run inside a host does not exist; the exit status is that of a shell."""

    exit_status = 127


@dataclass(frozen=True)
class Failure:
    """The error that a background controller recorded when its run failed."""

    path: Path

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.path.stem

    @property
    def error(self) -> str:
        """The error's text."""
        return self.path.read_text(encoding="utf-8").strip()

    @property
    def headline(self) -> str:
        """Its most informative line: the first, or the last one of a traceback."""
        lines = self.error.splitlines() or ["no reason given"]
        return lines[-1] if lines[0].startswith("Traceback") else lines[0]


@dataclass(frozen=True)
class Run:
    """A run, as described by its state file when that was read."""

    file: StateFile
    state: State

    @property
    def run_id(self) -> str:
        """Its id."""
        return self.state.run_id

    @property
    def alive(self) -> bool:
        """Whether its controller is alive. If not, ``testbed clean`` removes what it left
        behind.
        """
        return self.state.controller.alive

    @property
    def plan(self) -> FabricPlan:
        """The plan of its fabric."""
        return FabricPlan.from_dict(self.state.plan)

    @property
    def age(self) -> float:
        """Seconds since its controller started."""
        started = self.state.controller.start / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started

    @property
    def nodes(self) -> dict[str, ProcessEntry]:
        """The processes that hold the namespaces of hosts and switches, by node, as far as they
        are alive.
        """
        plan = self.plan
        names = [host.name for host in plan.hosts] + [switch.name for switch in plan.switches]
        alive = {entry.name: entry for entry in self.state.processes if entry.alive}
        holders = {name: alive.get(HOLDER_NAME.format(name)) for name in names}
        return {name: holder for name, holder in holders.items() if holder}

    def track(self, name: str, pid: int) -> None:
        """List a process in the state file, so that it is killed with the run."""
        self.file.add_process(name, pid)

    def execute(self, node: str, command: Sequence[str]) -> NoReturn:
        """Become ``command`` inside a host's or switch's namespaces; the run kills it when it ends.

        :raises SpecError: There is no such node, or no command.
        :raises FabricError: The run or the node is not up.
        :raises ProgramNotFound: There is no such program.
        """
        if not command:
            raise SpecError("command: is missing; give a program and its arguments after the host")
        plan = self.plan
        if node not in {switch.name for switch in plan.switches}:
            plan.host(node)
        if not self.alive:
            raise self._dead()
        # Nodes share the machine's files, so a program that is not found here is not found there.
        if shutil.which(command[0]) is None:
            raise ProgramNotFound(f"{command[0]}: is not a program on PATH or an executable file")
        if holder := self.nodes.get(node):
            self.track(f"exec in {node}", os.getpid())
            os.environ[RUN_VARIABLE] = self.run_id
            default_signals()
            os.execvp("mnexec", ["mnexec", "-a", str(holder.pid), *command])
        raise FabricError(f"{node} of run {self.run_id!r} is not up")

    def end(self, timeout: float = 30.0) -> None:
        """Ask the controller to end the run (SIGTERM), and wait until it has ended.

        :param timeout: Seconds.
        :raises FabricError: The controller is dead, or does not end.
        """
        controller = self.state.controller
        try:
            pidfd = os.pidfd_open(controller.pid)
        except ProcessLookupError:
            pidfd = -1
        try:
            if pidfd < 0 or not controller.alive:
                raise self._dead()
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            deadline = time.monotonic() + timeout
            while self.file.path.exists():
                if time.monotonic() > deadline:
                    raise FabricError(f"run {self.run_id!r} did not end within {timeout:g} s")
                time.sleep(0.005)
        finally:
            if pidfd >= 0:
                os.close(pidfd)

    def _dead(self) -> FabricError:
        return FabricError(
            f"the controller of run {self.run_id!r} is dead; `testbed clean` removes the run"
        )


def failures(root: Path = ROOT) -> list[Failure]:
    """All runs that failed since the last ``testbed clean``, by run id."""
    return [Failure(path) for path in sorted(root.glob("[!.]*.error"))]


def runs(root: Path = ROOT) -> list[Run]:
    """All runs that have a state file, by run id.

    :raises FabricError: Not root: only root can read state files.
    """
    require_root()
    found = []
    for file in state_files(root):
        try:
            found.append(Run(file, file.read()))
        except FabricError:
            if file.path.exists():  # otherwise the run has ended meanwhile
                raise
    return found


def find_run(run_id: str | None = None, root: Path = ROOT, *, kept: bool = True) -> Run:
    """One run.

    :param run_id: Its id, which may be left out if only one is up.
    :param kept: Of runs that are not named, only a kept one counts (:attr:`State.kept`); otherwise
        others count, too, if there is no kept one.
    :raises SpecError: There is no run with this id.
    :raises FabricError: There is none, or there are several, or not root.
    """
    require_root()
    if run_id is not None:
        file = StateFile(run_id, root)
        if not file.path.exists():
            known = ", ".join(known.run_id for known in state_files(root))
            raise SpecError(
                f"there is no run {run_id!r}:"
                f" {f'must be one of {known}' if known else 'none is up'}"
            )
        return Run(file, file.read())
    every = runs(root)
    found = [run for run in every if run.alive and run.state.kept]
    if not found and not kept:
        found = [run for run in every if run.alive]
    if not found:
        dead = ", ".join(repr(run.run_id) for run in every if not run.alive)
        hint = (
            f"; `testbed clean` removes what {dead} left, whose controller is dead" if dead else ""
        )
        busy = ", ".join(run.run_id for run in every if run.alive)
        hint += f"; other commands' runs can be named: {busy}" if busy else ""
        raise FabricError(f"no run is up; `testbed up` starts one{hint}")
    if len(found) > 1:
        raise FabricError(
            "several runs are up: name one, as the argument RUN or with --run:"
            f" {', '.join(run.run_id for run in found)}"
        )
    return found[0]
