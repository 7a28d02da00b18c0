"""The folder of one run: taken early, with a clear word when it cannot be, and written atomically."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from testbed.closing import Closing
from testbed.errors import SpecError, StorageError

__all__ = ["RunFolder"]

SCHEMA: Final = "collective-testbed/run/1"
LEAST_FREE: Final = 64 << 20  # bytes; a run writes a few MB
OWN = ("manifest.json", "results.parquet", "faults.parquet", "report.html", "figures")


class RunFolder(Closing):
    """A folder that a run may fill. Where this made it and nothing has come in, it goes again on closing.

    :param path: Made where it does not exist.
    :param overwrite: Remove what a previous run left there; other files are never touched.
    :raises SpecError: It holds something.
    :raises StorageError: It cannot be written, or its disk is full.
    """

    def __init__(self, path: Path, overwrite: bool = False) -> None:
        self.path = path
        try:
            self._made = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            self._clear(overwrite)
            with tempfile.TemporaryFile(dir=path) as probe:
                probe.write(bytes(4096))
            free = shutil.disk_usage(path).free
        except OSError as error:
            raise StorageError(f"--out {path}: cannot be written: {reason(error)}; choose another folder") from error
        if free < LEAST_FREE:
            self.close()
            raise StorageError(f"--out {path}: its disk has {free >> 20} MiB left: needed are {LEAST_FREE >> 20} MiB")

    @classmethod
    def existing(cls, path: Path) -> "RunFolder":
        """Return a folder that a run has filled already, to write into it again."""
        folder = cls.__new__(cls)
        folder.path = path
        folder._made = False
        return folder

    def close(self) -> None:
        """Remove the folder where it has stayed empty."""
        if self._made:
            with contextlib.suppress(OSError):  # it holds something
                self.path.rmdir()

    def _clear(self, overwrite: bool) -> None:
        if not any(self.path.iterdir()):
            return
        if not self._is_run():
            raise SpecError(f"--out {self.path}: holds files that are no run's: choose another folder")
        if not overwrite:
            raise SpecError(f"--out {self.path}: holds a previous run: choose another folder, or add --overwrite")
        for name in OWN:
            place = self.path / name
            if place.is_dir():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)

    def _is_run(self) -> bool:
        try:
            return bool(json.loads((self.path / "manifest.json").read_text())["schema"] == SCHEMA)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Write ``manifest.json``, replacing what was there; atomic."""
        text = json.dumps({"schema": SCHEMA, **manifest}, indent=2, allow_nan=False) + "\n"
        self.write("manifest.json", lambda place: place.write_text(text))

    def write(self, name: str, writer: Callable[[Path], Any]) -> Path:
        """Write a file under another name first, then move it into place: readers see all of it or none.

        :param writer: Writes the path that it is given.
        :raises StorageError: The disk is full, or does not take it for another reason.
        """
        place = self.path / name
        partial = place.with_name(f".{place.name}.partial")
        try:
            writer(partial)
            os.replace(partial, place)
        except OSError as error:
            raise StorageError(f"{place}: cannot be written: {reason(error)}") from error
        finally:
            with contextlib.suppress(OSError):  # such as a disk that is read-only by now
                partial.unlink(missing_ok=True)
        return place


def reason(error: OSError) -> str:
    """Return the kernel's words for an error; libraries put their own around them."""
    return os.strerror(error.errno) if error.errno else str(error)
