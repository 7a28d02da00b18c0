"""``testbed exec``: run a command in a host of a fabric."""

from typing import Annotated

import typer

from testbed.cli import options


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        name="exec",
        epilog=options.examples(
            "sudo testbed exec h1 -- ping -c 3 h2",
            "sudo testbed exec --run lab s1 -- bridge fdb show",
            after="The exit status is the command's.",
        ),
        # Everything after the host belongs to the command, even options.
        context_settings={"allow_interspersed_args": False},
    )(execute)


def execute(
    node: Annotated[str, typer.Argument(metavar="HOST", help="A host or a switch.")],
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="Program and arguments.")
    ],
    run: Annotated[
        str | None, typer.Option(help="The run; default: the only one that `testbed up` left.")
    ] = None,
    verbose: options.Verbose = 0,
) -> None:
    """Run a command inside a host's namespaces."""
    from testbed.fabric.runs import find_run

    find_run(run).execute(node, command[1:] if command[0] == "--" else command)
