"""Where the package's files are, and where files that can be recreated are cached."""

import os
from pathlib import Path

__all__ = ["ROOT", "build_folder", "cache_folder"]

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds ``testbed/``, ``bpf/``, ``topologies/`` and ``scenarios/``: the checkout,
or where a wheel was installed.
"""


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/testbed``, else ``~/.cache/testbed`` (XDG Base Directory
    Specification).
    """
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "testbed"


def build_folder() -> Path:
    """Return where compiled programs are kept: ``$TESTBED_BUILD``, else ``build/`` of a checkout,
    else in the cache.
    """
    if chosen := os.environ.get("TESTBED_BUILD"):
        return Path(chosen)
    return ROOT / "build" if (ROOT / "pyproject.toml").is_file() else cache_folder() / "build"
