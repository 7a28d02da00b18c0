"""``testbed bench sim``: simulate an all-reduce on a fabric that is too large to build."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import flags, options
from testbed.cli.progress import clear_progress, show_progress
from testbed.comm.options import CollectiveOptions
from testbed.plan import SimulatedFabricOptions
from testbed.sim.options import SimulationOptions

__all__ = ["register"]

_OTHERS = (
    "timeout",
    "connect_timeout",
    "affinity",
    "recovery",
    "reorder_threshold",
    "reproducible",
    "segment",
    "on_overflow",
)


def register(bench: typer.Typer) -> None:
    """Add the command to ``testbed bench``."""
    bench.command(
        name="sim",
        epilog=options.examples(
            "testbed bench sim --topology fat-tree --hosts 1024 --size 64M --json",
            "testbed bench sim --hosts 1024 --size 64M --hardware 25g --costs costs.json",
            "testbed bench sim --hosts 8 --size 1M --hardware 100g --exact",
            "testbed bench sim --hosts 4 --size 64K --exact --trace out.json",
            after="docs/simulation.md explains the models. Needs no root.",
        ),
    )(flags.expand(sim))


def sim(
    fabric: Annotated[SimulatedFabricOptions, flags.Of()] = SimulatedFabricOptions(),
    size: Annotated[str, typer.Option(metavar="SIZE", help="Bytes of the tensor.")] = "64M",
    hardware: Annotated[SimulationOptions, flags.Of()] = SimulationOptions(),
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="Simulate every frame and its payload by the reference model."
        ),
    ] = False,
    train: Annotated[
        int,
        typer.Option(
            parser=options.WHOLE,
            help="Most frames that take one event; 0: as many as change little.",
        ),
    ] = 0,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "Write what hosts, links and queues do in Chrome's trace format, which Perfetto"
                " opens."
            ),
        ),
    ] = None,
    collective: Annotated[CollectiveOptions, flags.Of(omit=_OTHERS)] = CollectiveOptions(
        lanes="int32", window=64, segment=0
    ),
    json: options.JsonFlag = False,
    out: options.Out = None,
    verbose: options.Verbose = 0,
) -> None:
    """Simulate one all-reduce by xdp-ring, and report how fast the simulation is: events per
    second, memory, and what was busy.

    Sizes are bytes, with K, M or G for 2^10, 2^20, 2^30. Where hosts have CPUs and links of their
    own, more frames in flight help: so the window is 64 here, and that of bench allreduce 8.
    """
    from testbed.bench import simulation
    from testbed.bench.sizes import parse_size

    wanted = simulation.Options(
        fabric, collective, parse_size(size, "--size"), hardware, exact, train, trace
    )
    try:
        result = simulation.measure(wanted, show_progress())
    finally:
        clear_progress()
    results = options.Results(json, out)
    for line in simulation.text_lines(result):
        results.say(line)
    results.write(result.to_dict())
