"""The CPUs that this process may use."""

import os

__all__ = ["usable_cpus"]

_USABLE = tuple(sorted(os.sched_getaffinity(0)))


def usable_cpus() -> tuple[int, ...]:
    """Return the CPUs that this process was given when it began: those of its cpuset, of taskset
    or of a container, which need not begin with 0. What it was pinned to since has no part in it.
    """
    return _USABLE
