"""``testbed sweep``: a grid over the keys of a scenario or the options of a bench."""

import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli import options

if TYPE_CHECKING:
    from testbed.sweep import Player, Sweep

EPILOG = options.examples(
    "testbed sweep scenarios/sweeps/ranks.toml --dry-run",
    "sudo testbed sweep scenarios/sweeps/ranks.toml --out runs/ranks",
    "sudo testbed sweep scenarios/sweeps/ranks.toml --out runs/ranks   [dim]goes on[/dim]",
    after=(
        "Exit status 1 if a trial has failed. docs/sweeps.md explains the file and the results."
    ),
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=EPILOG)(sweep)


def sweep(
    path: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="Sweep file.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Folder of the sweep; one with finished trials is gone on with.",
            show_default="runs/SWEEP-TIME",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the grid and the estimated time, and do nothing."),
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Run trials that failed again.")] = False,
    json: options.JsonFlag = False,
    verbose: options.Verbose = 0,
) -> None:
    """Run a scenario or a bench for every combination of values in a grid.

    Trials run one after another, in random order. A trial that is finished is never run again,
    however the sweep has ended; one that fails is recorded, and the sweep goes on.
    """
    from testbed.sweep import Ledger, load_sweep, play
    from testbed.sweep.grid import order
    from testbed.sweep.player import facts_of, gather, remaining

    command = ["testbed", "sweep", str(path)]
    loaded = load_sweep(path)
    player = player_of(loaded, command)
    for cell in loaded.cells:
        player.check(cell)
    facts = facts_of(loaded, player)
    out = out or Path("runs") / f"{loaded.table.name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    if dry_run:
        done = Ledger.read(out, facts)
        ledger = Ledger(out, facts)
        ledger.done = done
        pending = ledger.pending(order(loaded.cells, loaded.table.trials, 0), retry)
        show_plan(loaded, len(pending), remaining(player, pending, done), bool(done), json)
        return

    from testbed.host.rights import require_root

    require_root()
    say = lambda text: None if json else typer.echo(text, err=True)  # noqa: E731
    with Ledger(out, facts) as ledger:
        try:
            play(loaded, player, ledger, say, retry)
        except (KeyboardInterrupt, SystemExit):  # from a signal; the exit status says which
            gather(loaded, player, ledger)
            typer.echo(f"error: interrupted; the same command with --out {out} goes on", err=True)
            raise
        results = gather(loaded, player, ledger)
        failed = {name: end.error for name, end in ledger.done.items() if end.error is not None}
        summary = {
            "out": str(out),
            "results": str(results),
            "trials": len(ledger.done),
            "failed": failed,
        }
    if json:
        options.Results(json).write(summary)
    else:
        for name, error in failed.items():
            typer.echo(f"trial {name} failed: {(error or '').splitlines()[0]}")
        sys.stdout.flush()
        typer.echo(f"results: {results}")
    if failed:
        raise typer.Exit(1)


def player_of(loaded: "Sweep", command: list[str]) -> "Player":
    """Return what runs a sweep's trials."""
    if loaded.table.scenario is not None:
        from testbed.sweep.scenario_trials import ScenarioTrials

        return ScenarioTrials(loaded, command)

    from testbed.cli.bench_trials import BenchTrials

    return BenchTrials(loaded)


def show_plan(loaded: "Sweep", pending: int, seconds: float, timed: bool, json: bool) -> None:
    """Print the grid, and how long it will take."""
    from testbed.sweep.player import clock

    every = len(loaded.cells) * loaded.table.trials
    if json:
        plan: dict[str, Any] = {
            "name": loaded.table.name,
            "cells": [dict(cell.values) for cell in loaded.cells],
            "trials_a_cell": loaded.table.trials,
            "trials": every,
            "pending": pending,
            "seconds": round(seconds),
            "guessed": not timed,
        }
        options.Results(json).write(plan)
        return
    for key, values in loaded.grid.items():
        typer.echo(f"{key}: {', '.join(map(str, values))}")
    typer.echo(
        f"{len(loaded.cells)} cells, {loaded.table.trials} trials of each, {every} in all;"
        f" {every - pending} done"
    )
    basis = "by the trials that are done" if timed else "a guess: no trial has been timed yet"
    typer.echo(f"time left: {clock(seconds)} ({basis})")
