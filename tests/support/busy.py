"""Keep the machine busy with other work."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["busy_cpus"]


@contextmanager
def busy_cpus() -> Iterator[None]:
    """Run a process on each CPU that never waits."""
    started = []
    try:
        for cpu in os.sched_getaffinity(0):
            busy = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
            started.append(subprocess.Popen([sys.executable, "-c", busy]))
        yield
        assert all(process.poll() is None for process in started)
    finally:
        for process in started:
            process.kill()
            process.wait()
