"""``testbed detach``: undo ``testbed attach``."""

from typing import Annotated

import typer

from testbed.cli import options
from testbed.core.numbers import Whole


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        epilog=options.examples(
            "sudo testbed detach h2", "sudo testbed detach h2 --number 3 --run lab"
        )
    )(detach)


def detach(
    host: Annotated[str, typer.Argument(metavar="HOST", help="A host of the fabric.")],
    number: Annotated[
        int | None,
        typer.Option(
            parser=options.number(Whole(1, (1 << 31) - 1)),
            help="Of the program; default: all of the host's.",
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="The run; default: the only one that `testbed up` left.")
    ] = None,
    verbose: options.Verbose = 0,
    json: options.JsonFlag = False,
    out: options.Out = None,
) -> None:
    """Detach programs that `testbed attach` has attached to a host's link."""
    from testbed.fabric.runs import find_run
    from testbed.run.control import request

    answer = request(find_run(run), "detach", host=host, number=number)
    options.Results(json, out).write(answer)
    if json:
        return
    for each in answer["detached"]:
        typer.echo(f"{host}: {each['function']} (program {each['number']}) is detached")
    if not answer["detached"]:
        typer.echo(f"{host}: nothing was attached")
