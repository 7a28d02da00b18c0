"""Options that several verbs share: the same flag means the same thing everywhere.

A verb takes them as annotated parameters::

    @app.command(epilog=options.examples("testbed doctor --json"))
    def doctor(verbose: options.Verbose = 0, json: options.JsonFlag = False) -> None: ...
"""

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.core.errors import SpecError, StorageError
from testbed.core.files import write_whole
from testbed.core.logs import logger_of
from testbed.core.numbers import Real, Whole
from testbed.core.tables import checked
from testbed.plan import FabricOptions

__all__ = [
    "REAL",
    "STDOUT",
    "WHOLE",
    "JsonFlag",
    "Out",
    "Results",
    "Seed",
    "Verbose",
    "examples",
    "names_in",
    "number",
    "set_verbosity",
    "streamable",
    "with_hosts",
    "writable",
    "write_text",
]


def number(read: Whole | Real) -> Callable[[Any], Any]:
    """Return the ``parser`` of an option that takes a number; anything else is a usage error with
    the option's name.
    """

    def parse(value: Any) -> Any:
        try:
            return read(value)
        except SpecError as error:
            raise typer.BadParameter(str(error)) from None

    return parse


WHOLE, REAL = number(Whole()), number(Real())
"""Parse numbers whose range is checked where they are used."""


def set_verbosity(count: int) -> int:
    """Log warnings; with one ``-v`` also each step, with two also details. The highest count
    wins.
    """
    level = {0: logging.WARNING, 1: logging.INFO}.get(count, logging.DEBUG)
    logger = logger_of("testbed")
    if not logger.handlers:
        handler = logging.StreamHandler()  # stderr: stdout is for results
        handler.setFormatter(logging.Formatter("%(relativeCreated)6d ms %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(level)
    logger.setLevel(min(level, logger.level))
    return count


Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        callback=set_verbosity,
        help="Log what is done; -vv for details.",
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        parser=number(Whole(0, (1 << 32) - 1)),
        help="Seed of every random choice; the same seed repeats a run.",
    ),
]
JsonFlag = Annotated[
    bool,
    typer.Option("--json", help="Print the results as JSON; other text goes to stderr."),
]


STDOUT = Path("-")
"""How an option names standard output."""


def streamable(path: Path | None) -> Path | None:
    """As `writable`, but ``-`` is standard output."""
    return path if path == STDOUT else writable(path)


def writable(path: Path | None) -> Path | None:
    """Refuse a file that cannot be written, before anything is measured."""
    if path == STDOUT:
        raise typer.BadParameter("'-' is not standard output here: must be the name of a file")
    if path is not None and not os.access(path.parent, os.W_OK):
        known = "is no folder" if path.parent.exists() else "does not exist"
        what = "is not writable" if path.parent.is_dir() else known
        raise typer.BadParameter(
            f"{path}: the folder {path.parent} {what}; must be a file in an existing folder"
        )
    return path


Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        dir_okay=False,
        callback=writable,
        help="Write the results into a file, as JSON.",
    ),
]


@dataclass(frozen=True)
class Results:
    """Where a verb's results go: text to stdout; with ``--json`` JSON to stdout, and text to
    stderr; with ``--out`` JSON also to a file.
    """

    json: bool
    out: Path | None = None

    def say(self, text: str) -> None:
        """Print a line of text."""
        typer.echo(text, err=self.json)

    def write(self, value: Any) -> None:
        """Print and write the results, keys in the order given, as far as that was asked for.

        :raises StorageError: The file cannot be written, for example because the disk is full.
        """
        text = json.dumps(value, indent=2, allow_nan=False)
        if self.json:
            typer.echo(text)
        if self.out is not None:
            write_text(text + "\n", self.out, "--out")


def with_hosts(fabric: FabricOptions, hosts: int) -> FabricOptions:
    """Return a fabric with another number of hosts.

    :raises SpecError: The number is out of range.
    """
    return checked(
        FabricOptions, {**fabric.model_dump(), "hosts": hosts}, lambda place: f"--{place[0]}:"
    )


def names_in(text: str) -> list[str]:
    """Split names at commas, without repeats."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def examples(*commands: str, after: str = "") -> str:
    """Return a help page's last paragraph: one example command per line, then a closing line (rich
    markup).
    """
    lines = ["[bold]Examples[/bold]", *(f"  {command}" for command in commands)]
    lines += ["", after] if after else []
    # The help printer joins lines into one paragraph. Its marker against that (\b) applies up to
    # the next blank line, so a line with one space takes the place of a blank line.
    return "\b\n" + "\n".join(line or " " for line in lines)


def write_text(text: str, path: Path, flag: str) -> None:
    """Write a file that an option names, or to standard output (``-``).

    :raises StorageError: It cannot be written, for example because the disk is full.
    """
    if path == STDOUT:
        typer.echo(text, nl=False)
        return
    try:
        write_whole(path, text)
    except OSError as error:
        raise StorageError(f"{flag} {path}: cannot be written: {error.strerror}") from error
