"""Reading files that a user names: only regular files, and only up to a maximum size."""

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

    Reading a device or FIFO may never end or never begin, and opening some devices has side
    effects.

    :raises SpecError: It does not, or cannot be examined.
    """
    try:
        _check_kind(path, os.stat(path).st_mode)
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error


def read_regular(path: Path, most: int) -> bytes:
    """Return what a regular file holds.

    :param most: Maximum size in bytes; nothing larger is read.
    :raises SpecError: It is not a regular file, is larger, or cannot be read.
    """
    check_regular(path)
    try:
        # Another user with write access may have put a FIFO there since: do not wait for it or read
        # it.
        with open(
            path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        ) as file:
            found = os.fstat(file.fileno())
            _check_kind(path, found.st_mode)
            # A file of the kernel's (procfs, sysfs) has size 0. Reading some of these consumes data
            # that other readers need, or blocks.
            data = file.read(most + 1) if found.st_size else b""
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > most:
        raise SpecError(f"{path}: must have at most {most >> 10} KiB")
    return data


def _check_kind(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise SpecError(
            f"{path}: is {_KINDS.get(stat.S_IFMT(mode), 'not a file')}: must be a regular file"
        )
