"""The log of a run's faults: one row for each rule that a frame has met, and for each event."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from testbed.results.folder import RunFolder

__all__ = ["FAULT_COLUMNS", "FaultLog"]

FAULT_COLUMNS = {
    "trial": "int64",
    "backend": "string",
    "epoch": "int64",
    "fault": "int64",  # index in the scenario
    "action": "string",
    "time": "float64",  # seconds from the start of the turn; less than 0: while the ranks connected
    "duration": "Float64",  # events: seconds
    "hosts": "string",  # events; for a flood, switches
    "sender": "string",
    "receiver": "string",
    "kind": "string",
    "group": "Int64",
    "seq": "Int64",
    "chunk": "Int64",
    "hop": "Int64",
    "attempt": "Int64",
    "argument": "UInt64",
    "length": "Int64",  # bytes of the frame
}
"""Columns; those of frames are empty for events, and vice versa."""


class FaultLog:
    """Collects what faults have done."""

    def __init__(self) -> None:
        self._parts: list[pd.DataFrame] = []

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def add(self, trial: int, backend: str, epoch: int, columns: Mapping[str, Any]) -> None:
        """Add rows of one turn.

        :param columns: By name, as in :data:`FAULT_COLUMNS`; all of equal length.
        """
        rows = pd.DataFrame(columns).assign(trial=trial, backend=backend, epoch=epoch)
        if len(rows):
            self._parts.append(rows.reindex(columns=list(FAULT_COLUMNS)).astype(FAULT_COLUMNS))

    def frame(self) -> pd.DataFrame:
        """Return the log as a data frame."""
        empty = pd.DataFrame(columns=list(FAULT_COLUMNS)).astype(FAULT_COLUMNS)
        return pd.concat(self._parts, ignore_index=True) if self._parts else empty

    def write(self, folder: RunFolder) -> Path:
        """Write ``faults.parquet``; atomic."""
        return folder.write(
            "faults.parquet", lambda place: self.frame().to_parquet(place, index=False)
        )
