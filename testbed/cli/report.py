"""``testbed report``: a run's report, or several runs side by side."""

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import options

EPILOG = options.examples(
    "testbed report runs/demo",
    "testbed report runs/mtu-1500 runs/mtu-9000 --out mtu.html",
    "testbed report runs/models --out models.html",
    after="docs/analysis.md says how to make figures of your own.",
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=EPILOG)(report)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Folders of runs; a sweep's stands for all of its runs."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            dir_okay=False,
            callback=options.writable,
            help="Where to write it: default comparison.html; of one run also there.",
        ),
    ] = None,
    json: options.JsonFlag = False,
    verbose: options.Verbose = 0,
) -> None:
    """Write the report of a run into its folder, or a comparison of several runs, or of a sweep's,
    into a file.

    The report of a run that was interrupted or failed shows what was measured until then. A
    comparison says in which keys the runs' scenarios differ, and compares epochs of runs that do
    the same work.
    """
    if len(runs) == 1 and not (runs[0] / "sweep.json").exists():
        from analysis.report import make_report

        made = make_report(runs[0])[0]
        if out:
            options.write_text(made.read_text(encoding="utf-8"), out, "--out")
            made = out
    else:
        from analysis.compare import compare

        made = compare(runs, out or Path("comparison.html"))
    if json:
        options.Results(json).write({"report": str(made)})
    else:
        typer.echo(f"report: {made}")
