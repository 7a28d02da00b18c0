"""Running the trials of a sweep, and gathering their results."""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Protocol

import pandas as pd

from testbed.core.errors import SpecError, StorageError, limit_reached, no_room
from testbed.core.files import replacing, write_whole
from testbed.sweep.grid import Cell, Trial, order
from testbed.sweep.ledger import Done, Ledger
from testbed.sweep.sweep_file import Sweep

__all__ = [
    "Here",
    "Place",
    "Player",
    "Work",
    "attempt",
    "facts_of",
    "gather",
    "left",
    "play",
    "remaining",
]

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
        """Return a trial's measurements, with a column `trial`, tidy.

        :raises SpecError: They cannot be read, for example because a file is torn.
        """


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


def left(
    player: Player,
    ledger: Ledger,
    trials: Sequence[Trial],
    say: Callable[[str], None],
    retry: bool = False,
) -> list[Trial]:
    """Return the trials that are to be run; see `Ledger.pending`. Those whose results are torn are
    among them.
    """
    for trial in trials:
        done = ledger.done.get(trial.name)
        if done is None or done.error is not None:
            continue
        try:
            player.rows(trial, ledger.folder(trial))
        except SpecError as error:
            say(f"{trial} is run again: {error}")
            del ledger.done[trial.name]
    return ledger.pending(trials, retry)


def play(
    sweep: Sweep,
    player: Player,
    ledger: Ledger,
    say: Callable[[str], None],
    retry: bool = False,
    place: Place | None = None,
) -> None:
    """Run all trials that are not done. A trial that fails is recorded, and the sweep goes on; a
    full disk is no trial's result, and ends the sweep.

    :param say: Shows the user a line.
    :param retry: Run those that have failed again.
    :param place: Where trials run; None: in this process, one after another.
    :raises StorageError: The disk is full, or refuses a file.
    """
    place = place or Here()
    every = order(sweep.cells, sweep.table.trials, sweep.table.seed)
    pending = left(player, ledger, every, say, retry)
    if len(pending) < len(every):
        say(f"{len(every) - len(pending)} of {len(every)} trials are done already")
    rest = {trial.name: trial for trial in pending}
    for trial, done in place.run(player, ledger, pending):
        ledger.end(trial, done)
        del rest[trial.name]
        number = len(every) - len(rest)
        seconds = remaining(player, list(rest.values()), ledger.done) / place.at_once
        text = f"failed: {done.error.splitlines()[0]}" if done.error else f"{done.seconds:.1f} s"
        say(f"[{number}/{len(every)}] {trial}: {text}; {clock(seconds)} left")


class Here:
    """This process, which runs trials one after another."""

    at_once = 1

    def run(
        self, player: Player, ledger: Ledger, pending: Sequence[Trial]
    ) -> Iterator[tuple[Trial, Done]]:
        """See `Place`."""
        for trial in pending:
            folder = ledger.begin(trial)
            try:
                done = attempt(player.work(trial), folder)
            except StorageError:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            yield trial, done


def attempt(work: Work, folder: Path) -> Done:
    """Run a trial in an empty folder; its errors are recorded.

    :raises StorageError: The disk is full, or refuses a file.
    """
    started, error = time.monotonic(), None
    try:
        work(folder)
    except StorageError:
        raise
    except Exception as failure:
        if full := no_room(failure):
            raise StorageError(full) from failure
        error = limit_reached(failure) or str(failure) or type(failure).__name__
    return Done(round(time.monotonic() - started, 3), error)


def gather(sweep: Sweep, player: Player, ledger: Ledger) -> Path:
    """Write ``results.parquet``, the tidy table of all trials, and ``failed.json``.

    Its columns are those of a trial's results, with `cell` and each key of the grid that is not
    among them.

    :raises StorageError: The disk is full, or refuses a file.
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
    place = ledger.out / "results.parquet"
    frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    try:
        write_whole(ledger.out / "failed.json", json.dumps(failed, indent=2) + "\n")
        with replacing(place) as partial:
            frame.to_parquet(partial, index=False)
    except OSError as error:
        raise StorageError(f"{place}: cannot be written: {error.strerror}") from error
    return place


def clock(seconds: float) -> str:
    """Write a rough time."""
    minutes = round(seconds / 60)
    if minutes >= 90:
        return f"about {seconds / 3600:.1f} h"
    return f"about {minutes} min" if minutes >= 2 else f"about {round(seconds)} s"
