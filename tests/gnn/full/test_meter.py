"""System calls and page faults of collectives, in a process that makes known numbers of them."""

import mmap
import os

import pytest

from testbed.gnn.full.meter import Meter
from testbed.kernel.syscalls import SyscallCounter


def test_collectives_are_distinguished_from_the_rest() -> None:
    meter = Meter()
    for _ in range(2):
        with meter.collective():
            pass
    assert len(meter.entered) == len(meter.left) == 2
    assert meter.seconds == pytest.approx(sum(meter.left) - sum(meter.entered))
    assert (meter.syscalls, meter.page_faults) == (0, 0)


@pytest.mark.kernel
def test_only_system_calls_and_page_faults_within_collectives_count() -> None:
    with SyscallCounter() as calls, mmap.mmap(-1, 64 * mmap.PAGESIZE) as memory:
        meter = Meter(calls)
        os.getppid()
        with meter.collective():
            for _ in range(10):
                os.getppid()
        assert meter.syscalls == 10
        faults = meter.page_faults
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        with meter.collective():
            for page in range(0, len(memory), mmap.PAGESIZE):
                memory[page] = 1
        assert meter.page_faults >= faults + 64
        os.getppid()
        assert meter.syscalls == 10
