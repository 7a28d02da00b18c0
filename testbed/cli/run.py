"""``testbed run``: a scenario from its file to its report."""

import datetime
import shlex
import sys
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli import options

if TYPE_CHECKING:
    from analysis.summary import Check
    from testbed.scenario import Scenario

EPILOG = options.examples(
    "sudo testbed run scenarios/ddp_debian.toml --out runs/demo",
    "sudo testbed run scenarios/gnn_debian.toml --set exchange.partitioner=hash",
    "sudo testbed run scenarios/ddp_synthetic.toml --set fabric.hosts=8 --set"
    " collective.lanes=int16",
    'sudo testbed run scenarios/ddp_synthetic.toml --set \'collective.backends=["gloo", "mpi"]\''
    " --seed 7",
    "sudo testbed run scenarios/ddp_synthetic.toml --fault 'drop p=0.01' --fault 'pause host=h2"
    " at=1s for=200ms'",
    "sudo testbed run scenarios/ddp_synthetic.toml --fault 'flood switch=s1 at=0ms for=2s'",
    "testbed run scenarios/dnn_simulated.toml --set fabric.hosts=8",
)

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="TABLE.KEY=VALUE", help="Override a key of the scenario; repeatable."
    ),
]
Faults = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="'ACTION KEY=VALUE ...'",
        help=(
            "Add a fault to the scenario's; repeatable. docs/scenarios.md lists all actions and"
            " keys."
        ),
    ),
]
FaultSeed = Annotated[
    int | None,
    typer.Option(
        "--fault-seed",
        parser=options.WHOLE,
        help="Override scenario.fault_seed.",
        show_default="scenario.seed",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", metavar="DIR", help="Folder for the run.", show_default="runs/SCENARIO-TIME"
    ),
]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=EPILOG)(run)


def run(
    path: Annotated[Path, typer.Argument(metavar="SCENARIO.toml", help="Scenario file.")],
    settings: Settings = None,
    out: Out = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Replace a previous run in DIR once this one is complete."
        ),
    ] = False,
    seed: Annotated[
        int | None, typer.Option("--seed", parser=options.WHOLE, help="Override scenario.seed.")
    ] = None,
    telemetry: Annotated[
        bool,
        typer.Option(
            "--telemetry", help="Measure where CPU time goes: sets telemetry.enabled = true."
        ),
    ] = False,
    faults: Faults = None,
    fault_seed: FaultSeed = None,
    bench: Annotated[
        Path | None,
        typer.Option(
            "--bench",
            metavar="FILE",
            dir_okay=False,
            help="Show the times of this file of bench allreduce -o FILE in the report, too.",
        ),
    ] = None,
    json: options.JsonFlag = False,
    verbose: options.Verbose = 0,
) -> None:
    """Run a scenario, each backend in turn, and write the measurements and a report into a folder.

    The exit status is also 1 if a backend's loss or accuracy differs from the reference's by more
    than the scenario's table [bold]tolerance[/bold] allows. A run that fails keeps its measurements
    up to then. With --overwrite, the run is written into DIR.partial, and takes DIR's place when it
    is complete.
    """
    from testbed.scenario import load_scenario

    settings = [*(settings or ()), *(["telemetry.enabled=true"] if telemetry else ())]
    scenario = load_scenario(path, settings, seed, faults or (), fault_seed)
    out = out or default_folder(scenario)

    from testbed.host.rights import require_root
    from testbed.run import check

    check(scenario)
    measured = None
    if bench:
        from analysis.bench import read_bench

        measured = read_bench(bench)
    if not scenario.simulated:
        require_root()
    command = ["testbed", "run", str(path)]
    for setting in settings:
        command += ["--set", setting]
    if seed is not None:
        command += ["--seed", str(seed)]
    for fault in faults or ():
        command += ["--fault", fault]
    if fault_seed is not None:
        command += ["--fault-seed", str(fault_seed)]
    if bench:
        command += ["--bench", str(bench)]
    report, checks = play(scenario, out, overwrite, json, command, measured)
    show(out, report, checks, json)
    if not all(check.passed for check in checks):
        raise typer.Exit(1)


def play(
    scenario: "Scenario",
    out: Path,
    overwrite: bool,
    quiet: bool,
    command: list[str],
    measured: Any = None,
) -> "tuple[Path, list[Check]]":
    """Run a scenario in a folder, and write the report; return its place and the tolerance
    checks.

    :param measured: The result of a bench for the report, as of `analysis.bench.read_bench`.
    """
    from analysis.bench import BENCH
    from analysis.report import make_report
    from testbed.results import RunFolder
    from testbed.run import run_into
    from testbed.run.progress import Display

    with RunFolder(out, overwrite) as folder:
        try:
            run_into(folder, scenario, quiet=quiet, command=command)
            if measured:
                folder.write(
                    BENCH, lambda place: place.write_text(dumps(measured), encoding="utf-8")
                )
            Display(quiet).say("drawing the report")
            report, checks = make_report(folder.path, folder.out)
            folder.publish()
        except (KeyboardInterrupt, SystemExit):  # from a signal; the exit status says which
            typer.echo(
                f"error: interrupted; {folder.remains() or 'nothing was measured yet'}", err=True
            )
            raise
    return out / report.name, checks


def default_folder(scenario: "Scenario") -> Path:
    """Return ``runs/<scenario>-<time>``, in local time."""
    return Path("runs") / f"{scenario.scenario.name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"


def show(folder: Path, report: Path, checks: "list[Check]", json: bool) -> None:
    """Print the result, the tolerance checks, and where the report is."""
    from analysis.narrative import answer, next_steps
    from analysis.summary import epoch_split
    from testbed.results import load_run

    run = load_run(folder)
    if json:
        options.Results(json).write(
            {
                "out": str(folder),
                "report": str(report),
                "answer": answer(run),
                "seconds_an_epoch": epoch_split(run).to_dict(orient="index"),
                "checks": [{**vars(check), "passed": check.passed} for check in checks],
            }
        )
        return
    for sentence in answer(run):
        typer.echo(sentence)
    for check in checks:
        mark = (
            typer.style("pass", fg="green")
            if check.passed
            else typer.style("FAIL", fg="red", bold=True)
        )
        typer.echo(
            f"{mark}  {check.what} of {check.backend}: {check.distance:.4g} {check.unit} "
            f"from {check.reference}, allowed {check.tolerance:g}"
        )
    sys.stdout.flush()
    for step in next_steps(run)[:1]:
        typer.echo(f"next: {step.command}")
    typer.echo(f"report: {shlex.quote(str(report))}")
