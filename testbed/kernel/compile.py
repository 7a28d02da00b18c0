"""Compile ``bpf/<name>.bpf.c`` with clang, cached by everything that determines the result."""

import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from testbed.core.errors import KernelError
from testbed.core.logs import logger_of, timed
from testbed.host.paths import ROOT, build_folder

__all__ = ["BPF", "BUILD", "compile_all", "compile_bpf", "sources"]

logger = logger_of(__name__)

BPF = ROOT / "bpf"
BUILD = build_folder()

# mcpu=v3: atomic exchange and compare-and-exchange, which the duplicate checks need (LLVM 12, Linux
# 5.12).
FLAGS = (
    "-target",
    "bpf",
    "-mcpu=v3",
    "-O2",
    "-g",
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-parameter",
)


def sources() -> list[str]:
    """Names of all programs in ``bpf/``, sorted."""
    return sorted(path.name.removesuffix(".bpf.c") for path in BPF.glob("*.bpf.c"))


def compile_bpf(name: str) -> Path:
    """Compile one program, or find it in the cache.

    :param name: ``ring`` for ``bpf/ring.bpf.c``.
    :returns: Path of the ``.bpf.o``.
    :raises KernelError: no such source, no clang, no folder for the object, or the compiler's
        message.
    """
    source = BPF / f"{name}.bpf.c"
    if not source.exists():
        raise KernelError(f"no BPF program {name!r}: bpf/ has {', '.join(sources())}")
    clang = shutil.which("clang")
    if clang is None:
        raise KernelError("clang is not installed: run `make setup`")
    # The multiarch folder has asm/types.h; for the bpf target, clang does not search it.
    includes = (
        f"-I{BPF}",
        f"-I{BPF / 'include'}",
        f"-I/usr/include/{sysconfig.get_config_var('MULTIARCH')}",
    )
    target = BUILD / "bpf" / _digest(source, (clang, *FLAGS)) / f"{name}.bpf.o"
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Several processes may compile the same program at once: each writes its own file, the last
        # rename wins.
        descriptor, scratch = tempfile.mkstemp(dir=target.parent, suffix=".o")
    except OSError as error:
        raise KernelError(
            f"no folder to compile to: {error}: set TESTBED_BUILD to a writable folder"
        ) from error
    os.close(descriptor)
    command = [clang, *FLAGS, *includes, "-c", str(source), "-o", scratch]
    logger.debug("%s", shlex.join(command))
    with timed(logger, logging.INFO, "compiled %s", source.name):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        Path(scratch).unlink(missing_ok=True)
        raise KernelError(f"clang refused bpf/{name}.bpf.c:\n{result.stderr.strip()}")
    os.chmod(scratch, 0o644)
    os.replace(scratch, target)
    return target


def compile_all() -> list[Path]:
    """Compile every program in ``bpf/``."""
    return [compile_bpf(name) for name in sources()]


def _digest(source: Path, flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256("\0".join(flags).encode())
    for path in (source, *sorted(BPF.glob("*/*.h"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
