"""Wait for a condition, with a deadline, and leave the CPU to what is waited for."""

import time
from collections.abc import Callable

__all__ = ["wait_until"]

FIRST, LAST = 1e-6, 0.02  # seconds between two looks: they double


def wait_until(condition: Callable[[], object], timeout: float = 60.0) -> None:
    """Return as soon as ``condition`` holds; fail if it does not hold in time."""
    deadline, pause = time.monotonic() + timeout, FIRST
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:g} s"
        time.sleep(pause)
        pause = min(2 * pause, LAST)
