"""Probes of larger software: BCC, Mininet, Open MPI, torch. Each is used in a separate process."""

import os
import shutil
import sys

from testbed.kernel.bcc_headers import bcc_environment
from testbed.probes.finding import Missing, command
from testbed.vm import QEMU, SERIES, find_image

__all__ = ["bcc", "mininet", "open_mpi", "qemu", "torch"]

BCC = """
from bcc import BPF
program = BPF(text='''
#include <net/sock.h>
BPF_ARRAY(calls, u64, 1);
RAW_TRACEPOINT_PROBE(sys_enter) { calls.increment(0); return 0; }
''')
print(program["calls"][0].value)
"""
MININET = """
from mininet.net import Mininet
from mininet.topo import Topo
"""
MPI = """
from mpi4py import MPI
print(MPI.COMM_WORLD.allreduce(1))
"""
TORCH = """
import torch.distributed
assert torch.distributed.is_gloo_available(), "torch was built without gloo"
print(torch.ones(2).sum().item())
"""


def python(source: str, *launcher: str, environment: dict[str, str] | None = None) -> str:
    """Run a script with this interpreter, so that it finds the same packages."""
    return command(
        [*launcher, sys.executable, "-c", source], environment={**os.environ, **(environment or {})}
    )


def bcc() -> str:
    """Compile a program against the kernel's headers with BCC, load it, and read its map."""
    environment = bcc_environment()
    calls = int(python(BCC, environment=environment))
    if not calls:
        raise Missing("a raw tracepoint on sys_enter counted no system call")
    headers = environment.get("BCC_KERNEL_SOURCE", "the running kernel's own")
    return f"a raw tracepoint counted {calls} system calls (headers: {headers.rpartition('/')[2]})"


def mininet() -> str:
    """Import Mininet, and run a command in new namespaces with its ``mnexec``."""
    python(MININET)
    command(["mnexec", "-n", "true"])
    return "imports, and mnexec makes namespaces"


def open_mpi() -> str:
    """Sum over two ranks."""
    # --oversubscribe: two ranks even on one core.
    launcher = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2")
    sums = python(MPI, *launcher).split()
    return f"an all-reduce of two ranks gave {' '.join(sums)}"


def torch() -> str:
    """Import torch with its gloo backend."""
    python(TORCH)
    return "imports, with gloo"


def qemu() -> str:
    """Look for QEMU, and for the kernels that tests run on it."""
    if shutil.which(QEMU[0]) is None:
        raise Missing(f"{QEMU[0]} is not installed")
    return f"runs Linux {' and '.join(find_image(series).release for series in SERIES)}"
