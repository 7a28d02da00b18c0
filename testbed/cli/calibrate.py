"""``testbed calibrate``: measure what this machine's CPUs cost, for simulations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import options

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        epilog=options.examples(
            "sudo testbed calibrate --out costs.json",
            "testbed bench sim --hosts 8 --size 4M --hardware costs.json",
        )
    )(calibrate)


def calibrate(
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            dir_okay=False,
            callback=options.writable,
            help="Where to write the costs, as JSON.",
        ),
    ] = Path("calibration.json"),
    iterations: Annotated[
        int,
        typer.Option(
            "-n", "--iters", parser=options.WHOLE, help="All-reduces per MTU, 1 to 1000000."
        ),
    ] = 20,
    json: options.JsonFlag = False,
    verbose: options.Verbose = 0,
) -> None:
    """Measure what this machine's CPUs cost, and keep it in a file for simulations: a hop of the
    ring, a byte of it, a wake-up, a system call, and quantizing.

    The file says which machine it was, at which commit and when, and compares each all-reduce that
    was measured with a simulated one.
    """
    from testbed.bench import calibrate as bench
    from testbed.bench.row import MAX_ITERATIONS
    from testbed.core.errors import SpecError
    from testbed.host.rights import require_root

    if not 1 <= iterations <= MAX_ITERATIONS:
        raise SpecError(f"-n: {iterations}: must be 1 to {MAX_ITERATIONS} iterations")
    if not out.parent.is_dir():
        raise SpecError(f"--out: {out}: must be a file in an existing folder")
    require_root()
    found = bench.calibrate(iterations, lambda what: typer.echo(f"# {what}", err=True))
    results = options.Results(json, out)
    results.write(found.model_dump())
    for line in bench.text_lines(found):
        results.say(line)
