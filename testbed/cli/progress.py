"""One changing line on a terminal's stderr, while a bench measures."""

import sys
from collections.abc import Callable

__all__ = ["clear_progress", "show_progress"]


def show_progress() -> Callable[[str], None]:
    """Return a function that updates one line on a terminal, and prints nothing elsewhere."""
    if not sys.stderr.isatty():
        return lambda text: None
    return lambda text: print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def clear_progress() -> None:
    """Clear the line."""
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
