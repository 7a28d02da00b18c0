"""``testbed capture``: frames on the links of a fabric."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli import options
from testbed.core.numbers import Real, Whole

if TYPE_CHECKING:
    from typing import BinaryIO

    from testbed.capture.ports import Port
    from testbed.fabric.runs import Run

STDOUT = 1  # the descriptor

EPILOG = options.examples(
    "sudo testbed capture h1 -o h1.pcapng",
    "sudo testbed capture s1:1 s1:2 h3 --seconds 5 -o three.pcapng",
    "sudo testbed capture h1 -o - | tshark -i -",
    "testbed dissector -o ~/.local/lib/wireshark/plugins/testbed.lua",
    after="Ctrl-C ends it. Frames are seen whether XDP takes them or the stack gets them.",
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=EPILOG)(capture)


def capture(
    nodes: Annotated[
        list[str],
        typer.Argument(
            metavar="NODE[:PORT]...", help="Hosts, switches, or ports of switches, such as s1:2."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            dir_okay=False,
            callback=options.streamable,
            help="The pcapng file to write, which is replaced; - for standard output.",
        ),
    ],
    run: Annotated[
        str | None, typer.Option(help="The run; default: the only one that is up.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            parser=options.number(Real(0.001, 86_400)),
            help="End after this time.",
            show_default="Ctrl-C",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            "-n",
            parser=options.number(Whole(1, 1 << 40)),
            help="End after this many frames.",
            show_default="Ctrl-C",
        ),
    ] = None,
    snap: Annotated[
        int,
        typer.Option(
            parser=options.number(Whole(64, 16384)), help="Bytes to keep of a frame, 64 to 16384."
        ),
    ] = 16384,
    verbose: options.Verbose = 0,
    json: options.JsonFlag = False,
) -> None:
    """Write the frames of several ports into one pcapng file, with the ports' names and times in
    nanoseconds.

    Inbound is what arrives at a port, outbound what arrives at the other end of its link.
    """
    from testbed.capture.ports import parse_ports
    from testbed.core.errors import SpecError, StorageError
    from testbed.fabric.runs import find_run

    stream = out == options.STDOUT or (
        out.exists() and os.path.samestat(out.stat(), os.fstat(STDOUT))
    )
    if stream and json:
        raise SpecError(
            f"--json: must be left out with --out {out}: standard output has the frames"
        )
    if stream and sys.stdout.isatty():
        raise SpecError(f"--out: {out}: standard output is a terminal: must be a file or a pipe")
    found = find_run(run, kept=False)
    ports = parse_ports(found.plan, nodes)
    try:
        with open(os.dup(STDOUT), "wb") if stream else out.open("wb") as file:
            written, lost = record(found, ports, file, seconds, count, snap)
    except BrokenPipeError:  # who reads it has seen enough
        return
    except OSError as error:
        if error.filename != str(out):
            raise
        raise StorageError(f"--out {out}: cannot be written: {error.strerror}") from error
    options.Results(json).write({"out": str(out), "frames": written, "lost": lost})
    if not json:
        missed = f", {lost} more were lost" if lost else ""
        names = ", ".join(port.name for port in ports)
        typer.echo(f"{written} frames of {names} in {out}{missed}", err=True)


def record(
    run: Run,
    ports: list[Port],
    file: BinaryIO,
    seconds: float | None,
    count: int | None,
    snap: int,
) -> tuple[int, int]:
    """Write what passes until the time is over, there are enough frames, or Ctrl-C; return how
    many frames were written and how many were lost.
    """
    import testbed
    from testbed.capture.pcapng import Writer
    from testbed.capture.wiretap import Tap

    names = [(port.name, f"{port.own.ifname} of {port.own.node}") for port in ports]
    writer = Writer(file, names, snap, f"testbed {testbed.__version__}, run {run.run_id}")
    written = 0
    with Tap(run, ports, snap) as tap:
        typer.echo(f"capturing {', '.join(port.name for port in ports)}", err=True)
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            while (count is None or written < count) and (
                deadline is None or time.monotonic() < deadline
            ):
                packets = tap.packets()
                packets = packets if count is None else packets[: count - written]
                writer.write(packets)
                written += len(packets)
        except KeyboardInterrupt:
            pass
        lost = tap.lost()
        writer.end(time.time_ns(), lost)
    return written, sum(lost.values())
