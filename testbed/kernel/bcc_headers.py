"""Kernel headers for BCC on machines whose kernel has no headers package of its own.

BCC compiles its programs against ``/lib/modules/$(uname -r)/build``. A kernel that the distribution
did not build (a cloud's, a sandbox's, one's own) has no such tree. The distribution's headers will
do for programs that use only tracepoints' arguments and stable (uapi) structs:
``$BCC_KERNEL_SOURCE`` makes BCC take another tree. Debian splits its tree in two packages, one for
all flavours and one with what the configuration generated, and with the variable set BCC looks into
one directory only; so the two are merged here, by symbolic links in the build directory. Nothing
under ``/lib/modules`` is touched.
"""

import contextlib
import os
import platform
import re
from pathlib import Path

from testbed.core.errors import KernelError
from testbed.kernel.compile import BUILD

__all__ = ["bcc_environment", "use_bcc_headers"]

# Linux's names of architectures, where they are not the machine's.
ARCHITECTURES = {"x86_64": "x86", "aarch64": "arm64"}


def bcc_environment(
    sources: Path = Path("/usr/src"),
    modules: Path = Path("/lib/modules"),
    merged: Path = BUILD / "bcc-headers",
) -> dict[str, str]:
    """Return the environment variables that BCC needs here: none where it finds headers by itself.

    :param sources: Where the distribution's headers packages put their trees.
    :param modules: The modules' directory, with one folder a kernel release.
    :param merged: Where to make the merged tree.
    :raises KernelError: No headers at all; the text names the package.
    """
    release = platform.release()
    by_itself = (modules / release / "build", Path("/sys/kernel/kheaders.tar.xz"))
    if "BCC_KERNEL_SOURCE" in os.environ or any(path.exists() for path in by_itself):
        return {}
    flavours = sorted(sources.glob("linux-headers-*"), key=lambda path: numbers(path.name))
    for flavour in reversed(
        flavours
    ):  # the newest first: nearest to a kernel newer than the distribution's
        if (flavour / "include" / "generated" / "autoconf.h").exists():
            return {"BCC_KERNEL_SOURCE": str(merge(flavour, merged / flavour.name))}
    raise KernelError(
        f"no kernel headers for BCC: neither {by_itself[0]} nor {sources}/linux-headers-*; run:"
        " make apt"
    )


def use_bcc_headers() -> None:
    """Set this process's environment so that ``bcc.BPF(...)`` compiles.

    :raises KernelError: No headers at all; the text names the package.
    """
    os.environ.update(bcc_environment())


def numbers(name: str) -> list[int]:
    """Return the numbers in a name, so that 6.1.0-56 sorts after 6.1.0-9."""
    return [int(number) for number in re.findall(r"\d+", name)]


def merge(flavour: Path, target: Path) -> Path:
    """Link a flavour's tree and the tree that all flavours share into one directory,
    and return it.
    """
    common = flavour.parent / re.sub(r"^(linux-headers-[\d.]+-\d+)-.*", r"\1-common", flavour.name)
    arch = ARCHITECTURES.get(platform.machine(), platform.machine())
    for folder in ("include", f"arch/{arch}/include"):
        for tree in (
            flavour,
            common,
        ):  # where both have an entry, what the configuration generated counts
            if (tree / folder).is_dir():
                (target / folder).mkdir(parents=True, exist_ok=True)
                for entry in (tree / folder).iterdir():
                    with contextlib.suppress(
                        FileExistsError
                    ):  # an earlier or concurrent call made it
                        (target / folder / entry.name).symlink_to(entry)
    return target
