"""``testbed rerun``: an archived run, once more."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli import options
from testbed.cli.run import Out, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.comparison import Result

EPILOG = options.examples(
    "sudo testbed rerun demo.tar.xz",
    "sudo testbed rerun demo.tar.xz --out runs/again --set dataset.path=data/planetoid",
    "testbed rerun demo.tar.xz --dry-run   [dim]only what differs of machine and kernel[/dim]",
    after="Exit status 1 if a loss or accuracy differs by more than the scenario's tolerance.",
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=EPILOG)(rerun)


def rerun(
    archive: Annotated[
        Path, typer.Argument(metavar="ARCHIVE", help="What `testbed archive` has written.")
    ],
    settings: Settings = None,
    out: Out = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Replace a previous run in DIR once this one is complete."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what differs, and run nothing.")
    ] = False,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Allow a scenario that names code or programs to load."),
    ] = False,
    json: options.JsonFlag = False,
    verbose: options.Verbose = 0,
) -> None:
    """Repeat an archived run with the same scenario and seed; say what differs of machine, kernel
    and versions, and compare the results.

    An archive may come from anywhere: nothing in it is executed or written to disk.
    """
    from testbed.results.archive import read_archive
    from testbed.run.runner import plan_of
    from testbed.scenario.foreign import foreign_scenario

    found = read_archive(archive)
    scenario = foreign_scenario(found.run.manifest["scenario"], settings or (), str(archive), trust)

    from analysis.comparison import differences, results
    from testbed.cli.run import default_folder, play
    from testbed.host.rights import require_root
    from testbed.results import digest, environment, load_run
    from testbed.run import check

    check(scenario)
    say = options.Results(json)
    if dry_run:
        now = {
            **environment(),
            "scenario": scenario.model_dump(mode="json"),
            "seed": scenario.scenario.seed,
            "plan_hash": digest(plan_of(scenario).to_dict()),
        }
        tell(say, list(differences(found.run.manifest, now)), [], None)
        return
    if not scenario.simulated:
        require_root()
    out = out or default_folder(scenario)
    command = ["testbed", "rerun", str(archive)]
    for setting in settings or ():
        command += ["--set", setting]
    play(scenario, out, overwrite, json, command)
    again = load_run(out)
    compared = list(results(found.run, again))
    tell(say, list(differences(found.run.manifest, again.manifest)), compared, out)
    if not all(each.passed for each in compared):
        raise typer.Exit(1)


def number(value: float) -> float | None:
    """Return a number as JSON has it, which has no NaN and no infinity."""
    return value if math.isfinite(value) else None


def tell(
    say: options.Results,
    differ: Sequence[tuple[str, str, str]],
    compared: Sequence[Result],
    out: Path | None,
) -> None:
    """Print what differs."""
    say.write(
        {
            "out": None if out is None else str(out),
            "differs": [{"what": what, "then": then, "now": now} for what, then, now in differ],
            "results": [
                {**vars(each), "then": number(each.then), "now": number(each.now)}
                | {"passed": each.passed}
                for each in compared
            ],
        }
    )
    if say.json:
        return
    say.say("What differs:" if differ else "Machine, kernel, versions and scenario are the same.")
    for what, then, now in differ:
        say.say(f"  {what}: {then} -> {now}")
    if compared:
        say.say("Results:")
    for each in compared:
        verdict = "" if each.allowed is None else ("  pass" if each.passed else "  FAIL")
        ratio = f"  {each.now / each.then:.3g}x" if each.then and each.allowed is None else ""
        allowed = "" if each.allowed is None else f", allowed {each.allowed:g}"
        say.say(
            f"  {each.backend:<10} {each.what:<22} {each.then:.5g} -> {each.now:.5g} {each.unit}"
            f"{ratio}{verdict}{allowed}"
        )
    if out is not None:
        say.say(f"results are in {out}")
