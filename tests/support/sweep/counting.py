"""A player whose trials append a line to a file; as a program, one that is killed in a trial."""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from testbed.core.errors import CollectiveError
from testbed.sweep import Cell, Ledger, Sweep, Trial, load_sweep, play
from testbed.sweep.player import Work, facts_of


class Counting:
    """Counts trials in `log`.

    :param fails: Values of the key ``size`` whose trials fail.
    :param stops: Called with how many trials have begun, before each is done.
    """

    def __init__(self, sweep: Sweep, log: Path, fails=(), stops=lambda begun: None) -> None:
        self.sweep, self.log, self.fails, self.stops = sweep, log, fails, stops

    @property
    def begun(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def check(self, cell: Cell) -> None:
        pass

    def simulated(self, cell: Cell) -> bool:
        return True

    def content(self) -> Any:
        return "counting"

    def guess(self, cell: Cell) -> float:
        return float(cell.values["size"])

    def work(self, trial: Trial) -> Work:
        return partial(self.run, trial)

    def run(self, trial: Trial, folder: Path) -> None:
        assert list(folder.iterdir()) == []
        with self.log.open("a") as log:
            log.write(f"{trial.name}\n")
        (folder / "half").touch()
        self.stops(len(self.begun))
        if trial.cell.values["size"] in self.fails:
            raise CollectiveError("no answer")

    def rows(self, trial: Trial, folder: Path) -> pd.DataFrame:
        return pd.DataFrame({"trial": [trial.number], "value": [trial.cell.values["size"] * 10.0]})


def kill_self(begun: int) -> None:
    if begun == 3:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    path, out, log = map(Path, sys.argv[1:])
    sweep = load_sweep(path)
    player = Counting(sweep, log, stops=kill_self)
    with Ledger(out, facts_of(sweep, player)) as ledger:
        play(sweep, player, ledger, print)
