"""``testbed top``: what a running fabric does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli import options
from testbed.telemetry.classify import UNCLASSIFIED

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
                console.print(table(run_id, nodes, console.width, not live.missing))
            if once:
                return
    with Display(console=console, auto_refresh=False) as display:
        while True:
            nodes = live.look(interval)
            display.update(table(run_id, nodes, console.width, not live.missing), refresh=True)


@dataclass(frozen=True)
class Column:
    """What a table tells of a node.

    :param width: Characters, for numbers at the most, for names at the least.
    :param cell: Its text; the second argument says whether CPU time is measured.
    :param names: It has names, which may need more room than there is.
    """

    title: str
    width: int
    cell: Callable[[NodeRates, bool], str]
    names: bool = False


def _share(part: str) -> Callable[[NodeRates, bool], str]:
    return lambda node, measured: f"{100 * node.parts.get(part, 0.0):.1f}" if measured else "-"


def _drops(node: NodeRates, measured: bool) -> str:
    return largest({**({"device": node.dropped} if node.dropped else {}), **node.drops}, 2)


COLUMNS = (
    Column("node", 8, lambda node, _: node.node),
    Column("CPU %", 5, lambda node, on: f"{100 * sum(node.cpu.values()):.1f}" if on else "-"),
    Column("programs", 8, _share("program")),
    Column("network", 7, _share("network")),
    Column("kernel", 6, _share("kernel")),
    Column("user", 5, _share("user")),
    Column("unknown", 7, _share(UNCLASSIFIED)),
    Column("softirq", 7, lambda node, on: f"{100 * node.softirq:.1f}" if on else "-"),
    Column(
        "most",
        22,
        lambda node, _: largest({name: 100 * share for name, share in node.cpu.items()}, 2),
        names=True,
    ),
    Column("rx Mb/s", 7, lambda node, _: f"{node.received_bits / 1e6:.1f}"),
    Column("tx Mb/s", 7, lambda node, _: f"{node.sent_bits / 1e6:.1f}"),
    Column("tx frames/s", 11, lambda node, _: f"{node.sent:.0f}"),
    Column("TCP seg/s", 9, lambda node, _: f"{node.segments:.0f}"),
    Column("again/s", 7, lambda node, _: f"{node.retransmitted:.0f}"),
    Column("program runs/s", 26, lambda node, _: largest(node.programs, 2), names=True),
    Column("drops/s", 16, _drops, names=True),
)
"""All that a table can tell, from left to right."""

FIRST = (
    *("node", "CPU %", "rx Mb/s", "tx Mb/s", "network", "programs", "kernel", "user", "again/s"),
    *("drops/s", "most", "softirq", "program runs/s", "tx frames/s", "TCP seg/s", "unknown"),
)
"""What a narrow terminal shows first."""

PADDING = 2  # characters that the table puts beside a column


def fitting(width: int, longest: int = 8) -> dict[Column, int]:
    """Return the columns for which a terminal has room, in their order, and the width of each:
    those of `FIRST` until one does not fit. Names share the room that is left.

    :param longest: Characters of the longest node's name.
    """
    by_title, left = {column.title: column for column in COLUMNS}, width - 2
    widths: dict[Column, int] = {}
    for title in FIRST:
        column = by_title[title]
        needed = max(column.width, longest) if title == "node" else column.width
        if left < needed + PADDING:
            break
        widths[column] = needed
        left -= needed + PADDING
    names = [column for column in widths if column.names]
    for column in names:
        widths[column] += left // len(names)
    return {column: widths[column] for column in COLUMNS if column in widths}


def table(run_id: str, nodes: Sequence[NodeRates], width: int, measured: bool = True) -> Table:
    """Return the table of all nodes.

    :param width: Characters of a line.
    :param measured: Whether CPU time is.
    """
    from rich import box
    from rich.table import Table

    shown = fitting(width, max((len(node.node) for node in nodes), default=0))
    hidden = [column.title for column in COLUMNS if column not in shown]
    caption = f"a wider terminal, or --json, also has: {', '.join(hidden)}"
    made = Table(
        title=f"run {run_id}",
        caption=caption if hidden else None,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title_justify="left",
        caption_justify="left",
    )
    for column, room in shown.items():
        made.add_column(
            column.title,
            justify="left" if column.names or column.title == "node" else "right",
            no_wrap=True,
            overflow="ellipsis",
            width=room if column.names else None,
            min_width=room,
        )
    for node in nodes:
        made.add_row(*(column.cell(node, measured) for column in shown))
    return made


def largest(values: Mapping[str, float], count: int) -> str:
    """Return the first of some values, with their names."""
    shown = list(values.items())[:count]
    return ", ".join(f"{name} {value:.0f}" for name, value in shown)
