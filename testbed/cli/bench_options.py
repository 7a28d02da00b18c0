"""Options that several benches share, in addition to those of `testbed.cli.options`."""

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import flags, options
from testbed.telemetry.options import TelemetryOptions

__all__ = ["Factor", "Figure", "Iterations", "Telemetry", "Warmup"]

Factor = Annotated[
    int,
    typer.Option(
        "-f", "--step-factor", parser=options.WHOLE, help="Factor between sizes, at least 2."
    ),
]
Iterations = Annotated[
    int,
    typer.Option(
        "-n", "--iters", parser=options.WHOLE, help="Timed iterations per row, 1 to 1000000."
    ),
]
Warmup = Annotated[
    int,
    typer.Option(
        "-w",
        "--warmup-iters",
        parser=options.WHOLE,
        help="Untimed iterations before each turn, from 0.",
    ),
]
Telemetry = Annotated[
    TelemetryOptions, flags.Of(names=(("enabled", "telemetry"), ("rate", "telemetry_rate")))
]
Figure = Annotated[
    Path | None,
    typer.Option(metavar="PNG", dir_okay=False, help="Draw the medians, with a CSV beside it."),
]
