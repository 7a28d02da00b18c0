"""``testbed bench allreduce``, ``reducescatter``, ``allgather`` and ``bcast``."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.bench.operations import OPERATIONS, Operation
from testbed.cli import flags, options
from testbed.cli.bench_options import Factor, Figure, Iterations, Telemetry, Warmup
from testbed.cli.progress import clear_progress, show_progress
from testbed.collectives.registry import BACKENDS
from testbed.comm.options import DATATYPES, OPS, CollectiveOptions
from testbed.core.registry import OTHERS
from testbed.plan import FabricOptions
from testbed.telemetry.options import TelemetryOptions

if TYPE_CHECKING:
    from testbed.bench.allreduce import Options

__all__ = ["register"]

HELP = {
    "allreduce": "Time all-reduce, the sum over ranks, with several backends in turns.",
    "reducescatter": "Time reduce-scatter: each rank gets its block of the sum over ranks.",
    "bcast": "Time broadcast of a tensor of rank 0 to all others.",
    "allgather": "Time all-gather: each rank gets the blocks of all ranks.",
}
EXAMPLES = (
    "--hosts 4 -b 64K -e 64M -f 4 --figure busbw.png",
    "--backends tcp-ring,gloo,mpi --switch bridge --offload off -n 50",
    "--hosts 8 --lanes int16 -b 64 -e 64K -f 4 -n 100 -o small.json",
    "--backends tcp-ring,gloo,mpi -d double",
)
AFTER = "docs/benchmarks.md explains each column. Exit status 1 if a result is wrong."
BLOCKS = "The size is that of all ranks' blocks together, rounded down to blocks of equal length."
TIMES = (
    "Every time is that of one {title}, from the first rank's start to the last rank's end. Sizes"
    " are bytes, with K, M or G for 2^10, 2^20, 2^30."
)


def register(bench: typer.Typer) -> None:
    """Add the commands to ``testbed bench``."""
    for operation in OPERATIONS.values():
        paragraphs = [HELP[operation.command], TIMES.format(title=operation.title)]
        bench.command(
            name=operation.command,
            help="\n\n".join(paragraphs + [BLOCKS] * operation.blocks),
            epilog=options.examples(
                *(f"testbed bench {operation.command} {terms}" for terms in EXAMPLES),
                after=AFTER,
            ),
        )(flags.expand(_verb(operation)))


def _verb(operation: Operation) -> Callable[..., None]:
    def verb(
        fabric: Annotated[FabricOptions, flags.Of()] = FabricOptions(),
        backends: Annotated[
            str, typer.Option(help=f"Comma-separated: any of {', '.join(BACKENDS)}, {OTHERS}.")
        ] = "xdp-ring,tcp-ring,gloo,mpi",
        minimum: Annotated[
            str,
            typer.Option(
                "-b",
                "--min-bytes",
                metavar="SIZE",
                help="Smallest tensor, from 0; a multiple of 4.",
            ),
        ] = "64K",
        maximum: Annotated[
            str,
            typer.Option(
                "-e", "--max-bytes", metavar="SIZE", help="Largest tensor; memory limits it."
            ),
        ] = "16M",
        factor: Factor = 4,
        iterations: Iterations = 20,
        warmup: Warmup = 5,
        check: Annotated[
            int,
            typer.Option(
                "-c",
                "--check",
                parser=options.WHOLE,
                help="1 compares with a reference, 0 does not.",
            ),
        ] = 1,
        datatype: Annotated[
            str, typer.Option("-d", "--datatype", help=f"Type of values: {_datatypes(operation)}.")
        ] = "float",
        op: Annotated[
            str, typer.Option("--op", help=f"How values are reduced: {', '.join(OPS)}.")
        ] = "sum",
        out_of_place: Annotated[
            bool,
            typer.Option(
                "--out-of-place",
                help="Measure each turn once more with results in memory of their own.",
            ),
        ] = False,
        collective: Annotated[CollectiveOptions, flags.Of()] = CollectiveOptions(
            lanes="int16", affinity="rank"
        ),
        telemetry: Telemetry = TelemetryOptions(),
        figure: Figure = None,
        seed: options.Seed = 0,
        json: options.JsonFlag = False,
        out: options.Out = None,
        verbose: options.Verbose = 0,
    ) -> None:
        from testbed.bench.allreduce import Options
        from testbed.bench.sizes import parse_size, size_series
        from testbed.collectives.registry import check_names
        from testbed.core.errors import SpecError

        if check not in (0, 1):
            raise SpecError(f"-c: {check}: must be 0 or 1")
        if out is not None and str(out) in OPS:  # what nccl-tests means by -o
            raise SpecError(
                f"-o: {out}: is the file of the results here, and must have another name;"
                f" --op {out} is how values are reduced"
            )
        chosen = Options(
            plan=fabric.plan(),
            backends=check_names(options.names_in(backends)),
            sizes=size_series(parse_size(minimum, "-b"), parse_size(maximum, "-e"), factor),
            iterations=iterations,
            warmup=warmup,
            check=bool(check),
            collective=collective,
            seed=seed,
            telemetry=telemetry,
            operation=operation,
            op=op,
            datatype=datatype,
            out_of_place=out_of_place,
        )
        _measure(chosen, options.Results(json, out), figure)

    return verb


def _datatypes(operation: Operation) -> str:
    """Which types there are, and which backends reduce which."""
    names = ", ".join(DATATYPES)
    if not operation.reduces:
        return names
    limits = [
        f"{backend} has {', '.join(BACKENDS[backend].datatypes)}"
        for backend in ("xdp-ring", "tcp-ring", "mpi")
    ]
    return f"{names}; {'; '.join(limits)}"


def _measure(chosen: "Options", results: options.Results, figure: Path | None) -> None:
    from testbed.bench import allreduce as controller
    from testbed.bench import allreduce_table as table
    from testbed.bench import telemetry_table
    from testbed.core.errors import CollectiveError
    from testbed.host.rights import require_root

    require_root()
    say, rows = results.say, []
    session = controller.Session(chosen)
    with session:
        for line in [
            *table.environment_lines(session.environment),
            "#",
            *table.header_lines(chosen.out_of_place),
        ]:
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
    found = [row.to_dict(chosen.parameters) for row in rows]
    results.write({"environment": session.environment, "rows": found})
    if figure is not None:
        from analysis.bench import draw

        draw(found, figure)
    wrong = sum(row.wrong + (row.out_of_place.wrong if row.out_of_place else 0) for row in rows)
    if wrong:
        raise CollectiveError(f"{wrong} elements are wrong")
