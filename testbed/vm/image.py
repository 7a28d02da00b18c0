"""Kernels from Debian's archive, unpacked into the cache and never installed."""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.core.errors import StorageError, TestbedError
from testbed.core.files import sync_tree
from testbed.host.paths import cache_folder

__all__ = ["QEMU", "SERIES", "KernelImage", "VmError", "fetch_image", "find_image", "required"]

SERIES = ("6.12", "6.1")
"""Kernels that the tests run on; any other series that the archive has works as well."""

_ROOM = 1 << 30
"""Bytes that an unpacked kernel takes at most."""


class VmError(TestbedError):
    """A virtual machine cannot be set up; the text says what is missing, and the remedy."""


@dataclass(frozen=True)
class KernelImage:
    """A kernel that virtual machines can boot.

    :param release: Its ``uname -r``.
    :param root: The folder that its packages are unpacked in.
    """

    release: str
    root: Path

    @property
    def kernel(self) -> Path:
        """The compressed kernel (bzImage)."""
        return self.root / "boot" / f"vmlinuz-{self.release}"

    @property
    def modules(self) -> Path:
        """Its ``/lib/modules/RELEASE``."""
        return self.root / "lib/modules" / self.release

    @property
    def initramfs(self) -> Path:
        """The initial file system that `testbed.vm.initramfs` builds."""
        return self.root / "initramfs"

    @property
    def accelerator(self) -> Path:
        """The file that says how QEMU runs it here: ``kvm`` or ``tcg``."""
        return self.root / "accelerator"


QEMU = ("qemu-system-x86_64", "qemu-system-x86")
"""The program, and its package."""


def required(program: str, package: str) -> str:
    """Return the path of a program that virtual machines need.

    :raises VmError: It is not installed; the text names the remedy.
    """
    path = shutil.which(program)
    if path is None:
        raise VmError(f"{program} is not installed (package {package}): run `make vm`")
    return path


def find_image(series: str) -> KernelImage:
    """Find an unpacked kernel of a series, such as 6.12: the newest one.

    :raises VmError: There is none, or the series is not a version.
    """
    folders = [path for path in _releases(series) if (path / "initramfs").is_file()]
    if not folders:
        bare = series in SERIES and shutil.which(QEMU[0]) is None
        fix = "make vm" if bare else f"testbed vm setup --kernel {series}"
        raise VmError(f"no kernel {series} is set up: run `{fix}`")
    newest = max(folders, key=lambda path: _version_key(path.name))
    return KernelImage(newest.name, newest)


def fetch_image(series: str, say: Callable[[str], None]) -> KernelImage:
    """Download the newest kernel of a series from the archive and unpack it, unless it is there.

    :param say: Called with a line before each long step.
    :returns: The kernel; its initramfs may still be missing.
    :raises VmError: The archive has no such kernel, or apt or dpkg fail; the text has their words.
    :raises StorageError: The cache has no room, or cannot be written.
    """
    _check(series)
    apt = {name: required(name, "apt") for name in ("apt-cache", "apt-get")}
    dpkg = required("dpkg-deb", "dpkg")
    depmod = required("depmod", "kmod")
    package = _newest_package(apt["apt-cache"], series)
    release = package.removeprefix("linux-image-")
    folder = _folder() / release
    with _locked():
        if folder.is_dir():
            return KernelImage(release, folder)
        if (free := shutil.disk_usage(_folder()).free) < _ROOM:
            raise StorageError(
                f"{_folder()}: {free >> 20} MiB are free, but a kernel needs {_ROOM >> 20} MiB;"
                " set XDG_CACHE_HOME to a folder with more"
            )
        with tempfile.TemporaryDirectory(dir=_folder(), prefix=".unpack-") as scratch:
            say(f"downloading {package}")
            _run([apt["apt-get"], "-qq", "download", package], scratch)
            (archive,) = Path(scratch).glob("*.deb")
            root = Path(scratch) / release
            say(f"unpacking {package}")
            _run([dpkg, "--extract", str(archive), str(root)], scratch)
            _run([depmod, "-b", str(root), release], scratch)
            sync_tree(root)
            root.rename(folder)
    return KernelImage(release, folder)


def _check(series: str) -> None:
    if not re.fullmatch(r"[1-9]\d*\.\d+", series):
        raise VmError(f"--kernel: {series!r}: must be a kernel's series, such as {SERIES[0]}")


def _folder() -> Path:
    return cache_folder() / "kernels"


def _releases(series: str) -> list[Path]:
    _check(series)
    pattern = re.compile(re.escape(series) + r"[.+-].*")
    folder = _folder()
    return [path for path in folder.glob("*") if pattern.fullmatch(path.name)]


def _newest_package(apt_cache: str, series: str) -> str:
    """Name the newest image that the archive has: old point releases disappear from it."""
    machine = os.uname().machine
    if machine != "x86_64":
        raise VmError(f"virtual machines need an x86_64 machine: this one is {machine}")
    known = _run([apt_cache, "pkgnames", f"linux-image-{series}"]).split()
    pattern = re.compile(rf"linux-image-{re.escape(series)}(?:[.+-](?:\d|deb|bpo)\w*)+-amd64")
    # That leaves out `cloud` kernels, which lack 9p, and `rt` kernels, which schedule differently.
    images = [name for name in known if pattern.fullmatch(name)]
    if not images:
        raise VmError(
            f"the archive has no kernel {series}: must be one that `apt-cache pkgnames"
            " linux-image-` lists (run `apt-get update` if that lists none)"
        )
    return max(images, key=_version_key)


def _version_key(name: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", name)]


@contextmanager
def _locked() -> Iterator[None]:
    """Let one process at a time change the cache."""
    try:
        _folder().mkdir(parents=True, exist_ok=True)
        with open(_folder() / ".lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise StorageError(f"{error.filename or _folder()}: {error.strerror}") from error


def _run(command: list[str], folder: str | None = None) -> str:
    result = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
        errors="replace",
    )
    if result.returncode:
        words = " ".join((result.stderr or result.stdout).split())
        hint = "; run `apt-get update`" if "apt-get" in command[0] else ""
        raise VmError(f"{Path(command[0]).name} failed: {words[-300:]}{hint}")
    return result.stdout
