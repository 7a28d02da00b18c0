"""Two processes that race."""

import mmap
import os
import traceback
from collections.abc import Callable

import numpy as np

PATIENCE = 1 << 24  # looks at the other's turn: it is at work, or waits for its CPU


class Pair:
    """Two processes on two CPUs that do the same thing round by round, as nearly at once as can be.

    Processes and not threads: the interpreter's lock would let them run one after the other.
    """

    def __init__(self, work: Callable[[int], None]) -> None:
        # Shared by both: how far each has come, on cache lines of their own.
        self.turns = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint64)
        self.work = work

    def run(self, rounds: int) -> None:
        children = [
            self._start(index, cpu, rounds)
            for index, cpu in enumerate(sorted(os.sched_getaffinity(0))[:2])
        ]
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0]

    def _start(self, index: int, cpu: int, rounds: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            os.sched_setaffinity(0, {cpu})
            for turn in range(1, rounds + 1):
                self._meet(index, turn)
                self.work(turn - 1)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def _meet(self, index: int, turn: int) -> None:
        mine, other = 8 * index, 8 * (1 - index)
        self.turns[mine] = turn
        for _ in range(PATIENCE):
            if self.turns[other] >= turn:
                return
        raise TimeoutError(f"the other process is at {self.turns[other]}, not at {turn}")
