"""``testbed partition``: cut a graph into parts that fit ranks, however large it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import flags, options
from testbed.cli.progress import clear_progress, show_progress
from testbed.gnn.streaming.options import PartitionOptions

__all__ = ["register"]

_WIDTH = 30  # characters of the bar


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        epilog=options.examples(
            "testbed partition rmat:20 --policy cvc --parts 4 --out parts",
            "testbed partition debian --policy eec,cvc,fec,metis   [dim]compares[/dim]",
            "testbed partition edges.parquet --features x.npy --memory 256 -o parts --json",
            "testbed partition edges.csv --policy mine:Smaller --out parts",
            after=(
                "docs/partitioning.md has the policies, the folder's format and measures. Needs no"
                " root."
            ),
        )
    )(flags.expand(partition))


def partition(
    graph: Annotated[
        str,
        typer.Argument(
            metavar="GRAPH",
            help=(
                "A file of edges (.parquet, .csv, .tsv, .txt, .npz), debian, debian-files,"
                " synthetic, or rmat:SCALE."
            ),
        ),
    ],
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help=(
                "Policies, separated by commas; all: each that the testbed has. testbed list"
                " policies describes them."
            ),
        ),
    ] = "cvc",
    settings: Annotated[PartitionOptions, flags.Of(omit=("policy",))] = PartitionOptions(),
    features: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Features as .npy, a row per vertex: split, too."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Folder to write; with several policies, one within it for each.",
            show_default="none is kept",
        ),
    ] = None,
    json: options.JsonFlag = False,
    verbose: options.Verbose = 0,
) -> None:
    """Partition a graph among ranks, as a stream of edges that may be larger than memory, and
    report how fast that was and how good the parts are.
    """
    import tempfile

    from testbed.core.tables import checked
    from testbed.gnn.streaming import partition_measures as table
    from testbed.gnn.streaming.edge_sources import open_edges
    from testbed.gnn.streaming.partition_folder import make_folder
    from testbed.gnn.streaming.partition_measures import Partitioned
    from testbed.gnn.streaming.partitioning import partition
    from testbed.gnn.streaming.registry import POLICIES

    # Some have two names.
    each_once = {POLICIES[name]: name for name in reversed(POLICIES.own)}
    names = policy.split(",") if policy != "all" else list(each_once.values())[::-1]
    wanted = [
        checked(
            PartitionOptions,
            {**settings.model_dump(), "policy": name.strip()},
            lambda place: f"--{place[0]}:",
        )
        for name in dict.fromkeys(names)
    ]
    edges = open_edges(graph, settings.seed, features)
    results = options.Results(json)
    found: list[Partitioned] = []
    with tempfile.TemporaryDirectory(prefix="testbed-partition-") as nowhere:
        for each in wanted:
            place = out or Path(nowhere) / f"parts-{len(found)}"
            if out and len(wanted) > 1:
                make_folder(out)
                place = out / each.policy
            try:
                made = partition(edges, each, place, _bar(each.policy))
            finally:
                clear_progress()
            if not found:
                results.say(f"{edges.name}: {made.num_vertices} vertices, {made.num_edges} edges")
                results.say(table.header_line())
            found.append(made)
            results.say(table.row_line(made))
    for line in table.summary_lines(found):
        results.say(line)
    values = [each.to_dict() for each in found]
    results.write(values[0] if len(wanted) == 1 else values)


def _bar(policy: str) -> Callable[[str, float], None]:
    show = show_progress()

    def update(name: str, share: float) -> None:
        full = round(_WIDTH * share)
        show(f"{policy} {name:<9} [{'#' * full}{' ' * (_WIDTH - full)}] {share:4.0%}")

    return update
