"""``testbed archive``: a run in one file."""

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import options


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        epilog=options.examples(
            "testbed archive runs/demo",
            "testbed archive runs/demo -o demo.tar.xz --csv demo.csv",
            "sudo testbed rerun demo.tar.xz",
        )
    )(archive)


def archive(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            dir_okay=False,
            callback=options.writable,
            help="The archive to write.",
            show_default="RUN.tar.xz",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            callback=options.streamable,
            help="Also write the measurements as CSV.",
        ),
    ] = None,
    verbose: options.Verbose = 0,
) -> None:
    """Put a run into one file: scenario, seed, versions, machine, plan of the fabric, and results
    as parquet and CSV.

    `testbed rerun` repeats it and compares.
    """
    from testbed.core.errors import StorageError
    from testbed.results.archive import write_archive
    from testbed.results.folder import read_manifest
    from testbed.run.runner import plan_of
    from testbed.scenario.foreign import foreign_scenario

    manifest = read_manifest(run)
    scenario = foreign_scenario(manifest.get("scenario", {}), (), str(run), trust=True, files=True)
    place = out or Path(f"{run.resolve().name}.tar.xz")
    try:
        found = write_archive(run, plan_of(scenario).to_dict(), place)
    except OSError as error:
        raise StorageError(f"--out {place}: cannot be written: {error.strerror}") from error
    if csv is not None:
        options.write_text(found.frame.to_csv(index=False), csv, "--csv")
    typer.echo(f"archive: {place}", err=csv == options.STDOUT)
