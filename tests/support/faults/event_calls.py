"""Functions that tests call in workers."""

import time

from testbed.worker import WorkerContext


def spin(context: WorkerContext, seconds: float) -> float:
    """Compute for so long; return the share of the time that the process had a CPU."""
    wall, cpu = time.monotonic(), time.process_time()
    while time.monotonic() - wall < seconds:
        pass
    return (time.process_time() - cpu) / max(time.monotonic() - wall, 1e-9)
