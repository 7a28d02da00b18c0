"""Where a rank's process may run."""

import os

from testbed.comm.group import GroupSpec
from testbed.host.cpus import usable_cpus

__all__ = ["apply_affinity"]


def apply_affinity(spec: GroupSpec) -> None:
    """Pin the calling thread, and the threads that it starts later, if the group's `affinity` says
    so.

    With ``rank`` it goes to CPU number ``rank`` modulo their number, of those that it may use, with
    ``one`` to the first of them.
    """
    if spec.affinity != "none":
        cpus = usable_cpus()
        number = spec.rank if spec.affinity == "rank" else 0
        os.sched_setaffinity(0, {cpus[number % len(cpus)]})
