"""Where things are kept that can be made again."""

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/testbed``, else ``~/.cache/testbed`` (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "testbed"
