"""Several runs side by side, as one HTML file: what differs between them first."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.charts import breakdown
from analysis.epochs import medians_of
from analysis.loading import load
from analysis.narrative import duration
from analysis.report import Grid, against, certainty, picture, template, timed
from analysis.style import scale_of
from analysis.summary import baseline, epoch_split
from analysis.workload import report_of
from testbed.core.errors import SpecError, StorageError
from testbed.core.medians import fastest
from testbed.core.tables import show
from testbed.results import Run, load_run

__all__ = ["compare", "differences"]

MACHINE = ("kernel", "cpu", "cpus", "memory_bytes", "git_commit")


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return the keys in which scenarios or machines differ, each with the value of every run; None
    where a run does not have it.
    """
    tables = [dict(_keys(run)) for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table)
    found = {key: [table.get(key) for table in tables] for key in keys}
    return {
        key: values
        for key, values in found.items()
        if len({json.dumps(value, sort_keys=True) for value in values}) > 1
    }


def _keys(run: Run) -> Iterator[tuple[str, Any]]:
    for table, keys in run.manifest["scenario"].items():
        if isinstance(keys, dict):
            yield from (
                (f"{table}.{key}", value)
                for key, value in keys.items()
                if key not in ("name", "description") or table != "scenario"
            )
        else:
            yield table, keys
    yield from ((key, run.manifest.get(key)) for key in MACHINE)


def compare(paths: Sequence[Path], out: Path) -> Path:
    """Write the comparison of two or more runs.

    :param out: The file.
    :raises SpecError: A folder holds no run, or two have the same name.
    """
    names = [path.resolve().name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise SpecError("report: each run may be named once")
    runs = [load_run(path, finished=False) for path in paths]
    splits = [epoch_split(run) for run in runs]
    frame = pd.concat(
        [load(path).assign(run=name) for path, name in zip(paths, names, strict=True)],
        ignore_index=True,
    )
    chart = breakdown(frame, of="epoch")
    rows = [
        (key, ["none" if value is None else show(value) for value in values])
        for key, values in differences(runs).items()
    ]
    html = template("compare").render(
        names=names,
        differences=Grid(names, rows),
        headline=headline(names, splits),
        picture=picture("The median epoch of each run", chart._repr_png_()),
        epochs=[
            {"name": name, "grid": grid(run, split)}
            for name, run, split in zip(names, runs, splits, strict=True)
        ],
        caveats=[
            f"Caution: {name} did not finish: its status is {run.manifest['status']}."
            for name, run in zip(names, runs, strict=True)
            if not run.finished
        ],
    )
    try:
        out.write_text(html)
    except OSError as error:
        raise StorageError(f"--out {out}: cannot be written: {error.strerror}") from error
    return out


def headline(names: Sequence[str], splits: Sequence[pd.DataFrame]) -> str:
    """Say which run and backend had the shortest epoch."""
    fastest = {name: split["epoch"].idxmin() for name, split in zip(names, splits, strict=True)}
    times = {name: split["epoch"].min() for name, split in zip(names, splits, strict=True)}
    best, *others = sorted(times, key=lambda name: times[name])
    more = ", ".join(
        f"{name} {duration(times[name])} with {fastest[name]} ({times[name] / times[best]:.2f}×)"
        for name in others
    )
    return (
        f"The fastest epoch is {best}'s, {duration(times[best])} with {fastest[best]}; the fastest"
        f" of the others: {more}."
    )


def grid(run: Run, split: pd.DataFrame) -> Grid:
    """Return a run's epochs, a column per backend."""
    scale = scale_of(split["epoch"])
    epochs = medians_of(run, "epoch_time")
    base = baseline(run) or fastest(epochs)[0]
    return Grid(
        [str(name) for name in split.index],
        [
            timed("epoch", split["epoch"], scale),
            *certainty(epochs, scale[1], scale[0]),
            timed(report_of(run).noun, split["communication"], scale),
            (f"against {base}", against(run, "epoch_time", base)),
        ],
    )
