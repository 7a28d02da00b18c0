"""``testbed down``: end a run."""

from typing import Annotated

import typer

from testbed.cli import options


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        epilog=options.examples(
            "sudo testbed down", "sudo testbed down lab", "sudo testbed down --all"
        )
    )(down)


def down(
    run: Annotated[
        str | None, typer.Argument(help="The run; default: the only one that `testbed up` left.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="End all runs here, including benchmarks and scenarios.")
    ] = False,
    verbose: options.Verbose = 0,
    json: options.JsonFlag = False,
    out: options.Out = None,
) -> None:
    """End a run: its controller removes hosts, links and switches, and everything that runs in
    them.
    """
    from testbed.core.errors import SpecError
    from testbed.fabric.runs import find_run, runs

    if every and run is not None:
        raise SpecError(f"run: {run!r} and --all contradict each other")
    ended = [found for found in runs() if found.alive] if every else [find_run(run)]
    for found in ended:
        found.end()
        if not json:
            typer.echo(f"run {found.run_id} is down")
    options.Results(json, out).write({"down": [found.run_id for found in ended]})
    if not json and not ended:
        typer.echo("no run is up")
