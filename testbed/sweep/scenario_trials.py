"""A sweep over the keys of a scenario."""

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from testbed.core.errors import SpecError
from testbed.results import RunFolder, load_run
from testbed.run import check, run_into
from testbed.scenario.foreign import without_none
from testbed.scenario.load import parse_scenario, read_table
from testbed.sweep.grid import Cell, Trial
from testbed.sweep.player import Work
from testbed.sweep.sweep_file import Sweep
from testbed.workloads.scenario import Scenario

__all__ = ["ScenarioTrials"]

START, EPOCH = 4.0, 1.0  # seconds: guesses, as long as no trial has been timed


class ScenarioTrials:
    """Runs a scenario with each cell's values; trial t with its seed + t. See
    `testbed.sweep.player.Player`.

    :param commands: The command line, for manifests.
    """

    def __init__(self, sweep: Sweep, command: list[str]) -> None:
        assert sweep.table.scenario is not None
        self._sweep, self._command = sweep, command
        self._path = sweep.path.parent / sweep.table.scenario
        self._table = read_table(self._path)

    def scenario(self, cell: Cell, number: int = 0) -> Scenario:
        """Return a trial's scenario.

        :raises SpecError: A key or value is wrong.
        """
        table = {
            key: dict(value) if isinstance(value, dict) else value
            for key, value in self._table.items()
        }
        for path, value in self._sweep.settings(cell).items():
            name, dot, key = path.partition(".")
            if not dot and name != "faults":
                raise SpecError(
                    f"{self._sweep.path}: {path}: must be table.key, such as fabric.hosts, or"
                    " faults"
                )
            if dot:
                table.setdefault(name, {})[key] = value
            else:
                table[name] = value
        made = parse_scenario(table, f"{self._sweep.path}: {cell}")
        seed = (made.scenario.seed + number) % (1 << 32)
        named = made.scenario.model_copy(update={"seed": seed})
        folder = self._path.resolve().parent
        return made.model_copy(update={"scenario": named}).located(folder).resolve(folder)

    def check(self, cell: Cell) -> None:
        """See `Player`."""
        scenario = self.scenario(cell)
        try:
            check(scenario)
        except SpecError as error:
            raise SpecError(f"{self._sweep.path}: {cell}: {error}") from None

    def simulated(self, cell: Cell) -> bool:
        """See `Player`."""
        return self.scenario(cell).simulated

    def content(self) -> Any:
        """See `Player`."""
        return self._table

    def guess(self, cell: Cell) -> float:
        """See `Player`."""
        made = self.scenario(cell)
        return START + EPOCH * len(made.backends) * made.epochs * made.scenario.trials

    def work(self, trial: Trial) -> Work:
        """See `Player`."""
        scenario = self.scenario(trial.cell, trial.number)
        return partial(run_table, without_none(scenario.model_dump(mode="json")), self._command)

    def rows(self, trial: Trial, folder: Path) -> pd.DataFrame:
        """See `Player`."""
        run = load_run(folder)
        try:
            inner = int(run.manifest["scenario"]["scenario"]["trials"])
        except (KeyError, TypeError, ValueError) as error:
            raise SpecError(f"{folder}: its manifest is not that of a run: {error!r}") from error
        return run.frame.assign(trial=trial.number * inner + run.frame["trial"])


def run_table(table: dict[str, Any], command: list[str], folder: Path) -> None:
    """Run a scenario, given as its tables, in an empty folder."""
    with RunFolder(folder) as run:
        run_into(run, parse_scenario(table), quiet=True, command=command)
        run.publish()
