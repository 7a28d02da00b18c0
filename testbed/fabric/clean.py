"""Remove what runs with killed controllers have left behind, and nothing else."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from testbed.core.errors import FabricError
from testbed.fabric.runs import failures
from testbed.fabric.state import ROOT, state_files
from testbed.host.cgroup import remove_groups
from testbed.host.processes import kill, processes_of

__all__ = ["Leftovers", "clean"]


@dataclass
class Leftovers:
    """The remains of one run that were removed.

    :param processes: ``<name> (<pid>)`` of those that were killed. Their namespaces and interfaces
        disappear with them.
    :param files: Control groups, directories and the state file.
    :param results: The folder that it was writing its results into, which stays.
    :param error: Why nothing was removed, if nothing was.
    """

    run_id: str
    processes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    results: str | None = None
    error: str | None = None


def clean(root: Path = ROOT, run_id: str | None = None) -> list[Leftovers]:
    """For each state file of a dead controller, kill the processes that it lists, and remove its
    directories and the file itself. Also remove the recorded errors of failed controllers.

    A process is only killed if its start time is the listed one, or if it has the run's id in its
    environment; a directory is only removed if it belongs to the run and is inside ``root``.

    Results stay; they are named.

    :param root: Directory of state files.
    :param run_id: The only run whose remains are removed; by default those of all runs are.
    """
    removed = []
    for file in state_files(root):
        if run_id not in (None, file.run_id):
            continue
        left = Leftovers(file.run_id)
        try:
            state = file.read()
        except FabricError as error:
            if file.path.exists():  # otherwise its run has ended meanwhile
                left.error = str(error)
                removed.append(left)
            continue
        if state.controller.alive:
            continue
        killed = {entry.pid: entry for entry in kill(state.processes)}
        # Children are found by the run's id, and once more for those started meanwhile.
        for _ in range(2):
            killed |= {
                entry.pid: entry
                for entry in kill(processes_of(file.run_id))
                if entry.pid not in killed
            }
        left.processes = [f"{entry.name} ({entry.pid})" for entry in killed.values()]
        left.files += map(str, remove_groups(file.run_id))
        for directory in map(Path, state.directories):
            if directory == root / file.run_id and directory.is_dir():
                shutil.rmtree(directory)
                left.files.append(str(directory))
        if state.results and Path(state.results).is_dir():
            left.results = state.results
        file.remove()
        left.files.append(str(file.path))
        removed.append(left)
    for failed in failures(root):
        if run_id not in (None, failed.run_id):
            continue
        failed.path.unlink(missing_ok=True)
        removed.append(Leftovers(failed.run_id, files=[str(failed.path)]))
    return removed
