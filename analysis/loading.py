"""Reading runs, sweeps and benches into one tidy frame."""

import glob
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from testbed.core.errors import SpecError
from testbed.core.files import read_object
from testbed.core.logs import logger_of
from testbed.results import Run, load_run
from testbed.sweep.grid import Trial, make_cells
from testbed.sweep.ledger import ends
from testbed.telemetry.classify import UNCLASSIFIED, load_classes
from testbed.telemetry.profile import MACHINE

__all__ = ["done_trials", "each_run", "load", "origin", "plan_of"]

logger = logger_of(__name__)

LARGEST = 256 << 20  # bytes of a file in JSON
_OTHER_SHAPES = (
    LookupError,
    ArithmeticError,
    TypeError,
    ValueError,
    NotImplementedError,  # of pandas: rows that are no list
    AttributeError,
)
"""What reading values raises that are not where, or what, a bench writes."""

SCALES = {
    "time_us.min": ("time_min", "s", 1e-6),
    "time_us.median": ("time_median", "s", 1e-6),
    "time_us.p99": ("time_p99", "s", 1e-6),
    "algbw_gbps": ("algbw", "B/s", 1e9),
    "busbw_gbps": ("busbw", "B/s", 1e9),
    "goodput_gbps": ("goodput", "B/s", 1e9),
    "wire_bytes": ("wire_bytes", "B", 1.0),
    "packets": ("packets", "packets", 1.0),
    "retransmissions": ("retransmissions", "packets", 1.0),
    "syscalls_per_rank": ("syscalls", "calls", 1.0),
    "network_share": ("network_share", "1", 1.0),
    "unclassified_share": ("unclassified_share", "1", 1.0),
    "telemetry_overhead": ("telemetry_overhead", "1", 1.0),
}
"""What benches measure: metric, unit, factor."""


def load(*patterns: str | Path) -> pd.DataFrame:
    """Return the measurements of runs, sweeps and benches, one a row, with their units.

    Columns are those of results.parquet (docs/results.md) and `run` (the folder's name), `status`
    and `kernel`; of a sweep all trials are one run, `case` says which values of its grid they have,
    and each key of the grid is a column.

    :param patterns: Folders of runs or sweeps, JSON files of benches, or patterns such as
        ``runs/*``; entries of a pattern that are none of these are left out.
    :raises SpecError: Nothing is there, or it cannot be read.
    """
    frames = []
    for pattern in map(str, patterns):
        found = [Path(each) for each in sorted(glob.glob(pattern, recursive=True))]
        if glob.has_magic(pattern):
            found = [place for place in found if _has_measured(place)]
        frames += [frame for place in found if (frame := _read(place)) is not None]
        if not frames:
            raise SpecError(f"{pattern}: no run, sweep or bench is there")
    if not frames:
        raise SpecError("load: must have one or more folders, such as runs/*")
    return pd.concat(frames, ignore_index=True)


def each_run(frame: pd.DataFrame) -> Iterator[Run]:
    """Yield what `load` has read, run by run; of a sweep each cell of its grid, named by its
    values.
    """
    keys = ["run", *(["case"] if "case" in frame else [])]
    several = frame["run"].nunique() > 1
    for (name, *case), rows in frame.groupby(keys, sort=False, dropna=False):
        workload = str(rows["scenario.workload"].iloc[0])
        names = [str(name)] if several or not case or pd.isna(case[0]) else []
        path = Path(": ".join([*names, *(str(each) for each in case if not pd.isna(each))]))
        yield Run(path, {"scenario": {"scenario": {"workload": workload}}}, rows)


def origin(frame: pd.DataFrame, kernel: str | None = None) -> str:
    """Say what measurements were made on, in one line for a figure.

    :param kernel: Of a frame without that column.
    """
    engines = {"emulation": "emulated", "simulation": "simulated"}
    words = [" and ".join(engines.get(each, each) for each in frame["engine"].unique())]
    hosts = sorted(set(frame["hosts"]))
    words.append(f"{_series(hosts)} hosts")
    if (simulated := frame["engine"] == "simulation").any():
        named = "simulation.hardware"
        chosen = frame.loc[simulated, named] if named in frame else pd.Series([None])
        words.append(f"hardware {_series(dict.fromkeys(chosen.fillna('10g')))}")
    if not simulated.all():
        kernels = [kernel] if kernel else frame.loc[~simulated, "kernel"].dropna().unique()
        words.append(_series(dict.fromkeys(" ".join(each.split()[:2]) for each in kernels)))
    if "scenario.seed" in frame:
        words.append(f"seed {_series(sorted(set(frame['scenario.seed'].dropna())))}")
    elif "seed" in frame:
        words.append(f"seed {_series(sorted(set(frame['seed'].dropna())))}")
    trials = frame["trial"].nunique()
    words.append(f"{trials} trial{'s' * (trials > 1)}")
    return " · ".join(words)


def _series(values: Any) -> str:
    shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    return ", ".join(shown) if len(shown) < 6 else f"{shown[0]} to {shown[-1]}"


def _has_measured(place: Path) -> bool:
    """Whether a folder is no run's, or a run has left results there; if not, say so."""
    if not (place / "manifest.json").exists() or (place / "results.parquet").exists():
        return True
    logger.warning("%s: left out: the run there has measured nothing", place)
    return False


def _read(place: Path) -> pd.DataFrame | None:
    if (place / "sweep.json").exists():
        return _sweep(place)
    if (place / "manifest.json").exists():
        return _run(place).assign(run=place.name)
    if place.suffix == ".json" and place.is_file():
        return _bench(place)
    return None


def _run(place: Path) -> pd.DataFrame:
    run = load_run(place, finished=False)
    return run.frame.assign(
        status=run.manifest["status"], kernel=run.manifest["kernel"], run=place.name
    )


def _sweep(place: Path) -> pd.DataFrame | None:
    plan = plan_of(place)
    frames = []
    for trial, folder in done_trials(place, plan):
        frame = _run(folder) if plan["scenario"] else _bench(folder / "bench.json")
        if frame is None:
            continue
        inner = frame["trial"].max() + 1
        # The grid's keys that are no columns already, such as `variant`.
        grid = {
            key: json.dumps(value) if isinstance(value, list | dict) else value
            for key, value in trial.cell.values.items()
            if key not in frame
        }
        named = {"cell": trial.cell.number, "case": str(trial.cell), **grid}
        frames.append(frame.assign(trial=trial.number * inner + frame["trial"], **named))
    return pd.concat(frames, ignore_index=True).assign(run=place.name) if frames else None


def plan_of(place: Path) -> dict[str, Any]:
    """Return what ``sweep.json`` says of a sweep.

    :raises SpecError: It cannot be read, for example because it is torn.
    """
    found = read_object(place / "sweep.json", LARGEST)
    if not isinstance(found.get("grid"), dict):
        raise SpecError(f"{place / 'sweep.json'}: is no sweep's")
    return found


def done_trials(place: Path, plan: Mapping[str, Any]) -> Iterator[tuple[Trial, Path]]:
    """Yield the trials of a sweep that have succeeded, each with its folder.

    :param plan: As `plan_of` returns it.
    """
    cells = make_cells(plan["grid"])
    for name, end in ends(place).items():
        cell, _, number = name.partition("-")
        if end.error is None and int(cell) < len(cells):
            yield Trial(cells[int(cell)], int(number)), place / "trials" / name


def _bench(place: Path) -> pd.DataFrame | None:
    """Melt a bench's rows: a row for each measure of each; None if the file is no bench's."""
    try:
        return _melted(read_object(place, LARGEST), place)
    except (SpecError, *_OTHER_SHAPES):
        return None


def _melted(content: dict[str, Any], place: Path) -> pd.DataFrame | None:
    wide = pd.json_normalize(content["rows"])
    environment = content.get("environment", {})
    if "backend" not in wide and "exchange" in wide:
        wide["backend"] = wide["exchange"]
    if "backend" not in wide:
        return None
    if "hosts" not in wide:
        wide["hosts"] = wide["receivers"] + 1 if "receivers" in wide else environment.get("hosts")
    if "telemetry.samples" in wide:
        for part in ("network", UNCLASSIFIED):
            wide[f"{part}_share"] = [
                _share(row["telemetry"], part) if row.get("telemetry") else None
                for row in content["rows"]
            ]
        wide["telemetry_overhead"] = wide.get("telemetry.overhead")
    measures = [name for name in SCALES if name in wide]
    for end in ("low", "high"):
        if f"time_us.{end}" in wide and "iterations" in wide:
            wide[f"time_{end}"] = wide[f"time_us.{end}"] * 1e-6
    plain = [name for name in wide if name not in SCALES and "." not in name]
    rows = wide.melt(plain, measures, var_name="measure", value_name="raw").dropna(subset="raw")
    made = [SCALES[name] for name in rows["measure"]]
    rows = rows.drop(columns="time_percentiles_us", errors="ignore").assign(
        metric=[metric for metric, _, _ in made],
        unit=[unit for _, unit, _ in made],
        value=[raw * factor for raw, (_, _, factor) in zip(rows["raw"], made, strict=True)],
    )
    if "time_percentiles_us" in wide:
        plain.remove("time_percentiles_us")
        each = wide[[*plain, "time_percentiles_us"]].explode("time_percentiles_us")
        value = each.pop("time_percentiles_us").astype(float) * 1e-6
        rows = pd.concat([rows, each.assign(metric="time", unit="s", value=value)])
    return rows.assign(
        engine="emulation",
        trial=0,
        status="complete",
        kernel=environment.get("kernel"),
        run=place.stem,
    ).drop(columns=["measure", "raw"])


def _share(telemetry: dict[str, Any], part: str) -> float | None:
    """Return the share of a part's classes, or of what has no class, in the CPU time of
    collectives, of all hosts and switches; None without samples.
    """
    classes = load_classes()
    inside = [(each[2], each[4]) for each in telemetry["samples"] if each[0] != MACHINE]
    total = sum(number for _, number in inside)
    found = sum(n for name, n in inside if (classes.part(name) or UNCLASSIFIED) == part)
    return found / total if total else None
