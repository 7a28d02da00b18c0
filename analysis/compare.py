"""Several runs side by side, as one HTML file: what differs between them first."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.charts import breakdown
from analysis.epochs import medians_of
from analysis.loading import done_trials, load, plan_of
from analysis.narrative import cautions, duration, who
from analysis.report import Grid, against, certainty, picture, template, timed
from analysis.style import scale_of
from analysis.summary import baseline, epoch_split
from analysis.workload import report_of, workload_of
from testbed.comm.options import CollectiveOptions
from testbed.core.errors import SpecError, StorageError
from testbed.core.files import write_whole
from testbed.core.medians import compare as compare_medians
from testbed.core.medians import counts, fastest
from testbed.core.tables import show
from testbed.exchange.options import ExchangeOptions
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
    """Write the comparison of two or more runs, or of a sweep's.

    :param paths: Folders of runs; a sweep's stands for all of its runs that are done.
    :param out: The file.
    :raises SpecError: A folder holds no run, or two have the same name.
    """
    found = [each for path in paths for each in _runs_in(path)]
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        names = [str(path) for _, path in found]
    if len(set(names)) < len(names):
        raise SpecError("report: each run may be named once")
    runs = [load_run(path, finished=False) for _, path in found]
    splits = [epoch_split(run) for run in runs]
    frame = pd.concat(
        [load(path).assign(run=name) for name, (_, path) in zip(names, found, strict=True)],
        ignore_index=True,
    )
    chart = breakdown(frame, of="epoch")
    differing = differences(runs)
    html = template("compare").render(
        names=names,
        differences=_table(names, differing),
        headline=headline(names, runs, different_work(runs, differing)),
        picture=picture("The median epoch of each run", chart._repr_png_()),
        epochs=[
            {"name": name, "grid": grid(run, split)}
            for name, run, split in zip(names, runs, splits, strict=True)
        ],
        caveats=[
            each for name, run in zip(names, runs, strict=True) for each in _cautions(name, run)
        ],
    )
    try:
        write_whole(out, html)
    except OSError as error:
        raise StorageError(f"--out {out}: cannot be written: {error.strerror}") from error
    return out


def _runs_in(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and the folder of a run; of each run of a sweep, by the values of its cell."""
    if not (path / "sweep.json").exists():
        yield path.resolve().name, path
        return
    plan = plan_of(path)
    if not plan["scenario"]:
        raise SpecError(f"report: {path}: is a sweep of a bench: must be of a scenario")
    trials = list(done_trials(path, plan))
    if not trials:
        raise SpecError(f"report: {path}: no trial of the sweep has succeeded yet")
    for trial, folder in trials:
        yield str(trial if plan["trials"] > 1 else trial.cell), folder


def _table(names: Sequence[str], differing: dict[str, list[Any]]) -> Grid:
    """Return what differs: a row per key, or, of many runs, a row per run."""
    texts = {
        key: ["none" if value is None else show(value) for value in values]
        for key, values in differing.items()
    }
    if len(names) <= 4:
        return Grid(list(names), list(texts.items()))
    rows = [(name, [values[nth] for values in texts.values()]) for nth, name in enumerate(names)]
    return Grid(list(texts), rows if texts else [])


def _cautions(name: str, run: Run) -> Iterator[str]:
    if not run.finished:
        yield f"Caution: {name} did not finish: its status is {run.manifest['status']}."
    yield from (f"{name}: {each}" for each in cautions(run))


HOW = {
    "backends",
    "bucket_mb",
    "overlap",
    *CollectiveOptions.model_fields,
    *ExchangeOptions.model_fields,
}
"""Keys of a workload's table that say how it communicates; the others are its work."""


def different_work(runs: Sequence[Run], differing: Mapping[str, Any]) -> list[str]:
    """Return the keys by which runs do different work, so that their times are not comparable: the
    workload, what it trains on, and the keys of its table that are not `HOW` it communicates.
    """
    tables = {"dataset", "model", "training", *(workload_of(run).table for run in runs)}
    return [
        key
        for key in differing
        if key == "scenario.workload"
        or (key.partition(".")[0] in tables and key.partition(".")[2] not in HOW)
    ]


def headline(names: Sequence[str], runs: Sequence[Run], work: Sequence[str]) -> list[str]:
    """Say which run and backend had the shortest epoch, where runs do the same work; else, which
    backend of each.
    """
    epochs = [medians_of(run, "epoch_time") for run in runs]
    if work:
        differ = f"These runs do different work ({', '.join(work)} differ{'s' * (len(work) == 1)})"
        return [
            f"{differ}, so that only backends of one run are compared.",
            *(
                f"{name}: {who(run, each)}"
                for name, run, each in zip(names, runs, epochs, strict=True)
                if len(each) > 1
            ),
        ]
    first = {name: fastest(each)[0] for name, each in zip(names, epochs, strict=True)}
    best = {name: each[first[name]] for name, each in zip(names, epochs, strict=True)}
    shortest = fastest(best)
    winner = shortest[0]
    more = ", ".join(
        f"{name} {duration(best[name].value)} with {first[name]}"
        f" ({compare_medians(best[winner], best[name]).ratio:.2f}×)"
        for name in sorted(best, key=lambda name: best[name].value)
        if name != winner
    )
    said = (
        f"The fastest epoch is {winner}'s, {duration(best[winner].value)} with {first[winner]}; the"
        f" fastest of the others: {more}; medians of {counts(best.values())}."
    )
    if len(shortest) > 1:
        said += f" Not to be told apart: {', '.join(shortest)}."
    return [said]


def grid(run: Run, split: pd.DataFrame) -> Grid:
    """Return a run's epochs, a column per backend."""
    scale = scale_of(split["epoch"])
    epochs, inside = (medians_of(run, f"{name}_time") for name in ("epoch", "communication"))
    base = baseline(run) or fastest(epochs)[0]
    reduce = pd.Series({name: each.value for name, each in inside.items()})
    return Grid(
        [str(name) for name in split.index],
        [
            timed("epoch", split["epoch"], scale),
            *certainty(epochs, scale),
            timed(report_of(run).noun, reduce, scale),
            (f"against {base}", against(epochs, base)),
        ],
    )
