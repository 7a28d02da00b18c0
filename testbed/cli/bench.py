"""``testbed bench``: measure backends side by side."""

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import bench_exchange, bench_sim, flags, options
from testbed.cli.progress import clear_progress, show_progress
from testbed.collectives.registry import BACKENDS
from testbed.comm.options import CollectiveOptions
from testbed.core.numbers import Real, Whole
from testbed.plan import FabricOptions
from testbed.telemetry.options import TelemetryOptions

__all__ = ["register"]

bench = typer.Typer(
    no_args_is_help=True,
    help="Measure backends side by side, in turns, on one fabric.",
    epilog=options.examples(
        "testbed bench allreduce --hosts 4 -b 64K -e 64M -f 4",
        "testbed bench broadcast --exchanges pinch,tcp-push --figure broadcast.png",
        "testbed bench faults --loss 0.1,1,5 --size 1M",
        "testbed bench allreduce --help   [dim]all options of one bench[/dim]",
    ),
)

EPILOG = options.examples(
    "testbed bench allreduce --hosts 4 -b 64K -e 64M -f 4",
    "testbed bench allreduce --backends tcp-ring,gloo,mpi --switch bridge --offload off -n 50",
    "testbed bench allreduce --hosts 8 --lanes int16 -b 64 -e 64K -f 4 -n 100 -o small.json",
    after="docs/benchmarks.md explains each column. Exit status 1 if a result is wrong.",
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    bench_exchange.register(bench)
    bench_sim.register(bench)
    app.add_typer(bench, name="bench")


@bench.callback()
def group() -> None:
    """Measure backends side by side, in turns, on one fabric."""


@bench.command(epilog=EPILOG)
@flags.expand
def allreduce(
    fabric: Annotated[FabricOptions, flags.Of()] = FabricOptions(),
    backends: Annotated[
        str, typer.Option(help=f"Comma-separated: any of {', '.join(BACKENDS)}.")
    ] = "xdp-ring,tcp-ring,gloo,mpi",
    minimum: Annotated[
        str,
        typer.Option(
            "-b", "--min-bytes", metavar="SIZE", help="Smallest tensor, from 0; a multiple of 4."
        ),
    ] = "64K",
    maximum: Annotated[
        str,
        typer.Option("-e", "--max-bytes", metavar="SIZE", help="Largest tensor; memory limits it."),
    ] = "16M",
    factor: Annotated[
        int,
        typer.Option(
            "-f", "--step-factor", parser=options.WHOLE, help="Factor between sizes, at least 2."
        ),
    ] = 4,
    iterations: Annotated[
        int,
        typer.Option(
            "-n", "--iters", parser=options.WHOLE, help="Timed all-reduces per size, 1 to 1000000."
        ),
    ] = 20,
    warmup: Annotated[
        int,
        typer.Option(
            "-w",
            "--warmup-iters",
            parser=options.WHOLE,
            help="Untimed all-reduces before each turn, from 0.",
        ),
    ] = 5,
    check: Annotated[
        int,
        typer.Option(
            "-c", "--check", parser=options.WHOLE, help="1 compares with a reference, 0 does not."
        ),
    ] = 1,
    collective: Annotated[CollectiveOptions, flags.Of()] = CollectiveOptions(
        lanes="int16", affinity="rank"
    ),
    telemetry: Annotated[
        TelemetryOptions, flags.Of(names=(("enabled", "telemetry"), ("rate", "telemetry_rate")))
    ] = TelemetryOptions(),
    seed: options.Seed = 0,
    json: options.JsonFlag = False,
    out: options.Out = None,
    verbose: options.Verbose = 0,
) -> None:
    """Time all-reduce of float32 tensors, sum over ranks, with several backends in turns.

    Every time is that of one all-reduce, from the first rank's start to the last rank's end. Sizes
    are bytes, with K, M or G for 2^10, 2^20, 2^30.
    """
    from testbed.bench import allreduce as controller
    from testbed.bench import allreduce_table as table
    from testbed.bench import telemetry_table
    from testbed.bench.sizes import parse_size, size_series
    from testbed.collectives.registry import check_names
    from testbed.core.errors import CollectiveError, SpecError
    from testbed.host.rights import require_root

    if check not in (0, 1):
        raise SpecError(f"-c: {check}: must be 0 or 1")
    chosen = controller.Options(
        plan=fabric.plan(),
        backends=check_names(name.strip() for name in backends.split(",") if name.strip()),
        sizes=size_series(parse_size(minimum, "-b"), parse_size(maximum, "-e"), factor),
        iterations=iterations,
        warmup=warmup,
        check=bool(check),
        collective=collective,
        seed=seed,
        telemetry=telemetry,
    )
    require_root()
    results = options.Results(json, out)
    say, rows = results.say, []
    session = controller.Session(chosen)
    with session:
        for line in [*table.environment_lines(session.environment), "#", *table.header_lines()]:
            say(line)
        for row in session.run(show_progress()):
            clear_progress()
            say(table.row_line(row))
            rows.append(row)
        clear_progress()
    session.environment["fabric_down_seconds"] = round(session.down_seconds, 3)
    for line in table.summary_lines(rows, {name: BACKENDS[name].needs for name in chosen.backends}):
        say(line)
    seen = telemetry_table.lines(telemetry_table.columns(rows))
    for line in [*table.average_lines(rows), *table.bound_lines(rows), *seen]:
        say(line)
    up, down = (session.environment[f"fabric_{way}_seconds"] for way in ("up", "down"))
    say(f"# fabric up in {up} s, down in {down} s")
    parameters = chosen.parameters
    results.write(
        {"environment": session.environment, "rows": [row.to_dict(parameters) for row in rows]}
    )
    wrong = sum(row.wrong for row in rows)
    if wrong:
        raise CollectiveError(f"{wrong} elements are wrong")


@bench.command(
    name="delay-line",
    epilog=options.examples(
        "testbed bench delay-line",
        "testbed bench delay-line --rates 10000,100000 --delay 20ms --jitter 5ms -o line.json",
        after=(
            "Lateness is in microseconds; [bold]late[/bold] counts frames later than 500 of them."
        ),
    ),
)
def delay_line(
    rates: Annotated[
        str, typer.Option(help="Frames per second, each 1 to 10000000, comma-separated.")
    ] = "1000,10000,50000,100000",
    seconds: Annotated[
        float,
        typer.Option(parser=options.REAL, help="Seconds to send at each rate, up to an hour."),
    ] = 2.0,
    delay: Annotated[str, typer.Option(help="How long a frame is delayed.")] = "2ms",
    jitter: Annotated[
        str, typer.Option(help="Largest deviation from the delay, at most the delay.")
    ] = "1ms",
    json: options.JsonFlag = False,
    out: options.Out = None,
    verbose: options.Verbose = 0,
) -> None:
    """Measure how late the fault engine's delay line sends the frames that it holds, by rate."""
    from testbed.bench import delay_line as line

    numbers = Whole().several(rates, "--rates")
    held, varied = parse_time(delay, "--delay"), parse_time(jitter, "--jitter")
    results = options.Results(json, out)
    results.say(line.header_line())
    rows = []
    for row in line.measure(numbers, seconds, held, varied):
        results.say(line.row_line(row))
        rows.append(row)
    results.write({"rows": [row.to_dict() for row in rows]})


@bench.command(
    epilog=options.examples(
        "testbed bench faults",
        "testbed bench faults --hosts 2,4,8 --backends xdp-ring/upstream,xdp-ring/origin -o"
        " faults.json",
        "testbed bench faults --loss 0.1,1,5 --size 1M --budget 60 --figure faults.png",
        after=(
            "Exit status 1 if a result is wrong. Cells that exceed their budget are reported as"
            " such."
        ),
    ),
)
@flags.expand
def faults(
    hosts: Annotated[str, typer.Option(help="Numbers of hosts, 2 to 32, comma-separated.")] = "4",
    loss: Annotated[
        str, typer.Option(help="Percentages of lost frames, comma-separated.")
    ] = "0,0.01,0.1,1,2,5,10",
    size: Annotated[str, typer.Option(metavar="SIZE", help="Bytes of the tensor.")] = "16M",
    backends: Annotated[
        str,
        typer.Option(
            help=(
                "Of xdp-ring/upstream, xdp-ring/origin, xdp-ring/timer (reorder threshold 0),"
                " tcp-ring, gloo, and other packages' backends."
            )
        ),
    ] = "xdp-ring/upstream,xdp-ring/origin,tcp-ring,gloo",
    iterations: Annotated[
        int, typer.Option("-n", "--iters", parser=options.WHOLE, help="Timed all-reduces per cell.")
    ] = 20,
    budget: Annotated[
        float, typer.Option(parser=options.REAL, help="Seconds that a cell may take, 1 to 600.")
    ] = 30.0,
    fabric: Annotated[FabricOptions, flags.Of(omit=("hosts",))] = FabricOptions(offload="off"),
    collective: Annotated[CollectiveOptions, flags.Of(omit=("recovery",))] = CollectiveOptions(
        lanes="int16", affinity="rank", timeout=180.0
    ),
    telemetry: Annotated[
        TelemetryOptions, flags.Of(names=(("enabled", "telemetry"), ("rate", "telemetry_rate")))
    ] = TelemetryOptions(),
    figure: Annotated[
        Path | None,
        typer.Option(
            metavar="PNG",
            dir_okay=False,
            help="Draw goodput and extra bytes; writes a CSV beside it.",
        ),
    ] = None,
    seed: options.Seed = 0,
    json: options.JsonFlag = False,
    out: options.Out = None,
    verbose: options.Verbose = 0,
) -> None:
    """Measure all-reduce while frames are lost: goodput, extra bytes, and how long the ring takes
    to recover a lost frame.

    Backends take turns at every rate of loss. Which of the ring's frames are lost depends only on
    the seed. With faults, hosts' offloads are always off.
    """
    from testbed.bench import allreduce_table as table
    from testbed.bench import loss as controller
    from testbed.bench import loss_table, telemetry_table
    from testbed.bench.sizes import parse_size
    from testbed.core.errors import CollectiveError
    from testbed.host.rights import require_root

    chosen = [
        controller.Options(
            plan=options.with_hosts(fabric, count).plan(),
            variants=tuple(name.strip() for name in backends.split(",")),
            size=parse_size(size, "--size"),
            losses=tuple(percent / 100 for percent in Real().several(loss, "--loss")),
            iterations=iterations,
            budget=budget,
            collective=collective,
            seed=seed,
            telemetry=telemetry,
        )
        for count in Whole().several(hosts, "--hosts")
    ]
    require_root()
    results = options.Results(json, out)
    say, cells = results.say, []
    environment: dict[str, object] = {}
    for number, each in enumerate(chosen):
        with controller.Session(each) as session:
            if not number:
                environment = session.environment
                for line in [
                    *table.environment_lines(environment),
                    "#",
                    *loss_table.header_lines(),
                ]:
                    say(line)
            for cell in session.run(show_progress()):
                clear_progress()
                cells.append(cell)
                say(loss_table.row_line(cell, loss_table.lossless_of(cell, cells)))
            clear_progress()
    seen = [
        telemetry_table.Column(
            cell.backend, f"{cell.hosts} hosts, loss {loss_table.loss_text(cell)}", cell.observed
        )
        for cell in cells
        if cell.observed
    ]
    for line in [*loss_table.requirement_lines(cells), *telemetry_table.lines(seen)]:
        say(line)
    rows = [cell.to_dict(loss_table.lossless_of(cell, cells)) for cell in cells]
    results.write({"environment": environment, "rows": rows})
    if figure is not None:
        from analysis.goodput import draw

        draw(rows, figure)
    if wrong := sum(cell.wrong for cell in cells):
        raise CollectiveError(f"{wrong} elements are wrong")


def parse_time(text: str, flag: str) -> float:
    """Parse a time with a unit; return seconds."""
    from testbed.core.errors import SpecError
    from testbed.faults.units import parse_seconds

    try:
        return parse_seconds(text)
    except SpecError as error:
        raise SpecError(f"{flag}: {error}") from None
