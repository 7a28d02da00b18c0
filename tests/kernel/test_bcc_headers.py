"""Where BCC's headers come from, with directory trees laid out like those of Debian's packages."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.core.errors import KernelError
from testbed.kernel import bcc_headers
from testbed.kernel.bcc_headers import bcc_environment

ARCH = bcc_headers.ARCHITECTURES.get(platform.machine(), platform.machine())
# The files in the packages of a release, one per line.
FLAVOUR = (
    "include/generated/autoconf.h",
    "include/config/auto.conf",
    f"arch/{ARCH}/include/generated/asm/unistd.h",
)
COMMON = ("include/linux/kconfig.h", "include/uapi/linux/bpf.h", f"arch/{ARCH}/include/asm/page.h")


def install(sources: Path, release: str) -> None:
    for package, files in ((f"{release}-cloud-amd64", FLAVOUR), (f"{release}-common", COMMON)):
        for file in files:
            path = sources / f"linux-headers-{package}" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{package}/{file}")


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Path]:
    """Return empty directories in place of the machine's, and a kernel without headers
    of its own.
    """
    if Path("/sys/kernel/kheaders.tar.xz").exists():
        pytest.skip("this kernel brings its headers along (CONFIG_IKHEADERS)")
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    return {name: tmp_path / name for name in ("sources", "modules", "merged")}


def test_without_headers_none_are_found(nowhere: dict[str, Path]) -> None:
    with pytest.raises(KernelError) as error:
        bcc_environment(**nowhere)
    build = nowhere["modules"] / platform.release() / "build"
    assert (
        str(error.value)
        == f"no kernel headers for BCC: neither {build} nor {nowhere['sources']}/linux-headers-*;"
        " run: make apt"
    )


def test_the_running_kernels_own_headers_are_used(nowhere: dict[str, Path]) -> None:
    install(nowhere["sources"], "6.1.0-56")
    (nowhere["modules"] / platform.release() / "build").mkdir(parents=True)
    assert bcc_environment(**nowhere) == {}


def test_the_user_can_name_the_headers(
    nowhere: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(nowhere["sources"], "6.1.0-56")
    monkeypatch.setenv("BCC_KERNEL_SOURCE", "/elsewhere")
    assert bcc_environment(**nowhere) == {}


def test_the_newest_flavour_is_merged_with_its_common_tree(nowhere: dict[str, Path]) -> None:
    for release in ("6.1.0-9", "6.1.0-56", "5.10.0-99"):
        install(nowhere["sources"], release)
    for _ in range(2):  # the second time it already exists
        tree = Path(bcc_environment(**nowhere)["BCC_KERNEL_SOURCE"])
        for file in FLAVOUR:
            assert (tree / file).read_text() == f"6.1.0-56-cloud-amd64/{file}"
        for file in COMMON:
            assert (tree / file).read_text() == f"6.1.0-56-common/{file}"


def test_a_half_installed_package_is_skipped(nowhere: dict[str, Path]) -> None:
    (nowhere["sources"] / "linux-headers-9.9.9-1-cloud-amd64").mkdir(parents=True)
    install(nowhere["sources"], "6.1.0-56")
    assert bcc_environment(**nowhere)["BCC_KERNEL_SOURCE"].endswith(
        "linux-headers-6.1.0-56-cloud-amd64"
    )


def test_using_headers_sets_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bcc_headers, "bcc_environment", lambda: {"BCC_KERNEL_SOURCE": "/merged"})
    monkeypatch.setenv("BCC_KERNEL_SOURCE", "")
    bcc_headers.use_bcc_headers()
    assert os.environ["BCC_KERNEL_SOURCE"] == "/merged"


@pytest.mark.kernel
@pytest.mark.needs("BCC")
@pytest.mark.deep
def test_bcc_compiles_networking_headers() -> None:
    """Structs of sockets and buffers need the deepest includes: memory, locking, this
    architecture.
    """
    source = """
from bcc import BPF
program = BPF(text='''
#include <linux/skbuff.h>
#include <net/tcp.h>
BPF_HASH(lengths, u32, u64);
RAW_TRACEPOINT_PROBE(net_dev_queue) { u32 key = sizeof(struct sk_buff); lengths.increment(key); return 0; }
''')
"""  # noqa: E501
    environment = {**os.environ, **bcc_environment()}
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
