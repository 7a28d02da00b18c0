"""``testbed soak``: random scenarios with random faults, each checked bit for bit, until the time
is up.
"""

import sys
import time
from pathlib import Path
from typing import Annotated, get_args

import typer

from testbed.cli import options
from testbed.core.numbers import Real, Whole
from testbed.exchange.options import Broadcast

WAYS = ("xdp-ring", "tcp-ring", "gloo", *get_args(Broadcast))
"""What may be at work: `Scenario.ways`."""
NAMED = f"{', '.join(WAYS[:-1])} or {WAYS[-1]}"

WEEK = 7 * 24 * 60  # minutes

EPILOG = options.examples(
    "sudo testbed soak --minutes 30",
    "sudo testbed soak --seed 7 --only 42   [dim]scenario 42 of seed 7 again[/dim]",
    "sudo testbed soak --seed 7 --only 42 --only 43   [dim]on one fabric[/dim]",
    "sudo testbed soak --minutes 30 --with tokens   [dim]scenarios with exchanges by tokens[/dim]",
    "sudo testbed soak --minutes 30 --markdown > soak.md",
    after="Exit status 1 if a scenario fails; Ctrl-C ends with the summary of what has passed.",
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=EPILOG)(soak)


def _way(text: str) -> str:
    if text not in WAYS:
        raise typer.BadParameter(f"{text}: must be {NAMED}")
    return text


def soak(
    minutes: Annotated[
        float,
        typer.Option(
            parser=options.number(Real(0, WEEK)),
            help="No scenario begins after this time; at most a week.",
        ),
    ] = 5.0,
    seed: options.Seed = 1,
    only: Annotated[
        list[int] | None,
        typer.Option(
            parser=options.number(Whole(0)), metavar="K", help="Play only scenario K; repeatable."
        ),
    ] = None,
    ways: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            parser=_way,
            metavar="WAY",
            help=f"Play only scenarios in which this is at work: {NAMED}; repeatable.",
        ),
    ] = None,
    keep: Annotated[
        Path,
        typer.Option(
            metavar="DIR", file_okay=False, help="Folder for the logs of a failed scenario."
        ),
    ] = Path("runs"),
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the summary as Markdown.")
    ] = False,
    json: options.JsonFlag = False,
    out: options.Out = None,
    verbose: options.Verbose = 0,
) -> None:
    """Run random scenarios on real fabrics until the time is up, and stop at the first failure.

    A scenario draws hosts, topology, switch and MTU; groups of the ring and exchanges of PINCH,
    often both at once, or sockets; up to four faults, including floods; and strays, which are old
    frames that another host resends with flipped header bits. The soak compares results bit for bit
    (sockets: within float32's bound), checks fates of frames against the reference model, bounds
    the time, and fails if an error blames a live rank or anything is leaked or left behind. Some
    scenarios kill a host, cut one off permanently, or kill the controller itself. Scenario K of a
    seed is always the same, except for what depends on time, such as which frames an event affects.
    """
    from testbed.host.rights import require_root
    from testbed.soak.report import Coverage
    from testbed.soak.scenario import Scenario
    from testbed.soak.soak import Soak

    require_root()
    started = time.monotonic()
    coverage = Coverage()
    terminal = sys.stderr.isatty()

    def show(scenario: Scenario) -> None:
        gone = time.monotonic() - started
        line = f"{gone // 60:.0f}:{gone % 60:02.0f} of {minutes:g} min, {scenario}"
        print(f"\r\033[K{line[:120]}", end="", file=sys.stderr, flush=True)

    def summary() -> None:
        if terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        coverage.seconds = time.monotonic() - started
        results = options.Results(json, out)
        results.say(coverage.markdown(seed) if markdown else coverage.text())
        results.write({"seed": seed, **coverage.to_dict()})

    session = Soak(seed, started + 60 * minutes, only or (), keep, ways or ())
    try:
        for report in session.run(show if terminal else lambda scenario: None):
            coverage.add(report)
    finally:
        summary()
