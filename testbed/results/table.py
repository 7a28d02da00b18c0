"""The tidy table of a run: one row per measurement."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from testbed.core.errors import SpecError
from testbed.core.files import check_regular
from testbed.core.parquet import read_frame
from testbed.results.folder import RunFolder, read_manifest
from testbed.results.manifest import Manifest

__all__ = ["COLUMNS", "Run", "Table", "load_run"]

COLUMNS = {
    "trial": "int64",
    "engine": "string",
    "backend": "string",
    "hosts": "int64",
    "rank": "Int64",  # none: all ranks together
    "epoch": "Int64",  # none: the whole training
    "metric": "string",
    "value": "float64",
    "unit": "string",
}
"""Columns that every table has; the scenario's parameters follow, each named ``table.key``."""


class Table:
    """Collects a run's measurements.

    :param scenario: The scenario as plain tables; each key becomes a column with the same value in
        all rows.
    :param engine: ``emulation`` or ``simulation``.
    """

    def __init__(
        self, scenario: Mapping[str, Mapping[str, Any]], engine: str = "emulation"
    ) -> None:
        self.engine = engine
        self.parameters = {
            f"{table}.{key}": json.dumps(value) if isinstance(value, list | tuple) else value
            for table, keys in scenario.items()
            if isinstance(keys, dict)
            for key, value in keys.items()
            if value is not None
        }
        if faults := scenario.get("faults"):
            self.parameters["faults"] = json.dumps(faults)
        self.hosts = int(scenario["fabric"]["hosts"])
        #: When each rank entered and left the collectives of the epoch that was recorded last, in
        #: seconds of the machine's monotonic clock; it is not written.
        self.collectives: dict[int, tuple[list[float], list[float]]] = {}
        self._rows: list[tuple[Any, ...]] = []
        self._labels: list[dict[str, str]] = []

    def add(
        self,
        trial: int,
        backend: str,
        metric: str,
        value: float,
        unit: str,
        *,
        rank: int | None = None,
        epoch: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Add a measurement.

        :param metric: A plain name, such as ``epoch_time``.
        :param unit: ``s``, ``B``, or what is counted; ``1`` for a ratio.
        :param labels: What distinguishes it from others, as columns that are empty in other rows.
        """
        self._rows.append(
            (trial, self.engine, backend, self.hosts, rank, epoch, metric, value, unit)
        )
        self._labels.append(dict(labels or {}))

    def __len__(self) -> int:
        return len(self._rows)

    def frame(self) -> pd.DataFrame:
        """Return the table as a data frame."""
        frame = pd.DataFrame(self._rows, columns=list(COLUMNS)).astype(COLUMNS)
        labels = pd.DataFrame(self._labels, index=frame.index, dtype="string")
        return frame.join(labels).assign(**self.parameters)

    def write(self, folder: RunFolder) -> Path:
        """Write ``results.parquet``; atomic."""
        return folder.write(
            "results.parquet", lambda place: self.frame().to_parquet(place, index=False)
        )


@dataclass(frozen=True)
class Run:
    """What a run has written: its folder, its manifest and its measurements."""

    path: Path
    manifest: dict[str, Any]
    frame: pd.DataFrame

    @property
    def workload(self) -> str:
        """The name of the workload."""
        return str(self.manifest["scenario"]["scenario"]["workload"])

    @property
    def backends(self) -> list[str]:
        """The backends that were measured, in the scenario's order, which is the order of their
        first turns.
        """
        return list(dict.fromkeys(self.frame["backend"]))

    @property
    def finished(self) -> bool:
        """Whether the run is complete; else these are the measurements until it ended."""
        return bool(self.manifest.get("status") == "complete")

    def metric(self, name: str) -> pd.DataFrame:
        """Return the rows of one metric."""
        return self.frame[self.frame["metric"] == name]


def load_run(path: Path, finished: bool = True) -> Run:
    """Read a run's folder.

    :param finished: Refuse a run that was interrupted or failed; else what it has measured is read.
    :raises SpecError: It is not a run's folder, nothing was measured, it cannot be read, or the run
        did not finish.
    """
    manifest = Manifest.checked(read_manifest(path), path / "manifest.json")
    place = path / "results.parquet"
    if not place.exists():
        status = manifest.get("status")
        why = (
            f"{place} is missing"
            if status == "complete"
            else f"its status is {status}, and nothing was measured"
        )
        raise SpecError(f"{path}: is not the folder of a finished run: {why}")
    check_regular(place)
    frame = read_frame(place, str(place), COLUMNS)
    if finished and (status := manifest.get("status")) != "complete":
        raise SpecError(f"{path}: is not the folder of a finished run: its status is {status}")
    return Run(path, manifest, frame)
