"""``testbed top``: what a running fabric does."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli import options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from testbed.telemetry.live import Live, NodeRates

EPILOG = options.examples(
    "sudo testbed top",
    "sudo testbed top lab --interval 5",
    "sudo testbed top --once --json",
    after="Ctrl-C ends it. A run of another terminal, such as a bench, can be watched, too.",
)
SHORTEST, LONGEST = 0.2, 60.0  # seconds


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=EPILOG)(top)


def top(
    run: Annotated[
        str | None, typer.Argument(help="The run; default: the only one that is up.")
    ] = None,
    interval: Annotated[
        float,
        typer.Option(
            parser=options.REAL, help=f"Seconds between two tables, {SHORTEST:g} to {LONGEST:g}."
        ),
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table, and end.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead, a line for each interval.")
    ] = False,
    verbose: options.Verbose = 0,
) -> None:
    """Show where the CPU time of a running fabric goes, what its hosts send, and what is dropped.

    CPU time is in percent of one CPU: user space, the testbed's programs, the kernel's network
    stack, the rest of the kernel, what is not classified, and how much of all is in softirq; then
    the largest classes. docs/telemetry.md explains them.
    """
    from testbed.core.errors import SpecError
    from testbed.fabric.runs import find_run
    from testbed.telemetry.live import Live

    if not SHORTEST <= interval <= LONGEST:
        raise SpecError(f"--interval: {interval:g}: must be {SHORTEST:g} to {LONGEST:g} seconds")
    found = find_run(run, kept=False)
    with Live(found) as live:
        if live.missing:
            typer.echo(f"CPU time is not measured: {live.missing}", err=True)
        try:
            show(live, found.run_id, interval, once, json)
        except KeyboardInterrupt:
            return


def show(live: Live, run_id: str, interval: float, once: bool, json: bool) -> None:
    """Print tables, or keep one up to date on a terminal."""
    import json as encoder

    from rich.console import Console
    from rich.live import Live as Display

    console = Console(highlight=False)
    if json or once or not sys.stdout.isatty():
        while True:
            nodes = live.look(interval)
            if json:
                each = {"run": run_id, "nodes": [node.to_dict() for node in nodes]}
                typer.echo(encoder.dumps(each, allow_nan=False))
            else:
                console.print(table(run_id, nodes))
            if once:
                return
    with Display(console=console, auto_refresh=False) as display:
        while True:
            display.update(table(run_id, live.look(interval)), refresh=True)


def table(run_id: str, nodes: Sequence[NodeRates]) -> Table:
    """Return the table of all nodes."""
    from rich import box
    from rich.table import Table

    from testbed.telemetry.classify import UNCLASSIFIED
    from testbed.telemetry.live import PARTS

    made = Table(title=f"run {run_id}", box=box.SIMPLE_HEAD, title_justify="left")
    made.add_column("node", no_wrap=True)
    titles = {"program": "programs", UNCLASSIFIED: "?"}
    for name in ("CPU %", *(titles.get(part, part) for part in PARTS), "softirq"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("most", overflow="fold")
    for name in ("rx Mb/s", "tx Mb/s", "tx frames/s", "TCP seg/s", "again/s"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("program runs/s", overflow="fold")
    made.add_column("drops/s", overflow="fold")
    for node in nodes:
        percent = [f"{100 * node.parts.get(part, 0.0):.1f}" for part in PARTS]
        total, measured = sum(node.cpu.values()), bool(node.cpu)
        drops = {**({"device": node.dropped} if node.dropped else {}), **node.drops}
        made.add_row(
            node.node,
            *(
                [f"{100 * total:.1f}", *percent, f"{100 * node.softirq:.1f}"]
                if measured
                else "-" * 7
            ),
            largest({name: 100 * share for name, share in node.cpu.items()}, 2),
            f"{node.received_bits / 1e6:.1f}",
            f"{node.sent_bits / 1e6:.1f}",
            f"{node.sent:.0f}",
            f"{node.segments:.0f}",
            f"{node.retransmitted:.0f}",
            largest(node.programs, 2),
            largest(drops, 2),
        )
    return made


def largest(values: Mapping[str, float], count: int) -> str:
    """Return the first of some values, with their names."""
    shown = list(values.items())[:count]
    return ", ".join(f"{name} {value:.0f}" for name, value in shown)
