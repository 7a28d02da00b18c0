"""`Meter`: when a rank was in collectives, and their system calls and page faults."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

from testbed.kernel.syscalls import SyscallCounter

__all__ = ["Meter"]


class Meter:
    """Meters one rank's collectives of one epoch: all-reduce, and `aggregate` of each exchange.

    :param calls: Counts system calls, which slows them down, so that such an epoch's times are
        meaningless.
    """

    def __init__(self, calls: SyscallCounter | None = None) -> None:
        self.calls = calls
        self.entered: list[float] = []
        self.left: list[float] = []
        self.cpu = 0.0
        self.syscalls = 0
        self.page_faults = 0

    @property
    def seconds(self) -> float:
        """Wall-clock time in collectives so far."""
        return sum(self.left) - sum(self.entered)

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Meter one collective."""
        self.entered.append(time.perf_counter())
        cpu = time.process_time()
        faults = page_faults() if self.calls else 0
        calls = self.calls.read() if self.calls else 0
        yield
        if self.calls:  # first, because it makes no system call itself
            self.syscalls += self.calls.read() - calls
            self.page_faults += page_faults() - faults
        self.cpu += time.process_time() - cpu
        self.left.append(time.perf_counter())


def page_faults() -> int:
    """Return this process's page faults so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt
