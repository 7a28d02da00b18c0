"""Dask workers for tests, and a player whose trials say who ran them when."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from distributed import Nanny, Scheduler, SpecCluster

from testbed.sweep import Cell, Trial


@contextmanager
def workers(*resources: dict[str, float]) -> Iterator[str]:
    """A scheduler with a worker for each of `resources`, on loopback; yields its address."""
    here = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    spec = {
        number: {"cls": Nanny, "options": {**here, "nthreads": 1, "resources": each}}
        for number, each in enumerate(resources)
    }
    with SpecCluster(spec, {"cls": Scheduler, "options": here}) as cluster:
        yield cluster.scheduler_address


class Watched:
    """Trials that note their process, begin and end in a file of `log`.

    :param dies: How many times trials of a size kill their process before they succeed.
    :param emulated: Values of the key ``way`` whose trials are.
    """

    def __init__(
        self, log: Path, dies: dict[int, int] | None = None, emulated: Sequence[str] = ()
    ) -> None:
        log.mkdir(exist_ok=True)
        self.log, self.dies, self.emulated = log, dies or {}, emulated

    def notes(self) -> list[dict[str, Any]]:
        return [json.loads(each.read_text()) for each in sorted(self.log.glob("*.json"))]

    def check(self, cell: Cell) -> None:
        pass

    def simulated(self, cell: Cell) -> bool:
        return cell.values["way"] not in self.emulated

    def content(self) -> Any:
        return "watched"

    def guess(self, cell: Cell) -> float:
        return 1.0

    def work(self, trial: Trial) -> Callable[[Path], None]:
        return partial(run, self.log, trial, self.dies.get(trial.cell.values["size"], 0))

    def rows(self, trial: Trial, folder: Path) -> pd.DataFrame:
        value = json.loads((folder / "deep" / "value.json").read_text())
        return pd.DataFrame({"trial": [trial.number], "value": [value]})


def run(log: Path, trial: Trial, dies: int, folder: Path) -> None:
    assert list(folder.iterdir()) == []
    attempts = len(list(log.glob(f"{trial.name}-*")))
    note = {"trial": trial.name, "way": trial.cell.values["way"], "process": os.getpid()}
    begun = time.monotonic()
    (log / f"{trial.name}-{attempts}").touch()
    (folder / "half").touch()
    if attempts < dies:
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / "deep").mkdir()
    (folder / "deep" / "value.json").write_text(str(10 * trial.cell.values["size"]))
    ended = time.monotonic()
    (log / f"{trial.name}.json").write_text(json.dumps({**note, "begun": begun, "ended": ended}))
