"""The standard streams and signals of a process, whoever started it."""

import io
import os
import signal
import sys

__all__ = ["default_signals", "open_streams"]

_STREAMS = ("stdin", "stdout", "stderr")


def open_streams() -> None:
    """Make sure that the standard streams are there and take any text.

    One that whoever started this process had closed (``2>&-``) becomes /dev/null, so that no other
    file gets its number. Characters that a stream's encoding does not have, as of the locale C, are
    replaced.
    """
    for number, name in enumerate(_STREAMS):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(_null(number), "w" if number else "r", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)
        elif isinstance(stream, io.TextIOWrapper) and number:
            stream.reconfigure(errors="replace" if number == 1 else "backslashreplace")


def _null(number: int) -> int:
    """Open /dev/null under a number, if that is free."""
    try:
        os.fstat(number)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        if null != number:
            os.dup2(null, number)
            os.close(null)
        return number
    return os.open(os.devnull, os.O_RDWR)


def default_signals() -> None:
    """Undo what Python ignores, just before the process becomes another program: a child that
    writes into a closed pipe has to end.
    """
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
