"""``testbed bench exchange``, and its two halves, measured separately: ``testbed bench broadcast``
and ``testbed bench aggregate``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli import flags, options
from testbed.cli.bench_options import Factor, Figure, Iterations, Telemetry, Warmup
from testbed.cli.progress import clear_progress, show_progress
from testbed.core.numbers import Whole
from testbed.core.registry import OTHERS
from testbed.exchange.options import ExchangeOptions
from testbed.exchange.registry import EXCHANGES
from testbed.plan import FabricOptions
from testbed.telemetry.options import TelemetryOptions

if TYPE_CHECKING:
    from testbed.bench.exchange_session import Case, Options

__all__ = ["register"]

Exchanges = Annotated[
    str, typer.Option(help=f"Comma-separated: any of {', '.join(EXCHANGES)}, {OTHERS}.")
]
# Each exchange has other values than the previous one, so that nothing can be left out.
Terms = Annotated[ExchangeOptions, flags.Of(omit=("bound", "staleness"))]
TERMS = ExchangeOptions(affinity="rank", timeout=60.0)


def register(bench: typer.Typer) -> None:
    """Add the commands to ``testbed bench``."""
    bench.command(
        epilog=options.examples(
            "testbed bench broadcast",
            "testbed bench broadcast --receivers 1,3,7,15,31 -b 64 -e 64K --iters 200 -o"
            " broadcast.json",
            "testbed bench broadcast --exchanges tcp-push,gloo --switch bridge --offload off"
            " --figure broadcast.png",
            after="docs/benchmarks.md explains each column. Exit status 1 if a result is wrong.",
        )
    )(flags.expand(broadcast))
    bench.command(
        epilog=options.examples(
            "testbed bench aggregate",
            "testbed bench aggregate --hosts 4 --dims 16,64,256 --degrees 1,10,100 -o"
            " aggregate.json",
            "testbed bench aggregate --exchanges tcp-push,tcp-pull --vertices 65536 --dims 64"
            " --degrees 8",
            after="docs/benchmarks.md explains each column. Exit status 1 if a result is wrong.",
        )
    )(flags.expand(aggregate))
    bench.command(
        epilog=options.examples(
            "testbed bench exchange",
            "testbed bench exchange --mtu 3498 --lanes int16 --halo cover --iters 40",
            "testbed bench exchange --mtu 3498 --aggregate process --exchanges pinch,tcp-push",
            "testbed bench exchange --dataset synthetic --partitioner hash --dims 16,256 -o"
            " exchange.json",
            after="docs/benchmarks.md explains each column. Exit status 1 if a result is wrong.",
        )
    )(flags.expand(exchange))


def broadcast(
    receivers: Annotated[
        str, typer.Option(help="Numbers of receiving hosts, 1 to 31, comma-separated.")
    ] = "1,3,7",
    exchanges: Exchanges = "pinch,tcp-push",
    minimum: Annotated[
        str,
        typer.Option(
            "-b", "--min-bytes", metavar="SIZE", help="Smallest message, from 4; a multiple of 4."
        ),
    ] = "64",
    maximum: Annotated[
        str, typer.Option("-e", "--max-bytes", metavar="SIZE", help="Largest message.")
    ] = "1M",
    factor: Factor = 4,
    fabric: Annotated[FabricOptions, flags.Of(omit=("hosts",))] = FabricOptions(),
    terms: Terms = TERMS,
    iterations: Iterations = 50,
    warmup: Warmup = 5,
    telemetry: Telemetry = TelemetryOptions(),
    figure: Figure = None,
    seed: options.Seed = 0,
    json: options.JsonFlag = False,
    out: options.Out = None,
    verbose: options.Verbose = 0,
) -> None:
    """Measure how long a message takes from one host to others: by tokens, or as frames that the
    kernel clones (--broadcast tc), compared with one TCP send per receiver.

    A message is the embeddings of vertices, float32. Sizes are bytes, with K, M or G for 2^10,
    2^20, 2^30.
    """
    from testbed.bench import broadcast as bench
    from testbed.bench.exchange_session import Options
    from testbed.bench.sizes import parse_size, size_series
    from testbed.host import estimates

    counts = bench.check_receivers(Whole().several(receivers, "--receivers"))
    sizes = size_series(parse_size(minimum, "-b"), parse_size(maximum, "-e"), factor)
    ranks = max(counts) + 1
    for size in sizes:
        rows, dim = bench.message_shape(size)
        need = estimates.exchanged(
            rows, dim, ranks, len(options.names_in(exchanges)), rows * max(counts)
        )
        estimates.check(need, f"-e: a message of {size} bytes to {max(counts)} hosts")
    chosen = Options(
        plan=options.with_hosts(fabric, ranks).plan(),
        exchanges=options.names_in(exchanges),
        iterations=iterations,
        warmup=warmup,
        terms=terms,
        seed=seed,
        telemetry=telemetry,
    )
    cases = (((count, size), bench.make_case(size, count)) for count in counts for size in sizes)
    run(bench, chosen, cases, options.Results(json, out), figure)


def aggregate(
    dims: Annotated[
        str, typer.Option(help="Elements of an embedding, 1 to 512, comma-separated.")
    ] = "16,64,256,512",
    degrees: Annotated[
        str,
        typer.Option(
            help="Degrees: vertices to which each arriving vertex is added, comma-separated."
        ),
    ] = "1,4,16,64",
    vertices: Annotated[
        int,
        typer.Option(
            parser=options.WHOLE,
            help="Vertices that arrive in one exchange, at least one per sending host.",
        ),
    ] = 8192,
    exchanges: Exchanges = "pinch,tcp-push",
    fabric: Annotated[FabricOptions, flags.Of()] = FabricOptions(hosts=2),
    terms: Terms = TERMS,
    iterations: Iterations = 20,
    warmup: Warmup = 3,
    telemetry: Telemetry = TelemetryOptions(),
    figure: Figure = None,
    seed: options.Seed = 0,
    json: options.JsonFlag = False,
    out: options.Out = None,
    verbose: options.Verbose = 0,
) -> None:
    """Measure how fast a host adds up what others send, in its process or in the kernel
    (--aggregate kernel), compared with receiving over TCP and adding.

    One of the hosts aggregates, the others send.
    """
    from testbed.bench import aggregate as bench
    from testbed.bench.exchange_session import Options
    from testbed.host import estimates

    widths, counts = Whole().several(dims, "--dims"), Whole().several(degrees, "--degrees")
    chosen = Options(
        plan=fabric.plan(),
        exchanges=options.names_in(exchanges),
        iterations=iterations,
        warmup=warmup,
        terms=terms,
        seed=seed,
        telemetry=telemetry,
    )
    bench.check_grid(widths, counts, vertices, fabric.hosts)
    # All senders together have as many rows as the receiver.
    need = estimates.exchanged(
        vertices, max(widths), 2, len(options.names_in(exchanges)), vertices * max(counts)
    )
    estimates.check(
        need, f"--vertices: {vertices}, --dims: {max(widths)}, --degrees: {max(counts)}"
    )
    grid = ((dim, degree, vertices) for dim in widths for degree in counts)
    run(
        bench,
        chosen,
        ((key, bench.make_case(*key, fabric.hosts, seed)) for key in grid),
        options.Results(json, out),
        figure,
    )


def exchange(
    dataset: Annotated[
        str,
        typer.Option(help="The graph: debian, the packages of APT's lists, or synthetic (R-MAT)."),
    ] = "debian",
    partitioner: Annotated[
        str, typer.Option(help="Which host gets a vertex: metis, hash, range or fennel.")
    ] = "metis",
    dims: Annotated[
        str, typer.Option(help="Elements of an embedding, 1 to 512, comma-separated.")
    ] = "64",
    exchanges: Exchanges = "pinch,tcp-push",
    fabric: Annotated[FabricOptions, flags.Of()] = FabricOptions(),
    terms: Terms = TERMS,
    iterations: Iterations = 20,
    warmup: Warmup = 3,
    telemetry: Telemetry = TelemetryOptions(),
    seed: options.Seed = 0,
    json: options.JsonFlag = False,
    out: options.Out = None,
    verbose: options.Verbose = 0,
) -> None:
    """Measure one exchange of a graph's embeddings: each host adds to its vertices what their
    neighbours on other hosts have.
    """
    from testbed.bench import cut as bench
    from testbed.bench.exchange_session import Options
    from testbed.host import estimates

    widths = Whole().several(dims, "--dims")
    bench.check_choices(dataset, partitioner, widths)
    chosen = Options(
        plan=fabric.plan(),
        exchanges=options.names_in(exchanges),
        iterations=iterations,
        warmup=warmup,
        terms=terms,
        seed=seed,
        telemetry=telemetry,
    )
    halos = bench.read_halos(dataset, partitioner, fabric.hosts)
    rows = max(max(halo.num_owned, halo.num_halo) for halo in halos)
    edges = sum(len(halo.indices) for halo in halos)
    need = estimates.exchanged(
        rows, max(widths), fabric.hosts, len(options.names_in(exchanges)), edges
    )
    estimates.check(need, f"--dims: {max(widths)}, for {rows} vertices on a host")
    cases = (bench.make_case(halos, dim) for dim in widths)
    run(bench, chosen, cases, options.Results(json, out), None)


def run(
    bench: Any,
    chosen: Options,
    cases: Iterable[tuple[Any, Case]],
    results: options.Results,
    figure: Path | None,
) -> None:
    """Measure all cases and print a line for each result as it arrives; then write the files that
    were asked for.

    :param bench: The module of the bench.
    :param cases: The first fields of its `Row`, and what is exchanged.
    """
    from testbed.bench import telemetry_table
    from testbed.bench.allreduce_table import environment_lines
    from testbed.bench.exchange_session import Session
    from testbed.core.errors import CollectiveError
    from testbed.host.rights import require_root

    require_root()
    say, rows = results.say, []
    with Session(chosen) as session:
        for line in [*environment_lines(session.environment), "#", *bench.header_lines()]:
            say(line)
        for key, case in cases:
            for measured in session.run(case, show_progress()):
                clear_progress()
                rows.append(bench.Row(*key, measured))
                say(bench.row_line(rows[-1]))
            clear_progress()
    seen = telemetry_table.columns(row.measured for row in rows)
    for line in [*bench.summary_lines(rows), *telemetry_table.lines(seen)]:
        say(line)
    found = [row.to_dict(chosen.parameters) for row in rows]
    results.write({"environment": session.environment, "rows": found})
    if figure is not None:
        from analysis import exchanges

        exchanges.draw(found, figure)
    if wrong := sum(row.measured.wrong for row in rows):
        raise CollectiveError(f"{wrong} elements are wrong")
