"""The initial file system of a virtual machine: a static busybox, the modules that mount the host's
files, and a script that does so.
"""

import lzma
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from testbed.core.errors import StorageError
from testbed.core.files import sync
from testbed.vm.image import KernelImage, VmError, required

__all__ = ["HOST_TAG", "RESULTS", "RESULTS_TAG", "build_initramfs"]

HOST_TAG, RESULTS_TAG = "host", "results"
"""9p mount tags: the host's root, and the folder that the command and its output are in."""

RESULTS = "/run/vm"
"""Where the guest has the folder with the command."""

_ROOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
"""What the root file system needs; depmod knows what these depend on."""

_INIT = f"""#!/bin/busybox sh
# The kernel starts this as process 1: it mounts the host's files below a writable overlay.
/bin/busybox mkdir -p /proc /sys /dev /lower /upper /new
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
while read -r module; do /bin/busybox insmod /modules/$module; done </modules/order
options=trans=virtio,version=9p2000.L,msize=512000
/bin/busybox mount -t 9p -o $options,cache=loose,ro {HOST_TAG} /lower
/bin/busybox mount -t tmpfs upper /upper
/bin/busybox mkdir /upper/files /upper/work
layers=lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work
/bin/busybox mount -t overlay -o $layers overlay /new
for each in proc sys dev; do /bin/busybox mount --move /$each /new/$each; done
/bin/busybox mount -t tmpfs run /new/run
/bin/busybox mkdir -p /new{RESULTS}
/bin/busybox mount -t 9p -o $options,cache=none {RESULTS_TAG} /new{RESULTS}
exec /bin/busybox switch_root /new /bin/sh {RESULTS}/start
"""


def build_initramfs(image: KernelImage) -> Path:
    """Build the initial file system of a kernel, unless it is there (cpio, newc format).

    :raises VmError: A program or a module is missing.
    :raises StorageError: It cannot be written.
    """
    target = image.initramfs
    if target.is_file():
        return target
    busybox = required("busybox", "busybox-static")
    try:
        with tempfile.TemporaryDirectory(dir=image.root, prefix=".initramfs-") as scratch:
            root = Path(scratch) / "root"
            (root / "bin").mkdir(parents=True)
            (root / "modules").mkdir()
            shutil.copy(busybox, root / "bin/busybox")
            (root / "init").write_text(_INIT, encoding="utf-8")
            (root / "init").chmod(0o755)
            order = [_unpack(path, root / "modules") for path in _modules_in_order(image)]
            (root / "modules/order").write_text(
                "".join(f"{name}\n" for name in order), encoding="utf-8"
            )
            _pack(busybox, root, Path(scratch) / "packed")
            sync(Path(scratch) / "packed")
            os.replace(Path(scratch) / "packed", target)
    except OSError as error:
        raise StorageError(f"{error.filename or target}: {error.strerror}") from error
    return target


def _modules_in_order(image: KernelImage) -> list[Path]:
    """Files of the root's modules and of those they depend on, in the order of insertion."""
    depends: dict[str, tuple[str, list[str]]] = {}
    for line in (image.modules / "modules.dep").read_text(encoding="utf-8").splitlines():
        path, _, needed = line.partition(":")
        depends[_module_name(path)] = path, needed.split()
    builtin = {
        _module_name(line)
        for line in (image.modules / "modules.builtin").read_text(encoding="utf-8").splitlines()
    }
    order: list[str] = []
    for name in _ROOT_MODULES:
        if name in builtin:
            continue
        if name not in depends:
            raise VmError(
                f"kernel {image.release} has no module {name}: its files cannot be shared"
            )
        path, before = depends[name]
        # modules.dep lists what must be inserted first last.
        order += [each for each in [*reversed(before), path] if each not in order]
    return [image.modules / path for path in order]


def _module_name(path: str) -> str:
    return Path(path).name.partition(".")[0].replace("-", "_")


def _unpack(module: Path, folder: Path) -> str:
    """Copy a module, decompressed, because busybox inserts no others."""
    name = f"{_module_name(module.name)}.ko"
    data = module.read_bytes()
    (folder / name).write_bytes(lzma.decompress(data) if module.suffix == ".xz" else data)
    return name


def _pack(busybox: str, root: Path, target: Path) -> None:
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    with open(target, "wb") as file:
        result = subprocess.run(
            [busybox, "cpio", "-o", "-H", "newc"],
            input="".join(f"{name}\n" for name in names).encode(),
            cwd=root,
            stdout=file,
            stderr=subprocess.PIPE,
            check=False,
        )
    if result.returncode:
        raise VmError(f"busybox cpio failed: {result.stderr.decode().strip()[-300:]}")
