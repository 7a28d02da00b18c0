"""``testbed trace``: flame graphs of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli import options

if TYPE_CHECKING:
    import pandas as pd

EPILOG = options.examples(
    "sudo testbed run scenarios/ddp_debian.toml --telemetry --out runs/demo",
    "testbed trace runs/demo --flame demo.svg",
    "testbed trace runs/demo --flame h1.svg --nodes h1 --backends xdp-ring --inside",
    "testbed trace runs/demo --folded demo.txt   [dim]for other tools[/dim]",
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=EPILOG)(trace)


def trace(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run with telemetry.")],
    flame: Annotated[
        Path | None,
        typer.Option(
            metavar="SVG",
            dir_okay=False,
            callback=options.streamable,
            help="Draw flame graphs, one for each host and switch; any browser shows the file.",
        ),
    ] = None,
    folded: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            callback=options.streamable,
            help="Write the stacks as text: functions from the outermost on, and samples.",
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: hosts, switches, or machine for the rest.",
            show_default="all hosts and switches",
        ),
    ] = None,
    backends: Annotated[
        str | None, typer.Option(help="Comma-separated.", show_default="all")
    ] = None,
    inside: Annotated[
        bool, typer.Option("--inside", help="Only what was inside collectives.")
    ] = False,
    verbose: options.Verbose = 0,
) -> None:
    """Draw where the CPU time of a run went, function by function, for each host and switch.

    The run must have been measured with telemetry. Work in softirq is that of the host that it was
    done for.
    """
    from testbed.core.errors import SpecError
    from testbed.results import load_run, load_stacks
    from testbed.telemetry.profile import MACHINE

    if flame is None and folded is None:
        raise SpecError("--flame: is missing: must name the SVG to write; or give --folded")
    found, stacks = load_run(run), load_stacks(run)
    stacks = chosen(stacks, "backend", backends, "--backends")
    if nodes is None:
        stacks = stacks[stacks["node"] != MACHINE]
    stacks = chosen(stacks, "node", nodes, "--nodes")
    if not stacks["inside" if inside else "samples"].any():
        raise SpecError(f"{run}: has no samples of what was chosen")

    from analysis import flame as graphs

    if flame is not None:
        options.write_text(graphs.flame_graph(found, stacks, inside), flame, "--flame")
        typer.echo(f"flame graphs: {flame}", err=options.STDOUT in (flame, folded))
    if folded is not None:
        lines = "".join(f"{line}\n" for line in graphs.folded_lines(stacks, inside))
        options.write_text(lines, folded, "--folded")
        typer.echo(f"stacks: {folded}", err=options.STDOUT in (flame, folded))


def chosen(stacks: pd.DataFrame, column: str, text: str | None, flag: str) -> pd.DataFrame:
    """Return the rows whose column has one of the names in a comma-separated text; None: all.

    :raises SpecError: There is no row with a name.
    """
    from testbed.core.errors import SpecError

    if text is None:
        return stacks
    names = options.names_in(text)
    known = list(dict.fromkeys(stacks[column]))
    for name in names or [""]:
        if name not in known:
            raise SpecError(f"{flag}: {name!r}: must be one or more of {', '.join(known)}")
    return stacks[stacks[column].isin(names)]
