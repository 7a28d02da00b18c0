"""``report.html``: one file that opens on its own, made by ``.venv/bin/python -m analysis.report
DIR``.
"""

import argparse
import base64
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from analysis import cpu_time, narrative, summary
from analysis.bench import alone
from analysis.communication import CLOCK, CPU, Piece, clock_pieces, cpu_pieces
from analysis.epochs import medians_of
from analysis.figures import Plot, draw_all
from analysis.style import number, scale_of
from analysis.workload import report_of, workload_of
from testbed.core.errors import TestbedError, limit_reached
from testbed.core.medians import Comparison, Median, compare, fastest
from testbed.results import Run, RunFolder, load_run

__all__ = ["Grid", "against", "certainty", "make_report", "number", "picture", "template", "timed"]

ROOT = Path(__file__).resolve().parents[1]


def make_report(path: Path, place: Path | None = None) -> tuple[Path, list[summary.Check]]:
    """Draw the figures and write the report of a run.

    :param path: The run's folder; `place`: where it will be, if that is elsewhere.
    :returns: The report's path, and the tolerance checks, passed and failed.
    :raises SpecError: The folder holds no finished run, or cannot be written.
    """
    run = load_run(path, finished=False)
    plots = {plot.name: plot for plot in draw_all(run)}
    found = summary.checks(run) if run.finished else []
    sentences = narrative.answer(run)
    caveats = [each for each in sentences if each.startswith("Caution")]
    headline, *reasons = [each for each in sentences if each not in caveats]
    html = template("report").render(
        run=run,
        manifest=run.manifest,
        scenario=run.manifest["scenario"],
        headline=headline,
        reasons=reasons,
        caveats=caveats,
        unfinished=None if run.finished else unfinished(run),
        offloads=narrative.offloads(run),
        simulated=narrative.simulation_of(run),
        again=again(place or path),
        plots=plots,
        report=report_of(run),
        carried=carried(run.manifest["scenario"][workload_of(run).table]),
        about=report_of(run).about(run),
        checks=found,
        failed=sum(not check.passed for check in found),
        baseline=summary.baseline(run),
        faults=summary.faults_fired(run),
        events=summary.events(run),
        resent=not run.manifest["scenario"]["faults"]
        and bool(run.metric("retransmissions")["value"].any()),
        facts=facts(run),
        alone=alone(run.path),
        next_steps=narrative.next_steps(run),
        command=shlex.join(run.manifest["command"]) or "testbed run SCENARIO.toml",
        **tables(run),
    )
    report = RunFolder.existing(path).write(
        "report.html", lambda place: place.write_text(html, encoding="utf-8")
    )
    return report, found


def carried(table: Mapping[str, Any]) -> str:
    """Say as what values travel in the kernel, by the keys of a scenario's table."""
    lanes = f"{table['lanes']} lanes in the kernel"
    if table.get("broadcast") != "tokens":
        return lanes
    rows = f"rows of {table['dtype']} by tokens, added by the {table['aggregate']}"
    if table.get("halo") == "cover":
        rows = f"a cover's {rows}"
    if table.get("bound") is not None:
        rows += f", sent again past a bound of {table['bound']:g}"
    return f"{rows}; {lanes} for gradients"


def template(name: str) -> jinja2.Template:
    """Return a page's template."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals["figure"] = embed
    return environment.get_template(f"{name}.html.j2")


def again(path: Path) -> str:
    """Return the command that recreates the report from the repository's root, where a relative
    path is still valid.
    """
    place = path if Path.cwd() == ROOT else path.absolute()
    return f".venv/bin/python -m analysis.report {shlex.quote(str(place))}"


def embed(plot: Plot) -> Markup:
    """Return a figure as HTML with its picture inside."""
    data = picture(plot.title, plot.png.read_bytes())
    return Markup(
        f"<figure>{data}<figcaption><strong>{escape(plot.title)}.</strong>"
        f" {escape(plot.caption)}</figcaption></figure>"
    )


def picture(title: str, png: bytes) -> Markup:
    """Return a picture as HTML that holds it."""
    data = base64.b64encode(png).decode()
    return Markup(f'<img alt="{escape(title)}" src="data:image/png;base64,{data}">')


@dataclass(frozen=True)
class Grid:
    """A table with a column per backend, so that it fits a narrow page.

    :param rows: Pairs of a label and a text per column.
    :param meanings: What labels mean, for those that need it.
    :raises ValueError: A row has more or fewer texts than there are columns.
    """

    columns: list[str]
    rows: list[tuple[str, list[str]]]
    meanings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for label, texts in self.rows:
            if len(texts) != len(self.columns):
                raise ValueError(f"row {label}: {len(texts)} texts for {len(self.columns)} columns")


def unfinished(run: Run) -> str:
    """Say that a run has ended early."""
    text = f"Caution: this run did not finish (its status is {run.manifest['status']}), and so"
    error = run.manifest.get("error")
    return f"{text} shows what was measured until then{f': {error}' if error else ''}."


def timed(
    label: str, values: "pd.Series[float]", scale: tuple[float, str]
) -> tuple[str, list[str]]:
    """Return a row of times in the table's unit."""
    factor, unit = scale
    return f"{label}, {unit}", [number(value * factor) for value in values]


def tables(run: Run) -> dict[str, Any]:
    """Return the report's tables. Times of a table have one unit, chosen by the largest."""
    split = summary.epoch_split(run)
    names = [str(name) for name in split.index]
    epochs = medians_of(run, "epoch_time")
    base = summary.baseline(run) or fastest(epochs)[0]
    steps = run.metric("steps").groupby("backend")["value"].mean().reindex(split.index)
    report = report_of(run)
    scale = scale_of(split["epoch"])
    rows = [timed(part.replace("_", "-"), split[part], scale) for part in report.parts]
    rows += [timed("epoch", split["epoch"], scale)]
    rows += certainty(epochs, scale)
    rows.append((f"against {base}", against(epochs, base)))
    own = {
        name: medians_of(run, f"{name}_time")
        for name in ("communication", "straggler", "exchange", "communication_cpu")
    }
    values = {
        name: pd.Series({each: median.value for each, median in found.items()})
        for name, found in own.items()
    }
    inside = scale_of(values["communication"])
    reduce = [
        timed(report.noun, values["communication"], inside),
        *certainty(own["communication"], inside),
        (
            "share of the epoch",
            [f"{each.value:.0%}" for each in medians_of(run, "communication_share").values()],
        ),
        (f"against {base}", against(own["communication"], base)),
        timed("until the last rank came", values["straggler"], inside),
        timed("exchange: the rest", values["exchange"], inside),
        (f"exchange against {base}", against(own["exchange"], base)),
        (
            f"exchange {report.every}",
            [narrative.duration(each) for each in values["exchange"] / steps],
        ),
        timed("CPU time of ranks", values["communication_cpu"], inside),
    ]
    overheads = cpu_time.overheads(run)
    counted = summary.counted(run)
    return {
        "split": Grid(names, rows),
        "reduce": Grid(names, reduce),
        "clock": piece_grid(clock_pieces(run), CLOCK),
        "cpu": cpu_grid(run, overheads),
        "disturbed": any(each.known and each.low > 1.05 for each in overheads.values()),
        "counted": Grid(
            [str(name) for name in counted.index],
            [
                (str(key).replace("_", " "), [count(value) for value in counted[key]])
                for key in counted
            ],
        ),
        "crossings": "crossings" in counted,
        "learned": learned(run),
    }


def certainty(
    medians: Mapping[str, Median], scale: tuple[float, str]
) -> list[tuple[str, list[str]]]:
    """Return rows of how far medians can be trusted, in a table's unit."""
    factor, unit = scale
    ends = [
        f"{number(each.low * factor)} to {number(each.high * factor)}" if each.known else "unknown"
        for each in medians.values()
    ]
    return [
        (f"95 % within, {unit}", ends),
        ("median of", [str(each.count) for each in medians.values()]),
    ]


def against(medians: Mapping[str, Median], base: str) -> list[str]:
    """Return how many times as fast each backend is as one of them."""
    found = {name: compare(each, medians[base]) for name, each in medians.items()}
    return [
        f"{how.ratio:.2f}×{' (tie)' if how.tie and name != base else ''}"
        for name, how in found.items()
    ]


def count(value: float) -> str:
    """Write a count; a backend need not have it."""
    return "none" if value != value else f"{value:,.0f}"


def piece_grid(table: pd.DataFrame, pieces: Mapping[str, Piece]) -> Grid:
    """Return a row for each piece of communication: its time, and its share of the whole."""
    wholes = table.sum(axis=1)
    scale, unit = scale_of(wholes)
    rows, meanings = [], {}
    for name in table.columns:
        piece = pieces.get(name) or Piece(str(name).replace("_", "-"), "", "")
        label = f"{piece.title}, {unit}"
        texts = [
            f"{number(value * scale)} ({value / whole:.0%})" if value else "0"
            for value, whole in zip(table[name], wholes, strict=True)
        ]
        rows.append((label, texts))
        meanings[label] = piece.meaning
    rows.append(timed("together", wholes, (scale, unit)))
    return Grid([str(name) for name in table.index], rows, meanings)


def cpu_grid(run: Run, overheads: Mapping[str, Comparison]) -> Grid:
    """Return the pieces of the CPU time in communication, how many samples tell it, and what
    telemetry itself costs; without rows if there is no telemetry.
    """
    shares = cpu_time.network_shares(run)
    if shares.empty:
        return Grid([], [])
    grid = piece_grid(cpu_pieces(run), CPU)
    found = [overheads.get(name) for name in grid.columns]
    wakeups = cpu_time.wakeups(run).reindex(grid.columns)
    more = [
        ("in softirq", [f"{value:.0%}" for value in shares["softirq"]]),
        ("samples", [count(value) for value in shares["samples"]]),
        ("wake-ups", [count(value) for value in wakeups["number"]]),
        (
            "a wake-up took",
            [narrative.duration(value) if value == value else "none" for value in wakeups["mean"]],
        ),
        ("telemetry's overhead", ["none" if each is None else overhead(each) for each in found]),
    ]
    meanings = {
        "in softirq": "what the kernel does on arrival of frames; part of the above",
        "wake-ups": "of a rank's host in a whole epoch, counted in other epochs",
        "a wake-up took": "from being woken up until running, mean",
        "telemetry's overhead": "median epoch with samples against that without",
    }
    return Grid(grid.columns, [*grid.rows, *more], {**grid.meanings, **meanings})


def overhead(found: Comparison) -> str:
    """Write by what share epochs with telemetry take longer."""
    if not found.known:
        return "unknown: one epoch"
    low, high = (100 * (each - 1) for each in (found.low, found.high))
    return f"{100 * (found.ratio - 1):+.1f} % ({low:+.0f} to {high:+.0f} %)"


def learned(run: Run) -> list[dict[str, Any]]:
    """Return the results of each backend's model; empty for a workload that does not train."""
    loss, validation = summary.curve(run, "loss"), summary.curve(run, "validation_accuracy")
    test = summary.test_accuracy(run)
    if loss.empty:
        return []

    def last(table: pd.DataFrame, name: str) -> float:
        epochs = table.index.get_level_values("epoch")
        return float(table.loc[epochs == epochs.max(), name].mean())

    return [
        {
            "backend": name,
            "loss": f"{last(loss, name):.4f}",
            "validation": percent(last(validation, name)),
            "test": percent(float(test[name].mean())),
        }
        for name in run.backends
    ]


def percent(value: float) -> str:
    """Write a share; of nothing there is none."""
    return "none" if value != value else f"{100 * value:.2f} %"


def facts(run: Run) -> list[tuple[str, str]]:
    """Return the environment of a run as rows of key and value."""
    manifest = run.manifest
    data = manifest.get("dataset")
    return [
        ("status", manifest["status"]),
        ("started", f"{manifest['started']}{lasted(manifest)}"),
        ("seed", str(manifest["seed"])),
        *([("data set", data_set(data))] if data else []),
        *([("hardware", hardware["source"])] if (hardware := manifest.get("hardware")) else []),
        ("plan", manifest["plan_hash"]),
        ("commit", manifest["git_commit"] or "no checkout"),
        ("kernel", manifest["kernel"]),
        (
            "processor",
            f"{manifest['cpus']} × {manifest['cpu']}, {manifest['memory_bytes'] / 2**30:.1f} GiB",
        ),
        ("load", load_of(manifest)),
        (
            "versions",
            ", ".join(f"{name} {version}" for name, version in manifest["versions"].items()),
        ),
    ]


def lasted(manifest: Mapping[str, Any]) -> str:
    """Say how long a run took; one that was killed does not tell."""
    seconds = manifest.get("seconds")
    return "" if seconds is None else f", {seconds:.0f} s"


def load_of(manifest: Mapping[str, Any]) -> str:
    """Say how busy the machine was; runs of earlier versions have the load average only."""
    average = f"load average {manifest['load_average']:.2f}"
    busy = manifest.get("busy")
    share = "" if busy is None else f"{busy:.0%} of the processors' time was taken; "
    return f"when the run began: {share}{average}"


def data_set(data: dict[str, Any]) -> str:
    """Describe a data set."""
    return (
        f"{data['name']}: {data['vertices']:,} vertices, {data['edges']:,} edges, "
        f"{data['classes']} classes, {data['features']} features; {data['train']:,} / "
        f"{data['val']:,} / {data['test']:,} for training, validation, test"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Recreate a report; the exit status is 1 if a tolerance is exceeded or there is no run."""
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description=__doc__)
    parser.add_argument("directory", metavar="DIR", type=Path, help="a run's folder")
    options = parser.parse_args(arguments)
    try:
        report, found = make_report(options.directory)
    except Exception as error:
        text = str(error) if isinstance(error, TestbedError) else limit_reached(error)
        if not text:
            raise
        print(f"error: {text}", file=sys.stderr)
        return 1
    print(report)
    return 0 if all(check.passed for check in found) else 1


if __name__ == "__main__":
    sys.exit(main())
