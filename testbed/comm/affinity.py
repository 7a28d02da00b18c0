"""Where a rank's process may run."""

import os

from testbed.comm.group import GroupSpec

__all__ = ["apply_affinity"]


def apply_affinity(spec: GroupSpec) -> None:
    """Pin the calling thread, and the threads that it starts later, if the group's `affinity` says
    so.

    With ``rank`` it goes to CPU number ``rank`` modulo the number of CPUs that the machine has,
    with ``one`` to the first CPU.
    """
    if spec.affinity == "rank":
        os.sched_setaffinity(0, {spec.rank % (os.cpu_count() or 1)})
    elif spec.affinity == "one":
        os.sched_setaffinity(0, {0})
