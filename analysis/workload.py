"""A run's workload, and the properties of its backends."""

from testbed.comm.entry import Entry
from testbed.results import Run
from testbed.workloads.registry import WORKLOADS
from testbed.workloads.workload import Report, Workload

__all__ = ["entry_of", "in_kernel", "report_of", "workload_of"]


def workload_of(run: Run) -> Workload:
    """Return the workload.

    :raises SpecError: It belongs to another package, which is no longer installed.
    """
    return WORKLOADS[run.workload]


def report_of(run: Run) -> Report:
    """Return the terms of the workload's report."""
    return workload_of(run).report


def entry_of(run: Run, backend: str) -> Entry:
    """Return the properties of a backend of a run."""
    return workload_of(run).entry(backend)


def in_kernel(run: Run, backend: str) -> bool:
    """Tell whether a backend works inside the kernel; all others are sockets."""
    return entry_of(run, backend).in_kernel
