"""``testbed sweep``: a grid over the keys of a scenario or the options of a bench."""

import datetime
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli import options
from testbed.core.errors import SpecError, StorageError

if TYPE_CHECKING:
    from testbed.sweep import Place, Player, Sweep

MAX_WORKERS = 256

EPILOG = options.examples(
    "testbed sweep scenarios/sweeps/ranks.toml --dry-run",
    "sudo testbed sweep scenarios/sweeps/ranks.toml --out runs/ranks",
    "sudo testbed sweep scenarios/sweeps/ranks.toml --out runs/ranks   [dim]goes on[/dim]",
    "testbed sweep scenarios/sweeps/scale.toml --workers 2",
    "testbed sweep scenarios/sweeps/ranks.toml --scheduler tcp://10.0.0.1:8786",
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
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            parser=options.WHOLE,
            metavar="N",
            help="Processes that simulate trials side by side; 0: one trial after another, here.",
            show_default="one per CPU",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler",
            metavar="ADDRESS",
            help=(
                "Give the trials to the workers of this Dask scheduler; those that are emulated to"
                " workers with the resource testbed=1."
            ),
        ),
    ] = None,
    json: options.JsonFlag = False,
    verbose: options.Verbose = 0,
) -> None:
    """Run a scenario or a bench for every combination of values in a grid.

    Trials run in random order: emulated ones one after another, simulated ones side by side. A
    trial that is finished is never run again, however the sweep has ended; one that fails is
    recorded, and the sweep goes on.
    """
    from testbed.sweep import Ledger, load_sweep
    from testbed.sweep.grid import order
    from testbed.sweep.player import facts_of, left, remaining

    command = ["testbed", "sweep", str(path)]
    loaded = load_sweep(path)
    player = player_of(loaded, command)
    for cell in loaded.cells:
        player.check(cell)
    simulated = all(map(player.simulated, loaded.cells))
    workers = check_workers(workers, scheduler, simulated)
    facts = facts_of(loaded, player)
    out = out or Path("runs") / f"{loaded.table.name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    if dry_run:
        done = Ledger.read(out, facts)
        ledger = Ledger(out, facts)
        ledger.done = done
        every = order(loaded.cells, loaded.table.trials, 0)
        pending = left(player, ledger, every, lambda text: typer.echo(text, err=True), retry)
        show_plan(loaded, len(pending), remaining(player, pending, done), bool(done), json)
        return

    from testbed.host.rights import require_root

    if not (simulated or scheduler):
        require_root()
    say = lambda text: None if json else typer.echo(text, err=True)  # noqa: E731
    with place_of(workers, scheduler) as place:
        summary = run_sweep(loaded, player, out, say, retry, place)
    if json:
        options.Results(json).write(summary)
    else:
        for name, error in summary["failed"].items():
            typer.echo(f"trial {name} failed: {(error or '').splitlines()[0]}")
        sys.stdout.flush()
        typer.echo(f"results: {summary['results']}")
    if summary["failed"]:
        raise typer.Exit(1)


def run_sweep(
    loaded: "Sweep",
    player: "Player",
    out: Path,
    say: Callable[[str], None],
    retry: bool = False,
    place: "Place | None" = None,
) -> dict[str, Any]:
    """Run what is left of a sweep, and gather its results, also if it is interrupted.

    :param place: Where trials run; None: in this process, one after another.
    :returns: The folder, the results, the number of trials that have ended, and the errors of those
        that have failed.
    """
    from testbed.sweep import Ledger, play
    from testbed.sweep.player import facts_of, gather

    with Ledger(out, facts_of(loaded, player)) as ledger:
        try:
            play(loaded, player, ledger, say, retry, place)
        except (KeyboardInterrupt, SystemExit):  # from a signal; the exit status says which
            gather(loaded, player, ledger)
            typer.echo(f"error: interrupted; the same command with --out {out} goes on", err=True)
            raise
        except StorageError as error:
            error.also(f"the same command with --out {out} goes on")
            raise
        results = gather(loaded, player, ledger)
        failed = {name: end.error for name, end in ledger.done.items() if end.error is not None}
    return {
        "out": str(out),
        "results": str(results),
        "trials": len(ledger.done),
        "failed": failed,
    }


def check_workers(workers: int | None, scheduler: str | None, simulated: bool) -> int:
    """Return how many processes to start.

    :param simulated: Whether all trials are.
    :raises SpecError: There may be none, or not so many.
    """
    if workers is not None:
        if scheduler:
            raise SpecError("--workers: cannot be combined with --scheduler, which has its own")
        if not 0 <= workers <= MAX_WORKERS:
            raise SpecError(f"--workers {workers}: must be 0 to {MAX_WORKERS}")
        if workers and not simulated:
            raise SpecError(
                f"--workers {workers}: must be left out if trials are emulated, because these share"
                " this machine's kernel; --scheduler gives them to other machines"
            )
        return workers
    return (os.cpu_count() or 1) if simulated and not scheduler else 0


def place_of(workers: int, scheduler: str | None) -> "AbstractContextManager[Place | None]":
    """Return where trials run, to be entered."""
    if not (workers or scheduler):
        return nullcontext()
    from testbed.sweep.cluster import Cluster

    return Cluster(workers, scheduler)


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
