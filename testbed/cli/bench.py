"""``testbed bench``: measure backends side by side."""

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import bench_collectives, bench_exchange, bench_sim, flags, options
from testbed.cli.bench_options import Telemetry
from testbed.cli.progress import clear_progress, show_progress
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
        "testbed bench reducescatter --hosts 4 -b 64K -e 64M -f 4",
        "testbed bench broadcast --exchanges pinch,tcp-push --figure broadcast.png",
        "testbed bench faults --loss 0.1,1,5 --size 1M",
        "testbed bench allreduce --help   [dim]all options of one bench[/dim]",
    ),
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    bench_collectives.register(bench)
    bench_exchange.register(bench)
    bench_sim.register(bench)
    app.add_typer(bench, name="bench")


@bench.callback()
def group() -> None:
    """Measure backends side by side, in turns, on one fabric."""


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
        "testbed bench additions",
        "testbed bench additions --repeat 100000 -o additions.json",
        after="Nanoseconds per element, without what reading the payload takes.",
    ),
)
def additions(
    repeat: Annotated[
        int,
        typer.Option(parser=options.WHOLE, help="Runs of each program per trial, 1 to 1000000."),
    ] = 20_000,
    trials: Annotated[
        int, typer.Option(parser=options.WHOLE, help="Trials, in turns, 1 to 1000.")
    ] = 9,
    json: options.JsonFlag = False,
    out: options.Out = None,
    verbose: options.Verbose = 0,
) -> None:
    """Measure what it costs BPF programs to add an element, by kind of lane."""
    from testbed.bench import additions as adding
    from testbed.host.rights import require_root

    adding.check(repeat, trials)
    require_root()
    results = options.Results(json, out)
    results.say(adding.header_line())
    rows = adding.measure(repeat, trials)
    for row in rows:
        results.say(adding.row_line(row, rows))
    results.write({"rows": [row.to_dict() for row in rows]})


@bench.command(
    epilog=options.examples(
        "testbed bench layers",
        "testbed bench layers --dataset synthetic --fanout 10,5 --hidden 64 -o layers.json",
        after="Allocated: by the loss too, which is the same for all.",
    ),
)
def layers(
    dataset: Annotated[str, typer.Option(help="debian or synthetic.")] = "debian",
    fanout: Annotated[
        str,
        typer.Option(help="Neighbours per vertex, from the seeds outwards, a number a layer."),
    ] = "15,10,5",
    hidden: Annotated[int, typer.Option(parser=options.WHOLE, help="Width of layers.")] = 256,
    batch: Annotated[
        int, typer.Option(parser=options.WHOLE, help="Training vertices of a minibatch.")
    ] = 1000,
    repeat: Annotated[
        int, typer.Option("-n", "--repeat", parser=options.WHOLE, help="Minibatches, in turns.")
    ] = 20,
    json: options.JsonFlag = False,
    out: options.Out = None,
    verbose: options.Verbose = 0,
) -> None:
    """Measure layers of sampled training, our own beside torch-geometric's, on one thread."""
    from testbed.bench import layers as bench
    from testbed.core.tables import checked
    from testbed.gnn.options import SampledModelSpec

    limits = Whole().several(fanout, "--fanout")
    bench.check(dataset, batch, repeat)
    values = {"hidden": hidden, "layers": len(limits), "fanout": limits}
    spec = checked(SampledModelSpec, values, lambda place: f"--{place[0]}")
    results = options.Results(json, out)
    results.say(bench.header_line())
    rows: list[bench.Row] = []
    for row in bench.measure(dataset, spec, batch, repeat):
        rows.append(row)
        results.say(bench.row_line(row, rows[0]))
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
    telemetry: Telemetry = TelemetryOptions(),
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
