"""The command ``testbed``, in a process of its own or in this one."""

import contextlib
import io
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

__all__ = ["PROGRAM", "call_testbed", "run_testbed"]

PROGRAM = [sys.executable, "-c", "from testbed.cli import main; main()"]


def run_testbed(
    *arguments: str, timeout: float = 100.0, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, in a process of its own.

    :param options: Further ones of :func:`subprocess.run`.
    """
    command = [*PROGRAM, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, **options
    )


def call_testbed(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end in this process, which need not import everything again: for one
    that builds nothing.
    """
    from testbed.cli import main

    out, errors = io.StringIO(), io.StringIO()
    with (
        mock.patch("sys.argv", ["testbed", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        _signals_as_before(),
    ):
        try:
            main()
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
    return subprocess.CompletedProcess(
        ["testbed", *arguments], status, out.getvalue(), errors.getvalue()
    )


@contextlib.contextmanager
def _signals_as_before() -> Iterator[None]:
    """Undo what a command does to this process's signals."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
