"""A sweep over the options of a bench."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from testbed.core.errors import SpecError
from testbed.core.files import read_object
from testbed.core.tables import options as words
from testbed.core.tables import unknown
from testbed.sweep.sweep_file import VARIANT

if TYPE_CHECKING:
    import pandas as pd

    from testbed.sweep.grid import Cell, Trial
    from testbed.sweep.player import Work
    from testbed.sweep.sweep_file import Sweep

__all__ = ["BenchTrials"]

OWN = ("seed", "json", "figure", "verbose", "help", "out")
"""Options that belong to the sweep, or to none."""

LARGEST = 256 << 20  # bytes of a bench's JSON; telemetry has a list of all stacks

GUESS = 20.0  # seconds of a trial, as long as none has been timed


class BenchTrials:
    """Runs a bench with each cell's options; trial t with the sweep's seed + t. See
    `testbed.sweep.player.Player`.

    Keys are the options' long names.
    """

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        known = commands()
        if sweep.table.bench not in known:
            raise SpecError(
                f'{sweep.path}: sweep.bench = "{sweep.table.bench}": must be {words(sorted(known))}'
            )
        self._name = sweep.table.bench
        self._command = known[self._name]
        self._options: dict[str, Any] = {}
        for each in self._command.params:
            flag = max(each.opts, key=len).lstrip("-")
            if each.name not in OWN and flag not in OWN:
                self._options[flag.replace("-", "_")] = each

    def arguments(self, trial: Trial, *more: str) -> list[str]:
        """Return a trial's command line.

        :raises SpecError: A key is unknown.
        """
        made = ["--seed", str(self._sweep.table.seed + trial.number), *more]
        for key, value in self._sweep.settings(trial.cell).items():
            option = self._options.get(key.replace("-", "_"))
            if option is None:
                where = ["grid"] if key in trial.cell.values else ["common"]
                variant = str(trial.cell.values.get(VARIANT))
                if key in self._sweep.variants.get(variant, {}):
                    where = ["variants", variant]
                text = unknown([*where, key], list(self._options))
                raise SpecError(f"{self._sweep.path}: {text}")
            flag = max(option.opts, key=len)
            if isinstance(value, bool):
                made += [flag] if value else []
            else:
                made += [
                    flag,
                    ",".join(map(str, value)) if isinstance(value, list) else str(value),
                ]
        return made

    def check(self, cell: Cell) -> None:
        """See `Player`."""
        from testbed.sweep.grid import Trial

        try:
            context = self._command.make_context(self._name, self.arguments(Trial(cell, 0)))
            verb = self._command.callback
            while verb and not hasattr(verb, "check"):
                verb = getattr(verb, "__wrapped__", None)
            if verb:
                verb.check(context.params)
        except SpecError as error:
            raise SpecError(f"{self._sweep.path}: {cell}: {error}") from None
        except typer.TyperException as error:
            raise SpecError(f"{self._sweep.path}: {cell}: {error.format_message()}") from None

    def simulated(self, cell: Cell) -> bool:
        """See `Player`."""
        return False

    def content(self) -> Any:
        """See `Player`."""
        return self._name

    def guess(self, cell: Cell) -> float:
        """See `Player`."""
        return GUESS

    def work(self, trial: Trial) -> Work:
        """See `Player`."""
        return partial(run_bench, self._name, self.arguments(trial))

    def rows(self, trial: Trial, folder: Path) -> pd.DataFrame:
        """See `Player`."""
        import pandas as pd

        place = folder / "bench.json"
        try:
            rows = read_object(place, LARGEST)["rows"]
            frame = pd.json_normalize(rows).assign(trial=trial.number)
        except (KeyError, TypeError, NotImplementedError) as error:
            raise SpecError(f"{place}: is not what a bench writes: {error!r}") from error
        # Lists of values of several types, which a table cannot hold: bench.json has them.
        return frame.drop(columns=["telemetry.samples", "telemetry.counts"], errors="ignore")


def commands() -> dict[str, Any]:
    """Return the benches that can be swept, by name."""
    from testbed.cli import app

    benches: Any = typer.main.get_command(app)
    return {
        name: command
        for name, command in benches.commands["bench"].commands.items()
        if {"json", "seed"} <= {each.name for each in command.params}
    }


def run_bench(name: str, arguments: list[str], folder: Path) -> None:
    """Run a bench in an empty folder."""
    command = commands()[name]
    words = [*arguments, "--out", str(folder / "bench.json")]
    with (
        (folder / "output.txt").open("w", encoding="utf-8") as output,
        contextlib.redirect_stdout(output),
        command.make_context(name, words) as context,
    ):
        command.invoke(context)  # `main` would turn KeyboardInterrupt into an error
