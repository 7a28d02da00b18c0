"""Reading files that a user names: only regular files, and only up to a maximum size. Writing
files that must last: whole or not at all, also if the power fails.
"""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from testbed.core.errors import SpecError
from testbed.core.numbers import Whole

__all__ = [
    "check_regular",
    "most_expanded",
    "parse_object",
    "read_object",
    "read_regular",
    "replacing",
    "sync",
    "sync_tree",
    "write_whole",
]

EXPANDED: Final = 1 << 10  # MiB
EXPAND: Final = "TESTBED_EXPAND_MIB"
"""Environment: `EXPANDED`, if the user allows another."""

MOST_VALUES: Final = 1 << 21  # of a file in JSON

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
            # Reading allocates as much as is asked for, not as much as is there.
            data = file.read(min(most, found.st_size) + 1) if found.st_size else b""
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > most:
        raise SpecError(f"{path}: must have at most {most >> 10} KiB")
    return data


def most_expanded() -> int:
    """Return how many bytes a file from elsewhere may expand to in memory.

    :raises SpecError: The environment does not have a number.
    """
    given = os.environ.get(EXPAND)
    if given is None:
        return EXPANDED << 20
    try:
        return Whole(1, 1 << 30)(given) << 20
    except SpecError as error:
        raise SpecError(f"{EXPAND} = {error}") from None


def read_object(path: Path, most: int) -> dict[str, Any]:
    """Return the JSON object that a file holds.

    :param most: As in `read_regular`.
    :raises SpecError: It cannot be read, or holds something else: for example because it is torn.
    """
    return parse_object(read_regular(path, most), str(path))


def parse_object(data: bytes, name: str) -> dict[str, Any]:
    """Return the JSON object that some data are.

    :param name: Stands at the start of errors.
    :raises SpecError: They are something else, or have more than `MOST_VALUES`: the shortest ones
        take 30 times as many bytes in memory.
    """
    try:
        if sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES} values")
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{name}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise SpecError(f"{name}: cannot be read: it is not a JSON object")
    return found


@contextlib.contextmanager
def replacing(path: Path, mark: str = "partial") -> Iterator[Path]:
    """Let the caller write a file under another name, then move it into place: readers see all of
    it or none, and so does whoever looks after a power failure. An error leaves what was there.

    What replaces a file keeps its owner and mode; where a symbolic link leads is replaced, and a
    device or FIFO is written to.

    :param mark: In the other name; of each writer's own, if there may be several.
    :raises OSError: The disk is full, or refuses it for another reason.
    """
    place = Path(os.path.realpath(path))
    before = place.stat() if place.exists() else None
    if before is not None and not stat.S_ISREG(before.st_mode):
        yield path
        return
    partial = place.with_name(f".{place.name}.{mark}")
    try:
        yield partial
        if before is not None:
            os.chmod(partial, stat.S_IMODE(before.st_mode))
            with contextlib.suppress(PermissionError):  # only root may give files away
                os.chown(partial, before.st_uid, before.st_gid)
        sync(partial)
        os.replace(partial, place)
        sync(place.parent)
    finally:
        with contextlib.suppress(OSError):  # for example if the disk has become read-only
            partial.unlink(missing_ok=True)


def write_whole(path: Path, data: str | bytes, mark: str = "partial") -> None:
    """Write a file by `replacing`."""
    with replacing(path, mark) as partial:
        partial.write_bytes(data.encode() if isinstance(data, str) else data)


def sync(path: Path) -> None:
    """Wait until the disk has what a file holds, or the names in a folder (fsync(2)).

    :raises OSError: The disk could not write it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Wait until the disk has a folder with everything in it.

    :raises OSError: As in `sync`.
    """
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if stat.S_ISREG(path.lstat().st_mode):
                sync(path)
        sync(Path(place))


def _check_kind(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise SpecError(
            f"{path}: is {_KINDS.get(stat.S_IFMT(mode), 'not a file')}: must be a regular file"
        )
