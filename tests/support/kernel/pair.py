"""Two processes that race."""

import mmap
import os
import traceback
from collections.abc import Callable

import numpy as np

PATIENCE = 1 << 24  # polls of the other's turn, while it works or waits for its CPU


class Pair:
    """Two processes on two CPUs that do the same thing round by round, as nearly simultaneously as
    possible.

    They are processes, not threads, because the interpreter's lock would serialize threads.
    """

    def __init__(self, work: Callable[[int], None]) -> None:
        # Shared by both: the progress of each, on separate cache lines.
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
