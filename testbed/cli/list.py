"""``testbed list``: what can be named in scenarios, flags and tests, and where it comes from."""

from dataclasses import asdict
from typing import Annotated

import typer

from testbed.cli import options
from testbed.core.errors import SpecError
from testbed.core.numbers import shown
from testbed.core.registry import Listed, Registry, load

REGISTRIES = {
    "backends": "testbed.collectives.registry:BACKENDS",
    "exchanges": "testbed.exchange.registry:EXCHANGES",
    "topologies": "topologies:TOPOLOGIES",
    "datasets": "testbed.gnn.datasets:DATASETS",
    "models": "testbed.gnn.models:MODELS",
    "tasks": "testbed.workloads.module.task:TASKS",
    "architectures": "testbed.workloads.dnn.architectures:ARCHITECTURES",
    "partitioners": "testbed.gnn.partition.registry:PARTITIONERS",
    "policies": "testbed.gnn.streaming.registry:POLICIES",
    "workloads": "testbed.workloads.registry:WORKLOADS",
}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        name="list",
        epilog=options.examples(
            "testbed list",
            "testbed list topologies",
            "testbed list backends --json",
            after=(
                "Wherever a name is allowed, so is [bold]module:Class[/bold] of a module"
                " in the current folder, the scenario's, or on PYTHONPATH; docs/extending.md"
                " says how to write one."
            ),
        ),
    )(show)


def show(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="KIND", help=f"One of {', '.join(REGISTRIES)}; default: all."),
    ] = None,
    verbose: options.Verbose = 0,
    json: options.JsonFlag = False,
    out: options.Out = None,
) -> None:
    """List what has a name: one line each, and the package that it comes from.

    These are the testbed's own, and those that installed packages declare as entry points, which
    are imported for this.
    """
    if kind is not None and kind not in REGISTRIES:
        raise SpecError(f"KIND: {shown(kind)}: must be one of {', '.join(REGISTRIES)}")
    found: dict[str, list[Listed]] = {}
    for each in [kind] if kind else REGISTRIES:
        registry: Registry[object] = load(REGISTRIES[each])
        found[each] = list(registry.listed())
    options.Results(json, out).write(
        {each: list(map(asdict, rows)) for each, rows in found.items()}
    )
    if json:
        return
    for each, rows in found.items():
        if kind is None:
            typer.echo(f"{each}:")
        names = max(len(row.name) for row in rows)
        origins = max(len(row.origin) for row in rows)
        for row in rows:
            indent = "" if kind else "  "
            typer.echo(
                f"{indent}{row.name:{names}}  {row.origin:{origins}}  {row.summary}".rstrip()
            )
