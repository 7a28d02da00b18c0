"""The progress of a run, on stderr because stdout is for results: a bar on a terminal, else a line
per epoch.
"""

import sys
from collections.abc import Iterable
from contextlib import ExitStack

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from testbed.core.closing import Stacked

__all__ = ["Display"]


class Display(Stacked):
    """Shows the progress of a run. A context manager.

    :param quiet: Show nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self._bars = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            disable=quiet or not sys.stderr.isatty(),
        )
        self._tasks: dict[str, TaskID] = {}

    def _enter(self, stack: ExitStack) -> None:
        stack.enter_context(self._bars)

    def say(self, text: str) -> None:
        """Show a permanent line."""
        self.console.print(text, markup=False, soft_wrap=True)

    def start(self, names: Iterable[str], steps: int) -> None:
        """Begin a trial, with this number of steps per backend."""
        for task in self._tasks.values():
            self._bars.remove_task(task)
        self._tasks = {name: self._bars.add_task(name, total=steps, note="") for name in names}

    def note(self, name: str, text: str) -> None:
        """Show what a backend is doing between steps."""
        self._bars.update(self._tasks[name], note=text)

    def step(self, name: str, done: int) -> None:
        """Show the number of steps done."""
        self._bars.update(self._tasks[name], completed=done)

    def epoch(self, name: str, number: int, epochs: int, done: int, note: str) -> None:
        """Show the end of an epoch.

        :param number: From 1.
        :param done: Steps done in all.
        """
        if self._bars.disable:
            self.say(f"{name}: epoch {number} of {epochs}: {note}")
        self._bars.update(self._tasks[name], completed=done, note=note)
