"""``testbed dissector``: the testbed's headers for Wireshark."""

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import options


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        epilog=options.examples(
            "testbed dissector -o ~/.local/lib/wireshark/plugins/testbed.lua",
            "testbed dissector -o testbed.lua && tshark -X lua_script:testbed.lua -r h1.pcapng",
        )
    )(dissector)


def dissector(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            dir_okay=False,
            callback=options.streamable,
            help="The script to write.",
            show_default="stdout",
        ),
    ] = None,
    verbose: options.Verbose = 0,
) -> None:
    """Write a dissector for Wireshark and tshark, in Lua, that shows the frames of the ring and of
    PINCH.

    scapy needs none: importing testbed.protocol.scapy_layers is enough.
    """
    from testbed.capture import lua

    if out is None:
        typer.echo(lua.dissector(), nl=False)
    else:
        options.write_text(lua.dissector(), out, "--out")
