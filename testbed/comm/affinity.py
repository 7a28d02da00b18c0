"""Where and how a rank's process runs."""

import os

from testbed.comm.group import GroupSpec
from testbed.host.cpus import usable_cpus

__all__ = ["apply_affinity"]


def apply_affinity(spec: GroupSpec) -> None:
    """Pin the calling thread, and the threads that it starts later, if the group's `affinity` says
    so.

    With ``rank`` it goes to CPU number ``rank`` modulo their number, of those that it may use, with
    ``one`` to the first of them.

    It is also scheduled as ``SCHED_BATCH`` (sched(7)): a rank that is woken does not interrupt
    another one of the same CPU that is in the middle of sending, for which others wait.
    """
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    if spec.affinity != "none":
        cpus = usable_cpus()
        number = spec.rank if spec.affinity == "rank" else 0
        os.sched_setaffinity(0, {cpus[number % len(cpus)]})
