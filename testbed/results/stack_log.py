"""The stacks of a run's sampled epochs: one row for each stack of a node and an epoch."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pandas as pd

from testbed.core.errors import SpecError
from testbed.core.files import check_regular
from testbed.core.parquet import read_frame
from testbed.results.folder import RunFolder
from testbed.telemetry.stacks import Stack

__all__ = ["STACK_COLUMNS", "StackLog", "load_stacks"]

STACK_COLUMNS: Final = {
    "trial": "int64",
    "backend": "string",
    "epoch": "int64",
    "rate": "int64",  # samples per second of each CPU
    "node": "string",
    "softirq": "bool",
    "class": "string",
    "stack": "string",  # as of `testbed.telemetry.stacks.fold`
    "samples": "int64",
    "inside": "int64",  # of these, inside collectives
}


class StackLog:
    """Collects stacks."""

    def __init__(self) -> None:
        self._rows: list[tuple[object, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, trial: int, backend: str, epoch: int, rate: int, stacks: Iterable[Stack]) -> None:
        """Add the stacks of an epoch."""
        self._rows += ((trial, backend, epoch, rate, *stack) for stack in stacks)

    def frame(self) -> pd.DataFrame:
        """Return the log as a data frame."""
        return pd.DataFrame(self._rows, columns=list(STACK_COLUMNS)).astype(STACK_COLUMNS)

    def write(self, folder: RunFolder) -> Path:
        """Write ``stacks.parquet``; atomic. Stacks repeat themselves and each other, so they are
        compressed to a few percent.
        """
        return folder.write(
            "stacks.parquet",
            lambda place: self.frame().to_parquet(place, index=False, compression="zstd"),
        )


def load_stacks(path: Path) -> pd.DataFrame:
    """Read the stacks of a run.

    :raises SpecError: It has none, or they cannot be read.
    """
    place = path / "stacks.parquet"
    if place.exists():
        check_regular(place)
        frame = read_frame(place, str(place), STACK_COLUMNS)
        if len(frame):
            return frame
    raise SpecError(
        f"{path}: has no stacks: it was run without telemetry (add --telemetry), or {place.name} is"
        " gone"
    )
