"""The ``testbed`` command: one module a verb, each with ``register(app)``.

Verb modules import heavy packages (torch, pandas, Mininet) inside their functions, so that
``--help`` answers at once. They check usage first, then for root, and only then create anything.
"""

import contextlib
import difflib
import importlib
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer

import testbed
from testbed.cli import options
from testbed.core.errors import TestbedError, limit_reached, no_room
from testbed.core.logs import logger_of
from testbed.core.registry import look_in
from testbed.core.renamed import renamed
from testbed.core.stdio import open_streams
from testbed.core.users_code import own_frames, summary
from testbed.host.rights import add_system_tools, allow_many_files

__all__ = ["app", "main"]

VERBS = (
    "doctor",
    "list",
    "bench",
    "calibrate",
    "run",
    "report",
    "sweep",
    "partition",
    "paper",
    "trace",
    "archive",
    "rerun",
    "soak",
    "up",
    "exec",
    "capture",
    "dissector",
    "attach",
    "detach",
    "status",
    "top",
    "down",
    "clean",
    "vm",
)

EPILOG = options.examples(
    "testbed doctor",
    "testbed bench allreduce --hosts 4 -b 64K -e 64M -f 4",
    "testbed run scenarios/ddp_debian.toml --out runs/demo",
    "testbed up --hosts 4 --topology star   [dim]then exec, status, down[/dim]",
    after=(
        "Exit status: 0 done; 1 failed; 2 wrong usage, nothing was built; 130, 143, 129 ended by"
        " SIGINT, SIGTERM, SIGHUP."
    ),
)

app = typer.Typer(
    name="testbed",
    help=(
        "Collectives inside the Linux kernel, on Mininet hosts, beside the same collectives over"
        " sockets."
    ),
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,  # a bug shows Python's own traceback
    add_completion=False,
)


def print_version(wanted: bool) -> None:
    """Print the version and exit, if asked to."""
    if wanted:
        typer.echo(f"testbed {testbed.__version__}")
        raise typer.Exit


@app.callback()
def root(
    verbose: options.Verbose = 0,
    version: bool = typer.Option(
        False, "--version", callback=print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Collectives inside the Linux kernel, on Mininet hosts, beside the same collectives over
    sockets.
    """


for verb in VERBS:
    importlib.import_module(f"testbed.cli.{verb}").register(app)


def end_by_signal(number: int, _frame: FrameType | None) -> NoReturn:
    """Exit by an exception, so that every open resource is closed."""
    sys.exit(128 + number)


def main() -> NoReturn:
    """Run the command line; every error that a user can cause becomes one line on stderr and an
    exit status.

    These are every :class:`TestbedError`, wrong usage, a full disk, and exhausted memory or another
    limit, for which -vv shows the traceback; errors of the user's own code have its lines, too, and
    -v shows the traceback; anything else is a bug.
    """
    open_streams()
    add_system_tools()
    allow_many_files()
    verb = next((each for each in sys.argv[1:] if not each.startswith("-")), None)
    if verb != "rerun":  # whose archive may be anybody's
        with contextlib.suppress(FileNotFoundError):  # the folder has been removed
            look_in(Path.cwd())
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_by_signal)
    try:
        sys.exit(
            app(prog_name="testbed", standalone_mode=False)
        )  # None, or the status given to typer.Exit
    except TestbedError as error:
        fail(
            str(error).replace("\n", "\nerror: ") if error.a_line_each else str(error),
            error.exit_status,
        )
    except typer.TyperException as error:
        # Without arguments, the help is printed, followed by an error without a text.
        context: typer.Context | None = getattr(error, "ctx", None)
        option = str(getattr(error, "option_name", ""))  # set if the option does not exist
        if context and (now := renamed(option)) in {
            flag for each in context.command.params for flag in each.opts
        }:
            fail(f"unknown option {option}: renamed to {now}", error.exit_code)
        # The nearest by spelling need not be near: --trace is no word for --backend.
        if near := getattr(error, "possibilities", None):
            error.possibilities = difflib.get_close_matches(option, near, cutoff=0.75)  # type: ignore[attr-defined]
        text = " ".join(error.format_message().removesuffix(".").split())
        fail(
            f"{text}; see {context.command_path if context else 'testbed'} --help" if text else "",
            error.exit_code,
        )
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        if full := no_room(error):
            fail(full, 1)
        if limit := limit_reached(error):
            logger_of(__name__).debug("%s", limit, exc_info=True)
            fail(limit, 1)
        text = "".join(traceback.format_exception(error))
        if frames := own_frames(text):
            logger_of(__name__).info("%s", text)
            fail(f"{summary(error)}{frames}", 1)
        raise


def fail(text: str, status: int) -> NoReturn:
    """Print the error after all other output, and exit."""
    sys.stdout.flush()
    if text:
        typer.echo(f"error: {text}", err=True)
    sys.exit(status)
