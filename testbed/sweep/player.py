"""Running the trials of a sweep, and gathering their results."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Protocol

import pandas as pd

from testbed.core.errors import limit_reached
from testbed.sweep.grid import Cell, Trial, order
from testbed.sweep.ledger import Done, Ledger
from testbed.sweep.sweep_file import Sweep

__all__ = ["Here", "Place", "Player", "Work", "attempt", "facts_of", "gather", "play", "remaining"]

Work = Callable[[Path], None]


class Player(Protocol):
    """What a sweep runs: a scenario, or a bench."""

    def check(self, cell: Cell) -> None:
        """Refuse a cell with bad input before anything is run.

        :raises SpecError: A key or value is wrong.
        """

    def simulated(self, cell: Cell) -> bool:
        """Tell whether a cell is simulated, and so needs neither root nor a machine of its own."""

    def content(self) -> Any:
        """Return what the cells are made from, for telling sweeps apart."""

    def guess(self, cell: Cell) -> float:
        """Guess how many seconds a trial takes, as long as none has been timed."""

    def work(self, trial: Trial) -> Work:
        """Return what runs a trial in an empty folder. It can be pickled, and needs no file of this
        machine but those that the trial names.
        """

    def rows(self, trial: Trial, folder: Path) -> pd.DataFrame:
        """Return a trial's measurements, with a column `trial`, tidy."""


class Place(Protocol):
    """Where trials run."""

    @property
    def at_once(self) -> int:
        """How many trials run at a time."""

    def run(
        self, player: Player, ledger: Ledger, pending: Sequence[Trial]
    ) -> Iterator[tuple[Trial, Done]]:
        """Run trials, whose folders are the ledger's; yield each when it has ended."""


def facts_of(sweep: Sweep, player: Player) -> dict[str, Any]:
    """Return what says which sweep a folder holds."""
    return {
        **sweep.table.model_dump(),
        "file": str(sweep.path),
        "common": sweep.common,
        "grid": sweep.grid,
        "content": player.content(),
        **({"variants": sweep.variants} if sweep.variants else {}),
    }


def remaining(player: Player, pending: list[Trial], done: Mapping[str, Done]) -> float:
    """Estimate the seconds that trials will take: as long as the same cell has taken, else in
    proportion to the player's guesses, which the trials that are done correct.

    :param done: All that have ended, by name.
    """
    timed: dict[int, list[float]] = {}
    for name, end in done.items():
        if end.error is None:
            timed.setdefault(int(name.partition("-")[0]), []).append(end.seconds)
    guesses = {trial.cell.number: player.guess(trial.cell) for trial in pending}
    known = [(guesses[number], mean(times)) for number, times in timed.items() if number in guesses]
    if known:
        factor = sum(took for _, took in known) / (sum(guess for guess, _ in known) or 1.0)
    elif timed:
        factor = mean(map(mean, timed.values())) / (mean(guesses.values()) if guesses else 1.0)
    else:
        factor = 1.0
    return sum(
        mean(timed[trial.cell.number])
        if trial.cell.number in timed
        else factor * guesses[trial.cell.number]
        for trial in pending
    )


def play(
    sweep: Sweep,
    player: Player,
    ledger: Ledger,
    say: Callable[[str], None],
    retry: bool = False,
    place: Place | None = None,
) -> None:
    """Run all trials that are not done. A trial that fails is recorded, and the sweep goes on.

    :param say: Shows the user a line.
    :param retry: Run those that have failed again.
    :param place: Where trials run; None: in this process, one after another.
    """
    place = place or Here()
    every = order(sweep.cells, sweep.table.trials, sweep.table.seed)
    pending = ledger.pending(every, retry)
    if len(pending) < len(every):
        say(f"{len(every) - len(pending)} of {len(every)} trials are done already")
    left = {trial.name: trial for trial in pending}
    for trial, done in place.run(player, ledger, pending):
        ledger.end(trial, done)
        del left[trial.name]
        number = len(every) - len(left)
        rest = remaining(player, list(left.values()), ledger.done) / place.at_once
        text = f"failed: {done.error.splitlines()[0]}" if done.error else f"{done.seconds:.1f} s"
        say(f"[{number}/{len(every)}] {trial}: {text}; {clock(rest)} left")


class Here:
    """This process, which runs trials one after another."""

    at_once = 1

    def run(
        self, player: Player, ledger: Ledger, pending: Sequence[Trial]
    ) -> Iterator[tuple[Trial, Done]]:
        """See `Place`."""
        for trial in pending:
            yield trial, attempt(player.work(trial), ledger.begin(trial))


def attempt(work: Work, folder: Path) -> Done:
    """Run a trial in an empty folder; its errors are recorded."""
    started, error = time.monotonic(), None
    try:
        work(folder)
    except Exception as failure:
        error = limit_reached(failure) or str(failure) or type(failure).__name__
    return Done(round(time.monotonic() - started, 3), error)


def gather(sweep: Sweep, player: Player, ledger: Ledger) -> Path:
    """Write ``results.parquet``, the tidy table of all trials, and ``failed.json``.

    Its columns are those of a trial's results, with `cell` and each key of the grid that is not
    among them.
    """
    frames, failed = [], []
    for trial in sorted(
        order(sweep.cells, sweep.table.trials, 0), key=lambda trial: trial.name
    ):  # in the grid's order
        done = ledger.done.get(trial.name)
        if done is None:
            continue
        if done.error is not None:
            failed.append({"cell": dict(trial.cell.values), "trial": trial.number, **vars(done)})
            continue
        rows = player.rows(trial, ledger.folder(trial))
        grid = {
            key: json.dumps(value) if isinstance(value, list | dict) else value
            for key, value in trial.cell.values.items()
            if key not in rows
        }
        frames.append(rows.assign(cell=trial.cell.number, **grid))
    (ledger.out / "failed.json").write_text(json.dumps(failed, indent=2) + "\n", encoding="utf-8")
    place = ledger.out / "results.parquet"
    partial = place.with_name(f".{place.name}.partial")
    frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    frame.to_parquet(partial, index=False)
    partial.replace(place)
    return place


def clock(seconds: float) -> str:
    """Write a rough time."""
    minutes = round(seconds / 60)
    if minutes >= 90:
        return f"about {seconds / 3600:.1f} h"
    return f"about {minutes} min" if minutes >= 2 else f"about {round(seconds)} s"
