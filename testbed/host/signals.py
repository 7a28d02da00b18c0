"""Signals that end the process, deferred where an interrupt would leak a resource."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["SIGNALS", "signals_later"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_later() -> Iterator[None]:
    """Defer signals that end the process until the context exits."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals only in the main thread
        return
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for seen in came:
            signal.raise_signal(seen)
