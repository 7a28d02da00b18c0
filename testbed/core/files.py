"""Files that a user names: read only where they are files indeed, and only so far."""

import os
import stat
from pathlib import Path

from testbed.core.errors import SpecError

__all__ = ["check_regular", "read_regular"]

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}


def check_regular(path: Path) -> None:
    """Check that a path leads to a regular file, through symbolic links or not, without opening it.

    Devices and FIFOs may have no end or no beginning, and to open some of them does something.

    :raises SpecError: It does not, or cannot be looked at.
    """
    try:
        _check_kind(path, os.stat(path).st_mode)
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error


def read_regular(path: Path, most: int) -> bytes:
    """Return what a regular file holds.

    :param most: Bytes that it may have, so that nothing larger is read.
    :raises SpecError: It is no regular file, has more bytes, or cannot be read.
    """
    check_regular(path)
    try:
        # Whoever may write there can put a FIFO in its place now: it must neither be waited for nor
        # read.
        with open(
            path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        ) as file:
            found = os.fstat(file.fileno())
            _check_kind(path, found.st_mode)
            # A file of the kernel's own says that it has none: to read some of those takes what is
            # read from others, or waits.
            data = file.read(most + 1) if found.st_size else b""
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > most:
        raise SpecError(f"{path}: must have at most {most >> 10} KiB")
    return data


def _check_kind(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise SpecError(
            f"{path}: is {_KINDS.get(stat.S_IFMT(mode), 'no file')}: must be a regular file"
        )
