"""``testbed status``: the runs on this machine."""

from typing import TYPE_CHECKING, Any

import typer

from testbed.cli import options

if TYPE_CHECKING:
    from testbed.fabric.runs import Run

HEADINGS = ("run", "state", "topology", "hosts", "switch", "mtu", "offload", "age", "controller")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=options.examples("sudo testbed status", "sudo testbed status --json"))(
        status
    )


def status(
    verbose: options.Verbose = 0,
    json: options.JsonFlag = False,
    out: options.Out = None,
) -> None:
    """List the runs on this machine: those that are up, those whose controller has died, and those
    that failed.

    A failed run is already down; its error is shown until testbed clean.
    """
    from testbed.fabric.runs import failures, runs

    found, failed = runs(), failures()
    ended = [
        {"run": failure.run_id, "state": "failed", "error": failure.error} for failure in failed
    ]
    options.Results(json, out).write([*map(as_dict, found), *ended])
    if json:
        return
    if found:
        rows = [HEADINGS, *map(cells, found)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            typer.echo(
                "  ".join(
                    cell.ljust(width) for cell, width in zip(row, widths, strict=True)
                ).rstrip()
            )
    for run in found:
        if not run.alive and run.state.results:
            typer.echo(
                f"run {run.run_id} was killed; what it has written is in {run.state.results}"
            )
    for failure in failed:
        typer.echo(f"run {failure.run_id} failed: {failure.headline}")
    if not found and not failed:
        typer.echo("no run is up")


def as_dict(run: "Run") -> dict[str, Any]:
    """Return what is known about a run, for programs."""
    plan = run.plan
    return {
        "run": run.run_id,
        "state": "up" if run.alive else "dead",
        "topology": plan.topology,
        "hosts": len(plan.hosts),
        "switch": plan.switch_kind,
        "mtu": plan.mtu,
        "offload": plan.offload,
        "queues": plan.queues,
        "age": round(run.age, 1),
        "controller": run.state.controller.pid,
        "results": run.state.results,
        "addresses": {host.name: host.ip for host in plan.hosts},
    }


def cells(run: "Run") -> tuple[str, ...]:
    """Return a run's line of the table; no cell is cut off, however long."""
    row = as_dict(run)
    minutes, seconds = divmod(int(run.age), 60)
    row["age"] = f"{minutes}:{seconds:02}"
    row["state"] = "up" if run.alive else "dead (testbed clean)"
    row["offload"] = "on" if row["offload"] else "off"
    return tuple(str(row[heading]) for heading in HEADINGS)
