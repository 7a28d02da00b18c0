"""``testbed clean``: remove what killed controllers left behind."""

import dataclasses
from pathlib import Path

import typer

from testbed.cli import options
from testbed.core.errors import FabricError


class FabricsLeft(FabricError):
    """Some runs were not removed; one line each."""

    a_line_each = True


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=options.examples("sudo testbed clean", "sudo testbed clean --json"))(clean)


def clean(
    verbose: options.Verbose = 0,
    json: options.JsonFlag = False,
    out: options.Out = None,
) -> None:
    """Remove what runs with killed controllers left behind, list it, and touch nothing else.

    State files in /run/testbed say what belongs to a run. Runs that are up stay up. Results stay,
    too: where a run was writing into DIR or DIR.partial, its name is printed, and its manifest says
    from then on that the run was killed. The exit status is 1 if a state file cannot be read.
    """
    from testbed.fabric.clean import clean as remove
    from testbed.host.rights import require_root
    from testbed.results import settle

    require_root()
    removed = remove()
    for left in removed:
        if left.results:
            settle(Path(left.results))
    options.Results(json, out).write([dataclasses.asdict(left) for left in removed])
    if not json:
        for left in removed:
            for process in left.processes:
                typer.echo(f"run {left.run_id}: killed {process}")
            for file in left.files:
                typer.echo(f"run {left.run_id}: removed {file}")
            if left.results:
                typer.echo(f"run {left.run_id}: what it has written stays in {left.results}")
        if not removed:
            typer.echo("nothing to clean")
    if errors := [f"run {left.run_id}: left alone: {left.error}" for left in removed if left.error]:
        raise FabricsLeft("\n".join(errors))
