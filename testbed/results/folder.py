"""The folder of one run: locked early, used by one run at a time, and written atomically.

A run that replaces another is written next to it, into ``<name>.partial``, and takes its place when
it is complete, by a rename that exchanges the two folders, so there is a complete run at any time.
Files that belong to no run are kept.
"""

import contextlib
import ctypes
import errno
import fcntl
import itertools
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from testbed.core.closing import Closing
from testbed.core.errors import SpecError, StorageError, TestbedError
from testbed.core.files import read_object, replacing, sync, sync_tree
from testbed.core.logs import logger_of
from testbed.results.manifest import SCHEMA

__all__ = ["KILLED", "RunFolder", "read_manifest", "settle"]

KILLED: Final = "killed"  # the status of a run whose process ended without a word
LEAST_FREE: Final = 64 << 20  # bytes; a run writes a few MB
LARGEST_MANIFEST: Final = 16 << 20  # bytes
NO_LOCKS: Final = (
    errno.EBADF,
    errno.ENOLCK,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
)  # NFS takes the first, of a folder
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h
OWN = (
    "manifest.json",
    "results.parquet",
    "faults.parquet",
    "stacks.parquet",
    "bench.json",
    "report.html",
    "figures",
)

log = logger_of(__name__)


class RunFolder(Closing):
    """A folder that only one run at a time may fill: it is locked until it is closed or this
    process ends.

    A `TestbedError` that leaves the context says what results remain, and where.

    :param out: Created if it does not exist, and removed again on closing if it is empty.
    :param overwrite: Replace a previous run there when :meth:`publish` is called. Files that belong
        to no run stay.
    :ivar path: Where to write: `out`, or a folder next to it while a previous run is there.
    :raises SpecError: It holds something, or another run is being written there.
    :raises StorageError: It cannot be written, or its disk is full.
    """

    def __init__(self, out: Path, overwrite: bool = False) -> None:
        self.out = self.path = out
        self._made = False
        self._locks = contextlib.ExitStack()
        try:
            with contextlib.ExitStack() as undo:
                undo.callback(self.close)
                self._made = self._take(out)
                if any(out.iterdir()):
                    self._check_previous(overwrite)
                    self.path = self._beside()
                with tempfile.TemporaryFile(dir=self.path) as probe:
                    probe.write(bytes(4096))
                free = shutil.disk_usage(self.path).free
                if free < LEAST_FREE:
                    raise StorageError(
                        f"--out {out}: its disk has {free >> 20} MiB left: must be at least"
                        f" {LEAST_FREE >> 20} MiB"
                    )
                undo.pop_all()
        except OSError as error:
            raise StorageError(
                f"--out {out}: cannot be written: {reason(error)}; choose another folder"
            ) from error

    @classmethod
    def existing(cls, path: Path) -> "RunFolder":
        """Return a folder that a run has already filled, in order to write into it again."""
        folder = cls.__new__(cls)
        folder.out = folder.path = path
        folder._made = False  # noqa: SLF001
        folder._locks = contextlib.ExitStack()  # noqa: SLF001
        return folder

    @property
    def replaces(self) -> bool:
        """Whether a previous run is still in its place."""
        return self.path != self.out

    def publish(self) -> None:
        """Let the disk have everything, and replace the previous run, if there is one, with this
        complete one; atomic.

        :raises StorageError: The disk refuses it. One of the two runs is in its place, the other
            next to it.
        """
        beside = self.path
        try:
            sync_tree(beside)
            sync(beside.resolve().parent)
            if not self.replaces:
                return
            for entry in foreign(self.out):
                bring(entry, beside / entry.name)
            owner = self.out.stat()
            os.chown(beside, owner.st_uid, owner.st_gid)
            beside.chmod(stat.S_IMODE(owner.st_mode))
            exchange(beside, self._place)
            sync(self._place.parent)
            self.path = self.out
            for entry in foreign(beside):
                if not os.path.lexists(self.out / entry.name):  # it has appeared meanwhile
                    entry.rename(self.out / entry.name)
            shutil.rmtree(beside)
        except OSError as error:
            raise StorageError(f"--out {self.out}: cannot be replaced: {reason(error)}") from error

    def remains(self) -> str:
        """Say what an unfinished run has left, and where; empty if it has measured nothing."""
        words = [f"results so far are in {self.path}"] if self._measured() else []
        if self.replaces:
            words.append(f"the previous run is still in {self.out}")
        return "; ".join(words)

    def close(self) -> None:
        """Unlock it. If it was created for this run and nothing was measured or written, remove
        it.
        """
        with contextlib.suppress(OSError):  # it is not empty, or does not exist
            if self.replaces and not self._measured():
                (self.path / "manifest.json").unlink(missing_ok=True)
                self.path.rmdir()
            elif self._made:
                self.path.rmdir()
        self._locks.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, TestbedError) and (left := self.remains()):
            error.also(left)
        super().__exit__(kind, error, trace)

    @property
    def _place(self) -> Path:
        """The folder itself, by a name whose target can be exchanged."""
        plain = self.out.name not in ("", "..") and not self.out.is_symlink()
        return self.out if plain else self.out.resolve()

    def _measured(self) -> bool:
        return (self.path / "results.parquet").exists()

    def _take(self, path: Path) -> bool:
        """Lock a folder, and create it if necessary; return whether it was created.

        Uses flock(2) on the folder itself: the lock ends with the process in any case, and leaves
        no file behind.
        """
        while True:
            try:
                path.mkdir(parents=True)
                made = True
            except FileExistsError:
                made = False
            with contextlib.ExitStack() as stack:
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, lock)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise SpecError(
                        f"--out {self.out}: another run is being written there: choose another"
                        " folder"
                    ) from None
                except OSError as error:
                    if error.errno not in NO_LOCKS:
                        raise
                    log.warning(
                        "%s: cannot be locked, so nothing keeps another run out: %s",
                        path,
                        error.strerror,
                    )
                # The previous holder of the lock may have removed or replaced the folder since it
                # was opened.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(lock), os.stat(path)):
                        self._locks.push(stack.pop_all())
                        return made

    def _check_previous(self, overwrite: bool) -> None:
        """Check that the folder's content may be replaced."""
        try:
            is_run = read_manifest(self.out)["schema"] == SCHEMA
        except (SpecError, KeyError):
            is_run = False
        if not is_run:
            raise SpecError(
                f"--out {self.out}: holds files that are no run's: choose another folder"
            )
        if not overwrite:
            raise SpecError(
                f"--out {self.out}: holds a previous run: choose another folder, or add --overwrite"
            )
        real = self.out.resolve()
        if (mounted := os.path.ismount(real)) or Path.cwd().is_relative_to(real):
            what = "a mount point" if mounted else "the current folder"
            raise SpecError(
                f"--out {self.out}: is {what}, which cannot be replaced: choose another folder"
            )

    def _beside(self) -> Path:
        """Create and lock a folder next to the one to be replaced, without touching what earlier
        runs left there.
        """
        for number in itertools.count(1):
            beside = self._place.with_name(
                f"{self._place.name}.partial" + f"-{number}" * (number > 1)
            )
            with contextlib.suppress(FileExistsError):
                beside.mkdir()
                self._take(beside)
                return beside
        raise AssertionError("there are always more numbers")

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Write ``manifest.json``, replacing any previous one; atomic."""
        text = json.dumps({"schema": SCHEMA, **manifest}, indent=2, allow_nan=False) + "\n"
        self.write("manifest.json", lambda place: place.write_text(text, encoding="utf-8"))

    def write(self, name: str, writer: Callable[[Path], Any]) -> Path:
        """Write a file by `replacing`.

        :param writer: Writes to the path that it is given.
        :raises StorageError: The disk is full, or refuses it for another reason.
        """
        place = self.path / name
        try:
            with replacing(place) as partial:
                writer(partial)
        except OSError as error:
            raise StorageError(f"{place}: cannot be written: {reason(error)}") from error
        return place


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest in a run's folder. A run that is listed as running, and whose process no
    longer locks the folder, has been killed: then its status is `KILLED`.

    :raises SpecError: There is none, or it cannot be read.
    """
    place = path / "manifest.json"
    if not place.exists():
        raise SpecError(f"{path}: is not the folder of a finished run: {place} is missing")
    manifest = read_object(place, LARGEST_MANIFEST)
    if manifest.get("status") == "running" and _abandoned(path):
        manifest |= {"status": KILLED, "error": "the process that ran it was killed"}
    return manifest


def settle(path: Path) -> None:
    """Write it into the manifest in a folder if the run there has been killed.

    :raises StorageError: The manifest cannot be written.
    """
    try:
        manifest = read_manifest(path)
    except SpecError:
        return  # it was killed before it wrote one
    if manifest.get("status") == KILLED:
        RunFolder.existing(path).write_manifest(manifest)


def _abandoned(path: Path) -> bool:
    """Whether no process has locked a run's folder; false also where folders have no locks."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(lock)


def foreign(path: Path) -> list[Path]:
    """Return the entries of a run's folder that do not belong to the run."""
    return [
        entry
        for entry in path.iterdir()
        if entry.name.removeprefix(".").removesuffix(".partial") not in OWN
    ]


def bring(source: Path, target: Path) -> None:
    """Copy a file, or a folder with its content, to another place, as hard links if the file system
    has them.
    """

    def link(entry: str | Path, copy: str | Path) -> None:
        try:
            os.link(entry, copy, follow_symlinks=False)
        except OSError:
            shutil.copy2(entry, copy, follow_symlinks=False)

    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, target, symlinks=True, copy_function=link)
    else:
        link(source, target)


def exchange(one: Path, other: Path) -> None:
    """Exchange two folders on one disk; atomic if the file system supports it (renameat2(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not libc.renameat2(
        AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE
    ):
        return
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(number, os.strerror(number), str(other))
    aside = tempfile.mkdtemp(prefix=f".{other.name}-", dir=other.parent)
    os.rename(other, aside)  # takes the place of an empty folder
    os.rename(one, other)
    os.rename(aside, one)


def reason(error: OSError) -> str:
    """Return the kernel's message for an error, without what libraries add around it."""
    return os.strerror(error.errno) if error.errno else str(error)
