"""``testbed attach``: a BPF program of your own on a host's link."""

import os
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import options
from testbed.core.errors import SpecError
from testbed.core.numbers import Whole, shown


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        epilog=options.examples(
            "sudo testbed attach h2 count.bpf.c",
            "sudo testbed attach h2 filter.bpf.c --hook tc-ingress --section second --order last",
            "sudo testbed attach h2 count.bpf.c --rodata limit=10 --run lab",
            after="docs/programs.md explains hooks and order, and has a whole example.",
        )
    )(attach)


def attach(
    host: Annotated[str, typer.Argument(metavar="HOST", help="A host of the fabric.")],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="C source of the program, or a compiled object.")
    ],
    hook: Annotated[
        str, typer.Option(help="xdp (native), xdp-generic, tc-ingress or tc-egress.")
    ] = "xdp",
    section: Annotated[
        str | None,
        typer.Option(help="Section or function, if the file has several programs for the hook."),
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            help="first: before the testbed's own programs; last: on the frames that these pass."
        ),
    ] = "first",
    rodata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Value of a constant or initialized variable; may be repeated.",
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="The run; default: the only one that `testbed up` left.")
    ] = None,
    verbose: options.Verbose = 0,
    json: options.JsonFlag = False,
    out: options.Out = None,
) -> None:
    """Attach a BPF program to a host's link (eth0), until detach or down; compile it first, unless
    it is an object.

    `testbed exec HOST -- bpftool map dump id N` shows a map; this command prints the ids.
    """
    from testbed.datapath.programs import compile_program
    from testbed.fabric.runs import find_run
    from testbed.run.control import request

    if order not in ("first", "last"):
        raise SpecError(f"--order: {shown(order)}: must be first or last")
    constants = {}
    for each in rodata or []:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise SpecError(f"--rodata: {shown(each)}: must be NAME=VALUE")
        constants[name] = Whole()(value)
    made = compile_program(file, hook, section)
    found = find_run(run)
    program = {
        "source": os.path.abspath(made.source),
        "path": str(made.path),
        "function": made.function,
        "hook": made.hook,
    }
    answer = request(
        found, "attach", host=host, program=program, first=order == "first", rodata=constants
    )
    options.Results(json, out).write(answer)
    if json:
        return
    maps = ", ".join(f"{name} (id {number})" for name, number in answer["maps"].items())
    typer.echo(f"{host}: {made.function} is program {answer['number']} on eth0 ({hook}, {order})")
    typer.echo(f"maps: {maps or 'none'}")
