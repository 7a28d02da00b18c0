"""``testbed paper``: measure again what the papers have measured, a part at a time."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli import options
from testbed.core.errors import SpecError

if TYPE_CHECKING:
    from analysis.paper import Part
    from testbed.sweep import Sweep

FOLDER = Path(__file__).resolve().parents[2] / "scenarios" / "paper"

EPILOG = options.examples(
    "testbed paper --dry-run",
    "sudo testbed paper erar-2 pinch-2",
    "sudo testbed paper erar-3 --trials 1",
    "testbed paper --draw",
    after="docs/sweeps.md explains the parts, and docs/results/ has the results.",
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=EPILOG)(paper)


def paper(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PART...]", help="Such as erar-1.", show_default="all"),
    ] = None,
    runs: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Folder of the sweeps; those with finished trials are gone on with."
        ),
    ] = Path("runs/paper"),
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of the results.")
    ] = Path("docs/results"),
    trials: Annotated[
        int | None,
        typer.Option(metavar="<int>", parser=options.WHOLE, help="Trials of each cell, 1 to 1000."),
    ] = None,
    draw: Annotated[
        bool, typer.Option("--draw", help="Run nothing: write what has been measured.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the parts and the estimated time.")
    ] = False,
    verbose: options.Verbose = 0,
) -> None:
    """Measure what the papers on eRAR and PINCH have measured, and write figures, tables and texts.

    Each part is one or more sweeps; what has been measured is never measured again.
    """
    from analysis.paper import draw_part, index, load_parts, progress

    if trials is not None and not 1 <= trials <= 1000:
        raise SpecError(f"--trials: {trials}: must be 1 to 1000")
    every = load_parts(FOLDER / "parts.toml")
    for name in names or ():
        if name not in every:
            raise SpecError(f"part {name}: must be {', '.join(every)}")
    parts = {name: part for name, part in every.items() if not names or name in names}
    sweeps = {each: sweep_of(each, trials) for part in parts.values() for each in part.sweeps}
    if dry_run:
        show_plan(parts, sweeps, runs)
        return
    if not draw:
        from testbed.host.rights import require_root

        require_root()
    out.mkdir(parents=True, exist_ok=True)
    failed = False
    for name, part in parts.items():
        if not draw:
            typer.echo(f"{name}: {part.title}", err=True)
            failed |= run_part(part, sweeps, runs)
        done = [progress(runs / each, len(sweeps[each].cells)) for each in part.sweeps]
        try:
            place = draw_part(name, part, {each: runs / each for each in part.sweeps}, done, out)
        except SpecError:
            if not draw or names:
                raise
            continue  # a part that has not been run
        typer.echo(f"results: {place}")
        index(every, out)
    if failed:
        raise typer.Exit(1)


def sweep_of(name: str, trials: int | None) -> "Sweep":
    """Read a sweep of a part.

    :param trials: Instead of its own number.
    """
    from testbed.sweep import load_sweep

    loaded = load_sweep(FOLDER / f"{name}.toml")
    if trials is None:
        return loaded
    return replace(loaded, table=loaded.table.model_copy(update={"trials": trials}))


def run_part(part: "Part", sweeps: dict[str, "Sweep"], runs: Path) -> bool:
    """Run what is left of a part's sweeps, and return whether a trial has failed."""
    from testbed.cli.sweep import player_of, run_sweep

    failed = False
    for name in part.sweeps:
        player = player_of(sweeps[name], ["testbed", "paper"])
        for cell in sweeps[name].cells:
            player.check(cell)
        say = lambda text: typer.echo(text, err=True)  # noqa: E731
        failed |= bool(run_sweep(sweeps[name], player, runs / name, say)["failed"])
    return failed


def show_plan(parts: dict[str, "Part"], sweeps: dict[str, "Sweep"], runs: Path) -> None:
    """Print each part with the time that it will take; sweeps that parts share count once."""
    from testbed.cli.sweep import player_of
    from testbed.sweep import Ledger
    from testbed.sweep.grid import order
    from testbed.sweep.player import clock, facts_of, remaining

    total, seen = 0.0, set[str]()
    for name, part in parts.items():
        seconds, count, pending = 0.0, 0, 0
        for each in part.sweeps:
            loaded = sweeps[each]
            player = player_of(loaded, ["testbed", "paper"])
            done = Ledger.read(runs / each, facts_of(loaded, player))
            trials = order(loaded.cells, loaded.table.trials, 0)
            left = [trial for trial in trials if trial.name not in done]
            count, pending = count + len(trials), pending + len(left)
            seconds += 0.0 if each in seen else remaining(player, left, done)
            seen.add(each)
        total += seconds
        typer.echo(f"{name:<9}{part.title}: {count - pending} of {count} trials, {clock(seconds)}")
    typer.echo(f"time left: {clock(total)}")
