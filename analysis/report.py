"""``report.html``: one file that opens on its own, made by ``.venv/bin/python -m analysis.report
DIR``.
"""

import argparse
import base64
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from analysis import cpu_time, narrative, summary
from analysis.bench import alone
from analysis.figures import Plot, draw_all
from analysis.workload import report_of, workload_of
from testbed.core.errors import TestbedError, limit_reached
from testbed.results import Run, RunFolder, load_run

__all__ = ["make_report"]

ROOT = Path(__file__).resolve().parents[1]


def make_report(path: Path, place: Path | None = None) -> tuple[Path, list[summary.Check]]:
    """Draw the figures and write the report of a run.

    :param path: The run's folder; `place`: where it will be, if that is elsewhere.
    :returns: The report's path, and the tolerance checks, passed and failed.
    :raises SpecError: The folder holds no finished run, or cannot be written.
    """
    run = load_run(path)
    plots = {plot.name: plot for plot in draw_all(run)}
    found = summary.checks(run)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals["figure"] = embed
    html = environment.get_template("report.html.j2").render(
        run=run,
        manifest=run.manifest,
        scenario=run.manifest["scenario"],
        answer=narrative.answer(run),
        offloads=narrative.offloads(run),
        again=again(place or path),
        plots=plots,
        report=report_of(run),
        lanes=run.manifest["scenario"][workload_of(run).table]["lanes"],
        about=report_of(run).about(run),
        checks=found,
        failed=sum(not check.passed for check in found),
        baseline=summary.baseline(run),
        faults=summary.faults_fired(run),
        events=summary.events(run),
        facts=facts(run),
        alone=alone(run.path),
        next_steps=narrative.next_steps(run),
        command=shlex.join(run.manifest["command"]) or "testbed run SCENARIO.toml",
        **tables(run),
    )
    report = RunFolder.existing(path).write("report.html", lambda place: place.write_text(html))
    return report, found


def again(path: Path) -> str:
    """Return the command that recreates the report from the repository's root, where a relative
    path is still valid.
    """
    place = path if Path.cwd() == ROOT else path.absolute()
    return f".venv/bin/python -m analysis.report {shlex.quote(str(place))}"


def embed(plot: Plot) -> Markup:
    """Return a figure as HTML with its picture inside."""
    data = base64.b64encode(plot.png.read_bytes()).decode()
    return Markup(
        f'<figure><img alt="{escape(plot.title)}"'
        f' src="data:image/png;base64,{data}"><figcaption><strong>{escape(plot.title)}.</strong>'
        f" {escape(plot.caption)}</figcaption></figure>"
    )


def tables(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the report's tables."""
    split = summary.epoch_split(run)
    base = summary.baseline(run) or str(split["epoch"].idxmin())
    steps = run.metric("steps").groupby("backend")["value"].mean()
    return {
        "split": [
            {
                "backend": name,
                "parts": [row[part] for part in report_of(run).parts],
                **{key: row[key] for key in ("epoch", "fastest", "slowest")},
                "ratio": split.loc[base, "epoch"] / row["epoch"],
                "best": row["epoch"] == split["epoch"].min(),
            }
            for name, row in split.iterrows()
        ],
        "reduce": [
            {
                "backend": name,
                **{key: row[key] for key in ("communication", "straggler", "exchange", "cpu")},
                "share": row["communication"] / row["epoch"],
                "step": narrative.duration(row["exchange"] / steps[name]),
                "ratio": split.loc[base, "exchange"] / row["exchange"],
                "best": row["exchange"] == split["exchange"].min(),
            }
            for name, row in split.iterrows()
        ],
        "shares": [
            {"backend": name, **row, "overhead": cpu_time.overheads(run).get(str(name))}
            for name, row in cpu_time.network_shares(run).iterrows()
        ],
        "counted": [{"backend": name, **row} for name, row in summary.counted(run).iterrows()],
        "learned": learned(run),
    }


def learned(run: Run) -> list[dict[str, Any]]:
    """Return the results of each backend's model; empty for a workload that does not train."""
    loss, validation = summary.curve(run, "loss"), summary.curve(run, "validation_accuracy")
    test = summary.test_accuracy(run)
    if loss.empty:
        return []
    last = loss.index.get_level_values("epoch") == loss.index.get_level_values("epoch").max()
    return [
        {
            "backend": name,
            "loss": loss.loc[last, name].mean(),
            "validation": validation.loc[last, name].mean(),
            "test": test[name].mean(),
        }
        for name in run.backends
    ]


def facts(run: Run) -> list[tuple[str, str]]:
    """Return the environment of a run as rows of key and value."""
    manifest = run.manifest
    data = manifest.get("dataset")
    return [
        ("status", manifest["status"]),
        ("started", f"{manifest['started']}, {manifest['seconds']:.0f} s"),
        ("seed", str(manifest["seed"])),
        *([("data set", data_set(data))] if data else []),
        ("plan", manifest["plan_hash"]),
        ("commit", manifest["git_commit"] or "no checkout"),
        ("kernel", manifest["kernel"]),
        (
            "processor",
            f"{manifest['cpus']} × {manifest['cpu']}, {manifest['memory_bytes'] / 2**30:.1f} GiB",
        ),
        ("load average", f"{manifest['load_average']:.2f} when the run began"),
        (
            "versions",
            ", ".join(f"{name} {version}" for name, version in manifest["versions"].items()),
        ),
    ]


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
