"""C for user space: loops that numpy cannot fuse and system calls that Python makes too slowly.

One file a library or program, ``testbed/native/<name>.c``, compiled on first use for the CPU at
hand and kept in ``build/native`` under a hash of all that goes into it. ``python -m
testbed.native`` compiles all of them.
"""

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from testbed.core.errors import TestbedError
from testbed.core.files import sync
from testbed.core.logs import logger_of, timed
from testbed.host.paths import ROOT, build_folder

__all__ = ["compile_all", "compile_native", "load", "load_locked", "names"]

logger = logger_of(__name__)

SOURCES = Path(__file__).parent
BUILD = build_folder() / "native"
FLAGS = (
    "-O3",
    "-march=native",
    "-mprefer-vector-width=512",  # where the CPU has such vectors
    "-fno-strict-aliasing",  # as in the kernel: lanes are read as words
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-Werror",
)
LIBRARY = ("-fPIC", "-shared")
#: What is run, not loaded.
PROGRAMS = frozenset({"delay_line"})
#: Headers that programs in the kernel read, too.
SHARED = ROOT / "bpf"


def names() -> list[str]:
    """List the libraries and programs that there are sources for."""
    return sorted(path.stem for path in SOURCES.glob("*.c"))


@functools.cache
def _toolchain() -> tuple[str, bytes]:
    """The compiler, and what its output depends on: its version and the CPU that ``-march=native``
    means.
    """
    compiler = shutil.which("clang") or shutil.which("cc")
    if compiler is None:
        raise TestbedError(
            "no C compiler: neither clang nor cc is on PATH; `make apt` installs clang"
        )
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    cpu = b"".join(
        sorted({line for line in lines if line.startswith((b"model name", b"flags", b"Features"))})
    )
    return compiler, version + cpu


def compile_native(name: str) -> Path:
    """Compile ``<name>.c`` unless its object is there already.

    :returns: The path of the shared object, or of the program.
    :raises TestbedError: There is no such source or compiler, or it refused the source; the text
        says why.
    """
    source = SOURCES / f"{name}.c"
    if not source.is_file():
        raise TestbedError(
            f"native library {name!r} does not exist: must be one of {', '.join(names())}"
        )
    compiler, identity = _toolchain()
    flags = FLAGS if name in PROGRAMS else (*FLAGS, *LIBRARY)
    parts = [identity, " ".join(flags).encode(), source.read_bytes()]
    parts += [
        header.read_bytes()
        for header in (*sorted(SOURCES.glob("*.h")), *sorted(SHARED.glob("*/*.h")))
    ]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    target = BUILD / digest / (name if name in PROGRAMS else f"{name}.so")
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Workers may compile at once: each writes a file of its own, and the first one's stays, because
    # it may be loaded by now.
    handle, temporary = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    try:
        command = [compiler, *flags, f"-I{SHARED}", "-o", temporary, str(source)]
        logger.debug("%s", shlex.join(command))
        with timed(logger, logging.INFO, "compiled %s", source.name):
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                encoding="utf-8",
                errors="replace",
            )
        if done.returncode:
            raise TestbedError(
                f"{shlex.join(command)} exited with {done.returncode}:\n{done.stderr.rstrip()}"
            )
        os.chmod(temporary, 0o755)
        sync(Path(temporary))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return target


def compile_all() -> list[Path]:
    """Compile every library and program."""
    return [compile_native(name) for name in names()]


@functools.cache
def load(name: str) -> ctypes.CDLL:
    """Load a library, compiling it first where needed.

    Calls into it drop the interpreter's lock; ``errno`` is read with `ctypes.get_errno`.

    :raises TestbedError: As `compile_native`.
    """
    return ctypes.CDLL(str(compile_native(name)), use_errno=True)


@functools.cache
def load_locked(name: str) -> ctypes.PyDLL:
    """Load a library for functions that take Python objects (``floats.h``): calls keep the
    interpreter's lock unless they release it themselves.

    :raises TestbedError: As `compile_native`.
    """
    return ctypes.PyDLL(str(compile_native(name)), use_errno=True)
