"""What this machine can do: one probe per capability, which tries to use it.

``testbed doctor`` prints all findings; tests whose tier lacks a capability are skipped with the
same message.
"""

import functools
from collections.abc import Iterator

from testbed.plan import MAX_LINEAR_MTU
from testbed.probes import bpf, machine, software, wires
from testbed.probes.finding import LIMIT, Finding, Level, Probe

__all__ = ["PROBES", "TIERS", "Finding", "Level", "find", "findings", "lacking"]

IN_KERNEL = ("root", "clang", "libbpf", "verifier")
INSTALL = "make apt"
PRIVILEGED = "run it as root, such as with sudo"


def qdisc(options: str, purpose: str) -> Probe:
    """Return the probe of a queueing discipline, named by the first word of its options."""
    words = options.split()
    kind = words[0]
    remedy = f"modprobe sch_{kind}, or a kernel with CONFIG_NET_SCH_{kind.upper()}"
    return Probe(
        f"qdisc {kind}", functools.partial(wires.qdisc, *words), remedy, purpose, ("root",)
    )


PROBES = {
    probe.name: probe
    for probe in (
        Probe("root", machine.root, PRIVILEGED),
        Probe("BTF", bpf.btf, "a kernel with CONFIG_DEBUG_INFO_BTF, as Debian's and Ubuntu's own"),
        Probe("clang", bpf.clang, INSTALL),
        Probe("libbpf", bpf.library, INSTALL),
        Probe(
            "verifier",
            bpf.verifier,
            "a kernel with CONFIG_BPF_SYSCALL",
            needs=("root", "clang", "libbpf"),
        ),
        Probe(
            "multi-buffer XDP",
            bpf.jumbo,
            "Linux 6.4 or later",
            f"in-kernel backends with an MTU of more than {MAX_LINEAR_MTU}",
            IN_KERNEL,
        ),
        Probe("memlock", machine.memlock, "ulimit -l unlimited", needs=IN_KERNEL),
        Probe(
            "XDP redirect",
            wires.xdp_redirect,
            "a kernel with CONFIG_VETH and CONFIG_BPF_SYSCALL",
            needs=IN_KERNEL,
        ),
        Probe(
            "clsact",
            wires.clsact,
            "a kernel with CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS",
            needs=IN_KERNEL,
        ),
        Probe(
            "tcx",
            wires.tcx,
            "Linux 6.6 or later, with CONFIG_NET_XGRESS",
            "faults at bridge ports that end with their process; a filter that is removed takes its"
            " place",
            IN_KERNEL,
        ),
        qdisc(
            "tbf rate 1gbit burst 64kb latency 10ms", "limits of rate and queue on links of sockets"
        ),
        qdisc(
            "netem delay 1ms", "faults by netem in place of our own engine, which does not need it"
        ),
        Probe("BCC", software.bcc, INSTALL, "telemetry: where the CPU time goes", ("root",)),
        Probe(
            "tracefs",
            machine.tracefs,
            "mount -t tracefs tracefs /sys/kernel/tracing",
            "BCC's tracepoints",
            ("root",),
        ),
        Probe("Mininet", software.mininet, INSTALL, needs=("root",)),
        Probe(
            "cgroup",
            machine.cgroup,
            "mount -t cgroup2 cgroup2 /sys/fs/cgroup",
            "limits on a host's CPU",
            ("root",),
        ),
        Probe("Open MPI", software.open_mpi, INSTALL, "the backend mpi"),
        Probe("torch", software.torch, "make venv"),
        Probe("QEMU", software.qemu, "make vm", "tests on other kernels"),
    )
}

# What a tier of tests requires.
TIERS = {
    "kernel": ("BTF", *IN_KERNEL, "memlock"),
    "net": ("BTF", *IN_KERNEL, "memlock", "XDP redirect", "clsact", "Mininet"),
    "vm": ("root", "QEMU"),
}


@functools.cache
def find(name: str) -> Finding:
    """Return the finding of one probe; each runs once per process.

    :param name: One of :data:`PROBES`.
    """
    probe = PROBES[name]
    return probe.run({needed: find(needed) for needed in probe.needs})


def findings(limit: float | None = None) -> Iterator[Finding]:
    """Run all probes, each after those that it needs.

    :param limit: Seconds that each command of a probe may take; one that takes longer says nothing
        of the capability.
    """
    if limit is not None:
        LIMIT.set(limit)
    return map(find, PROBES)


def lacking(tier: str) -> list[Finding]:
    """Return what a tier of tests lacks on this machine; empty if it can run. What could not be
    tried because of something else is left out.

    :param tier: One of :data:`TIERS`.
    """
    found = [finding for finding in map(find, TIERS[tier]) if finding.level is not Level.OK]
    return [finding for finding in found if not finding.blocked] or found
