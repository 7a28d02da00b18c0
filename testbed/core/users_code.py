"""Errors of code that the testbed runs for its user: a task, a model, a backend of another module.

Most of such a traceback is the testbed's and torch's. What helps is the error, in one line, and the
places in the user's own files.
"""

from __future__ import annotations

import logging
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from testbed.core.errors import TestbedError, limit_reached
from testbed.core.logs import logger_of

__all__ = ["UsersError", "own_frames", "summary", "users_code"]

logger = logger_of(__name__)

_ROOT: Final = Path(__file__).parents[2]
_OURS: Final = [_ROOT / name for name in ("testbed", "analysis", "topologies")]
_LIBRARIES: Final = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
_PACKAGES: Final = frozenset({"site-packages", "dist-packages"})
_FRAME: Final = re.compile(r' *File "(.+?)", line \d+')


class UsersError(TestbedError):
    """Code of the user's has raised an error; the text says which and, in further lines, where."""


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Run code of the user's.

    :param what: The start of the error, such as ``task tasks:Mine: model``.
    :raises UsersError: It has raised another error than a `TestbedError`, or one that says that a
        limit is reached.
    """
    try:
        yield
    except TestbedError:
        raise
    except Exception as error:
        if limit_reached(error):
            raise
        text = traceback.format_exc()
        logger.info("%s", text)
        raise UsersError(f"{what}: {summary(error)}{own_frames(text)}") from None


def summary(error: BaseException) -> str:
    """Return an error in one line, and how to see the rest."""
    text = " ".join(str(error).split())
    shown = logger.isEnabledFor(logging.INFO)
    return f"{type(error).__name__}{': ' if text else ''}{text}" + (
        "" if shown else " (-v shows the traceback)"
    )


def own_frames(text: str) -> str:
    """Return the part of a traceback that is in files of the user's, each line after a newline."""
    found, own = [], False
    for line in text.splitlines():
        if frame := _FRAME.match(line):
            own = _is_users(frame[1])
        elif not line.startswith("    "):
            own = False
        if own and line not in found:
            found.append(line)
    return "".join(f"\n{line}" for line in found)


def _is_users(file: str) -> bool:
    path = Path(file)
    return not (
        file.startswith("<")
        or path == Path(sys.argv[0])
        or _PACKAGES & {*path.parts}
        or any(path.is_relative_to(folder) for folder in (*_OURS, *_LIBRARIES))
    )
