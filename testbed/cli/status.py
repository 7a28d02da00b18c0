"""``testbed status``: the runs on this machine."""

from typing import Any

import typer

from testbed.cli import options


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=options.examples("sudo testbed status", "sudo testbed status --json"))(status)


def status(verbose: options.Verbose = 0, json: options.JsonFlag = False) -> None:
    """List the runs on this machine: those that are up, and those whose controller has died."""
    from testbed.fabric.runs import runs

    found = runs()
    if json:
        options.print_json([_as_dict(run) for run in found])
        return
    if not found:
        typer.echo("no run is up")
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("run", "state", "topology", "hosts", "switch", "mtu", "offload", "age", "controller"):
        table.add_column(heading, no_wrap=True)
    for run in found:
        row = _as_dict(run)
        minutes, seconds = divmod(int(run.age), 60)
        row["age"] = f"{minutes}:{seconds:02}"
        row["state"] = "up" if run.alive else "dead (testbed clean)"
        row["offload"] = "on" if row["offload"] else "off"
        table.add_row(*(str(row[str(column.header)]) for column in table.columns))
    Console().print(table)


def _as_dict(run: Any) -> dict[str, Any]:
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
        "addresses": {host.name: host.ip for host in plan.hosts},
    }
