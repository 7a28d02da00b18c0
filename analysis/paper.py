"""The results of the papers, measured on one box: the declarations of parts, and what is written of
each. ``scenarios/paper/parts.toml`` has the declarations; `testbed paper` runs their sweeps.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import Field

from analysis import charts
from analysis.charts import Chart
from analysis.loading import LARGEST, load, origin
from analysis.style import number, save, scale_of
from testbed.core.errors import SpecError
from testbed.core.files import read_object, write_whole
from testbed.core.numbers import format_size
from testbed.core.tables import Table, checked, options, path_of
from testbed.scenario.load import read_table
from testbed.sweep.ledger import ends

__all__ = ["Drawing", "Part", "Progress", "draw_part", "index", "load_parts", "progress"]

FORMATS = ("png",)
RUN_WITH = ("## How to run it", "", "```")
SUMMARY = "summary.json"


class Drawing(Table):
    """``[[PART.figures]]``: one figure and its table."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="of its files, after the part's")
    title: str
    chart: Literal["trend", "speedup", "cdf", "breakdown"]
    metric: str
    by: str | None = Field(default=None, description="column on the horizontal axis")
    baseline: str | None = Field(
        default=None, description="transport or series; default: the best over sockets"
    )
    series: str | None = Field(
        default=None, description="column whose values are the lines; default: transports"
    )
    sweep: str | None = Field(default=None, description="of the part's; default: its first")
    where: dict[str, Any] = Field(default={}, description="columns with the value of rows shown")


class Part(Table):
    """``[PART]``: what is measured, how it is shown, and what the paper says."""

    title: str
    sweeps: tuple[str, ...] = Field(
        min_length=1, strict=False, description="sweep files beside this one"
    )
    paper: str = Field(description="what the paper has measured")
    limits: str = Field(description="what one box cannot show")
    reading: str = Field(default="", description="why the results are what they are")
    figures: tuple[Drawing, ...] = Field(min_length=1, strict=False)


@dataclass(frozen=True)
class Progress:
    """How much of a sweep has been run.

    :param failed: Errors of trials, by trial.
    :param commits: The testbed's, of the trials that are done.
    """

    trials: int
    cells: int
    of_cells: int
    failed: dict[str, str]
    commits: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = (
            f"{self.cells} of {self.of_cells} cells, {self.trials} trial{'s' * (self.trials != 1)}"
        )
        return f"{text}, {len(self.failed)} failed" if self.failed else text


def load_parts(path: Path) -> dict[str, Part]:
    """Read the declarations of parts.

    :raises SpecError: Keys or values are wrong.
    """
    parts = {}
    for name, table in read_table(path).items():
        try:
            parts[name] = checked(Part, table, lambda place: f"{path_of(place)} =")
        except SpecError as error:
            text = "\n".join(f"{path}: {name}: {line}" for line in str(error).splitlines())
            raise SpecError(text) from None
        for each in parts[name].figures:
            if each.sweep is not None and each.sweep not in parts[name].sweeps:
                raise SpecError(
                    f"{path}: {name}.figures: sweep = {each.sweep}: must be"
                    f" {options(parts[name].sweeps)}"
                )
    return parts


def progress(folder: Path, cells: int) -> Progress:
    """Return how much of a sweep's folder has been run.

    :param cells: Of the sweep.
    """
    found = {name: end.error for name, end in ends(folder).items()}
    done = [name for name, error in found.items() if error is None]
    failed = {name: error for name, error in found.items() if error is not None}
    commits = dict.fromkeys(_commit(folder / "trials" / name) for name in done)
    count = len({name.partition("-")[0] for name in done})
    return Progress(len(done), count, cells, failed, tuple(each for each in commits if each))


def _commit(trial: Path) -> str | None:
    for name, table in (("manifest.json", None), ("bench.json", "environment")):
        if (trial / name).exists():
            try:
                content = read_object(trial / name, LARGEST)
                found = (content if table is None else content[table]).get("git_commit")
            except (SpecError, KeyError, AttributeError):  # it is torn
                return None
            return str(found)[:7] if found else None
    return None


def draw_part(
    name: str, part: Part, folders: dict[str, Path], done: Sequence[Progress], out: Path
) -> Path:
    """Write a part's figures, their points as CSV, and ``PART.md``.

    Figures without any measurement yet are left out, and the text says so.

    :param folders: The folder of each sweep, by its name.
    :param done: Of each sweep, in order.
    :raises SpecError: Nothing has been measured yet.
    """
    found: list[tuple[Drawing, Chart, str]] = []
    missing = []
    for drawing in part.figures:
        folder = folders[drawing.sweep or part.sweeps[0]]
        try:
            runs = select(load(folder), drawing)
            chart = draw(runs, drawing)
        except SpecError as error:
            missing.append(f"{drawing.title}: not shown: {error}")
            continue
        save(chart.figure, chart.data, out / f"{name}-{drawing.name}", FORMATS)
        found.append((drawing, chart, origin(runs)))
    if not found:
        raise SpecError(f"{name}: nothing has been measured yet: {'; '.join(missing)}")
    says = [says_of(drawing, chart) for drawing, chart, _ in found]
    lines = [
        f"# {name}: {part.title}",
        "",
        "Measured here:",
        "",
        *(f"- {each}" for each in says),
        "",
    ]
    lines += [f"The paper: {part.paper}", ""]
    lines += [f"Why: {part.reading}", ""] if part.reading else []
    lines += [f"One box cannot show {part.limits}", ""]
    for drawing, chart, made_on in found:
        stem = f"{name}-{drawing.name}"
        lines += [f"## {drawing.title}", "", f"![{drawing.title}]({stem}.png)", ""]
        lines += [*table_of(drawing, chart), "", f"{made_on} ([points]({stem}.csv))", ""]
    lines += [*(f"- {each}" for each in missing), ""] if missing else []
    lines += [*RUN_WITH, f"make paper PART={name}", "```", ""]
    for sweep, each in zip(part.sweeps, done, strict=True):
        commits = f" (commit {', '.join(each.commits)})" if each.commits else ""
        lines.append(f"- `scenarios/paper/{sweep}.toml`: {each}{commits}")
        lines += [f"  - trial {trial}: {text}" for trial, text in each.failed.items()]
    place = out / f"{name}.md"
    write_whole(place, "\n".join(lines) + "\n")
    _remember(name, says, done, out)
    return place


def _remember(name: str, says: list[str], done: Sequence[Progress], out: Path) -> None:
    place = out / SUMMARY
    known = read_object(place, LARGEST) if place.exists() else {}
    known[name] = {"says": says, "trials": [str(each) for each in done]}
    write_whole(place, json.dumps(dict(sorted(known.items())), indent=2) + "\n")


def index(parts: dict[str, Part], out: Path) -> Path:
    """Write ``README.md``: which parts have been run, with how many trials, and their answers."""
    place = out / SUMMARY
    known = read_object(place, LARGEST) if place.exists() else {}
    lines = ["# The results of the papers, on one box", "", INTRODUCTION, ""]
    lines += ["| part | what | measured |", "| ---- | ---- | -------- |"]
    for name, part in parts.items():
        about = known.get(name)
        title = f"[{name}]({name}.md)" if about else name
        trials = "; ".join(about["trials"]) if about else "not run yet"
        lines.append(f"| {title} | {part.title} | {trials} |")
    for name, part in parts.items():
        if name in known:
            lines += [
                "",
                f"## {name}: {part.title}",
                "",
                *(f"- {each}" for each in known[name]["says"]),
            ]
    readme = out / "README.md"
    write_whole(readme, "\n".join(lines) + "\n")
    return readme


INTRODUCTION = """\
`make paper` measures these parts, one after another, and writes this folder; `make paper
PART=erar-1` measures one. A part is one or more sweeps in `scenarios/paper/`, and a declaration of
its figures in `scenarios/paper/parts.toml`. Sweeps go on where they ended, in `runs/paper/`.

All hosts share the CPUs of one machine, so that times are those of work, not of links: what a
real network adds, and what its cards take over, cannot be seen here."""


def select(runs: pd.DataFrame, drawing: Drawing) -> pd.DataFrame:
    """Return the rows that a figure shows, with its series in place of transports.

    :raises SpecError: There are none.
    """
    for key, value in drawing.where.items():
        if key not in runs:
            raise SpecError(f"where.{key}: is no column of these results")
        runs = runs[runs[key] == value]
    if runs.empty:
        raise SpecError("nothing has been measured")
    return runs if drawing.series is None else runs.assign(backend=runs[drawing.series].map(str))


def draw(runs: pd.DataFrame, drawing: Drawing) -> Chart:
    """Draw a figure.

    :raises SpecError: What it shows was not measured.
    """
    if drawing.chart == "cdf":
        return charts.cdf(runs, drawing.metric)
    if drawing.chart == "breakdown":
        found = charts.breakdown(runs, of="epoch")
        return replace(found, data=found.data.rename(columns={"run": "backend"}))
    assert drawing.by is not None
    if drawing.chart == "speedup":
        return charts.speedup(runs, drawing.baseline, drawing.by, drawing.metric)
    return charts.trend(runs, drawing.metric, drawing.by)


def table_of(drawing: Drawing, chart: Chart) -> list[str]:
    """Return a figure's points as a table in Markdown: a column for each line, a value with its
    spread over trials.
    """
    names = list(dict.fromkeys(chart.data["backend"]))
    if drawing.chart == "breakdown":
        parts = [each for each in chart.data if each not in ("backend", "low", "high")]
        scale, unit = scale_of(chart.data["epoch"])
        head = [f"median epoch, {unit}", *parts]
        rows = [
            [str(row["backend"]), *(number(row[each] * scale) for each in parts)]
            for _, row in chart.data.iterrows()
        ]
    elif drawing.chart == "cdf":
        head = [chart.label, *names]
        rows = [
            [f"{share} % at most", *(number(_quantile(chart, name, share)) for name in names)]
            for share in (10, 50, 90, 99)
        ]
    else:
        assert drawing.by is not None
        column = "speedup" if drawing.chart == "speedup" else "median"
        head = [f"{drawing.by.rpartition('.')[2].replace('_', ' ')}", *names]
        rows = []
        for value, group in chart.data.groupby(drawing.by, sort=False):
            group = group.set_index("backend")
            shown = format_size(int(value)) if drawing.by.endswith("bytes") else str(value)
            rows.append([shown, *(_cell(group, name, column) for name in names)])
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    if drawing.chart in ("cdf", "breakdown"):
        return lines
    return [f"{chart.label}: medians, and from the smallest trial to the largest.", "", *lines]


def _cell(group: pd.DataFrame, name: str, column: str) -> str:
    if name not in group.index:
        return "-"
    row = group.loc[name]
    if row["low"] == row["high"]:
        return number(row[column])
    return f"{number(row[column])} ({number(row['low'])} to {number(row['high'])})"


def _quantile(chart: Chart, name: str, share: int) -> float:
    rows = chart.data[chart.data["backend"] == name]
    values = rows.iloc[:, 2]
    return float(values[rows["share"] >= share / 100].iloc[0])


def says_of(drawing: Drawing, chart: Chart) -> str:
    """Return what a figure shows, in one sentence."""
    if drawing.chart == "breakdown":
        scale, unit = scale_of(chart.data["epoch"])
        times = zip(chart.data["backend"], chart.data["epoch"] * scale, strict=True)
        return f"{drawing.title} ({unit}): " + ", ".join(f"{n} {number(t)}" for n, t in times) + "."
    words = []
    for name in dict.fromkeys(chart.data["backend"]):
        rows = chart.data[chart.data["backend"] == name]
        if drawing.chart == "cdf":
            median, late = (_quantile(chart, name, share) for share in (50, 99))
            words.append(f"{name} {number(median)} (median) and {number(late)} (99 %)")
            continue
        values = rows["speedup" if drawing.chart == "speedup" else "median"]
        if name == drawing.baseline:
            continue
        low, high = (number(value) for value in (values.min(), values.max()))
        words.append(f"{name} {low}" if low == high else f"{name} {low} to {high}")
    return f"{drawing.title} ({chart.label}): {', '.join(words)}."
