"""Compile ``bpf/<name>.bpf.c`` with clang, cached by everything that determines the result."""

import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.core.errors import KernelError
from testbed.core.files import sync
from testbed.core.logs import logger_of, timed
from testbed.host.paths import ROOT, build_folder

__all__ = ["BPF", "BUILD", "compile_all", "compile_bpf", "compile_file", "sources"]

logger = logger_of(__name__)

BPF = ROOT / "bpf"
BUILD = build_folder()
_ELF = b"\x7fELF"

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
    clang = _clang()
    target = BUILD / "bpf" / _digest(source, (clang, *FLAGS)) / f"{name}.bpf.o"
    if not target.exists():
        _run([clang, *FLAGS, *_includes(), "-c", str(source)], target, f"bpf/{name}.bpf.c")
    return target


def compile_file(source: Path) -> Path:
    """Compile a user's program, or find it in the cache, which is keyed by the text that the
    compiler sees: the file's and that of all that it includes. An object is taken as it is by now.

    :raises KernelError: There is no such file, it is neither C source nor an object, or the
        compiler's message.
    """
    source = Path(os.path.abspath(source))
    try:
        data = source.read_bytes()
    except OSError as error:
        raise KernelError(f"{source}: {error.strerror}") from error
    name = f"{source.name.partition('.')[0]}.bpf.o"
    if data.startswith(_ELF):
        target = BUILD / "bpf" / hashlib.sha256(data).hexdigest()[:16] / name
        if not target.exists():
            with _scratch(target) as scratch:
                Path(scratch).write_bytes(data)
        return target
    if b"\0" in data:
        raise KernelError(f"{source}: is neither C source nor a compiled object (ELF)")
    # Warnings are no errors: they are the author's business, and each version of clang has others.
    flags = [flag for flag in FLAGS if flag != "-Werror"]
    command = [_clang(), *flags, *_includes(), "-x", "c", str(source)]
    seen = _execute([*command, "-E"])
    if seen.returncode:
        raise KernelError(f"clang refused {source}:\n{seen.stderr.strip()}")
    key = hashlib.sha256("\0".join([*command, seen.stdout]).encode()).hexdigest()[:16]
    target = BUILD / "bpf" / key / name
    if not target.exists():
        _run([*command, "-c"], target, str(source))
    return target


def _clang() -> str:
    if (clang := shutil.which("clang")) is None:
        raise KernelError("clang is not installed: run `make setup`")
    return clang


def _includes() -> tuple[str, ...]:
    # The multiarch folder has asm/types.h; for the bpf target, clang does not search it.
    multiarch = f"-I/usr/include/{sysconfig.get_config_var('MULTIARCH')}"
    return (f"-I{BPF}", f"-I{BPF / 'include'}", multiarch)


def _run(command: list[str], target: Path, what: str) -> None:
    with _scratch(target) as scratch:
        command = [*command, "-o", scratch]
        logger.debug("%s", shlex.join(command))
        with timed(logger, logging.INFO, "compiled %s", what):
            result = _execute(command)
        if result.returncode:
            raise KernelError(f"clang refused {what}:\n{result.stderr.strip()}")


@contextmanager
def _scratch(target: Path) -> Iterator[str]:
    """The path of a file that becomes another one: that is there whole, or not at all."""
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
    try:
        yield scratch
        os.chmod(scratch, 0o644)
        sync(Path(scratch))
        os.replace(scratch, target)
    finally:
        Path(scratch).unlink(missing_ok=True)


def _execute(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, capture_output=True, check=False, encoding="utf-8", errors="replace"
    )


def compile_all() -> list[Path]:
    """Compile every program in ``bpf/``."""
    return [compile_bpf(name) for name in sources()]


def _digest(source: Path, flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256("\0".join(flags).encode())
    for path in (source, *sorted(BPF.glob("*/*.h"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
