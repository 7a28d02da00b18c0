"""Probes of what it takes to get from C to a loaded program: BTF, clang, libbpf, the verifier."""

import sysconfig
from pathlib import Path

from testbed.kernel import XDP_PASS, BpfObject
from testbed.kernel.libbpf import libbpf
from testbed.probes.finding import Missing, command

__all__ = ["btf", "clang", "jumbo", "library", "verifier"]

BTF = Path("/sys/kernel/btf/vmlinux")
BTF_MAGIC = 0xEB9F  # linux/btf.h
SOURCE = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
SEC("xdp") int probe(struct xdp_md *ctx) { return XDP_PASS; }
"""


def btf() -> str:
    """Read the header of the running kernel's own types."""
    with BTF.open("rb") as file:
        header = file.read(2)
    if int.from_bytes(header, "little") != BTF_MAGIC and int.from_bytes(header, "big") != BTF_MAGIC:
        raise Missing(f"{BTF} does not begin with {BTF_MAGIC:#x}")
    return f"{BTF} is readable"


def clang() -> str:
    """Compile a program for the bpf target with libbpf's and the kernel's headers."""
    # asm/types.h is there; for the bpf target, clang does not search it.
    include = f"-I/usr/include/{sysconfig.get_config_var('MULTIARCH')}"
    command(
        ["clang", "-target", "bpf", "-O2", "-g", include, "-x", "c", "-c", "-", "-o", "/dev/null"],
        SOURCE,
    )
    return "compiles for the bpf target, with libbpf's headers"


def library() -> str:
    """Load libbpf with every function that the kernel layer declares."""
    libbpf()
    return "loads, with every function that is used here"


def verifier() -> str:
    """Load an object and run one of its programs on a packet."""
    with BpfObject("probe") as probe:
        verdict = probe.programs["probe_pass"].test_run(bytes(64)).retval
    if verdict != XDP_PASS:
        raise Missing(f"BPF_PROG_TEST_RUN of a program that returns {XDP_PASS} gave {verdict}")
    return "probe.bpf.c is accepted, and BPF_PROG_TEST_RUN runs it"


def jumbo() -> str:
    """Write into the first fragment of a frame in place."""
    frame = bytes(3520 + 4096)  # veth's linear part, and a page
    with BpfObject("probe_jumbo") as probe:
        run = probe.programs["probe_fragment"].test_run(frame)
    if run.retval != XDP_PASS or run.data != frame[:-1] + b"\x5a":
        raise Missing(f"a test run of probe_fragment gave {run.retval}, and wrote nothing in place")
    return "programs take frames with fragments, and write into them in place"
