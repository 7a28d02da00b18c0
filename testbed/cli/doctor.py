"""``testbed doctor``: what this machine can do, and how to fix what is missing."""

import dataclasses
from typing import Annotated

import typer

from testbed.cli import options
from testbed.core.numbers import Real

COLOURS = {
    "OK": typer.colors.GREEN,
    "WARN": typer.colors.YELLOW,
    "FAIL": typer.colors.RED,
    "SLOW": typer.colors.MAGENTA,
}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=options.examples("sudo testbed doctor", "testbed doctor --json"))(doctor)


def doctor(
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            parser=options.number(Real(1, 86_400)),
            help="Time limit of each command that a probe runs; 1 to 86400.",
        ),
    ] = 60,
    verbose: options.Verbose = 0,
    json: options.JsonFlag = False,
    out: options.Out = None,
) -> None:
    """Try every capability that the testbed uses, and say how to fix what is missing.

    One line per capability: OK; WARN if something optional is missing; FAIL if the testbed cannot
    work without it; SLOW if trying it took too long, so that it is not known. The exit status is 1
    after a FAIL.
    """
    from testbed.probes import PROBES, Finding, findings

    width = max(map(len, PROBES))
    found: list[Finding] = []
    for finding in findings(timeout):
        found.append(finding)
        if not json:
            level = typer.style(f"{finding.level:4}", fg=COLOURS[finding.level], bold=True)
            remedy = f"; fix: {finding.remedy}" if finding.remedy else ""
            typer.echo(f"{level}  {finding.name:{width}}  {finding.detail}{remedy}")
    counts = {level: sum(finding.level == level for finding in found) for level in COLOURS}
    options.Results(json, out).write(
        {"findings": [dataclasses.asdict(finding) for finding in found], "counts": counts}
    )
    if not json:
        shown = [f"{count} {level}" for level, count in counts.items() if count or level != "SLOW"]
        typer.echo(", ".join(shown))
    if counts["FAIL"]:
        raise typer.Exit(1)
