"""Count this process's system calls (``bpf/syscalls.bpf.c``)."""

import ctypes
import os
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import numpy as np

from testbed.kernel import BpfObject

__all__ = ["SyscallCounter"]


class SyscallCounter:
    """Counts while the context is entered. `read` makes no system call.

    It slows down every system call on the machine, so nothing is timed meanwhile.

    :raises KernelError: The kernel refuses the program.
    """

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            constants = bytes(ctypes.c_uint32(os.getpid()))
            loaded = stack.enter_context(BpfObject("syscalls", rodata=constants))
            self._count = loaded.maps["calls"].view(np.uint64).reshape(-1)
            stack.enter_context(loaded.programs["count_calls"].attach_raw_tracepoint("sys_enter"))
            self._stack = stack.pop_all()
        return self

    def read(self) -> int:
        """System calls so far."""
        return int(self._count[0])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
