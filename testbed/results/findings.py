"""The doctor's findings for a run's manifest: installed software is tried once per boot, everything
else before every run.
"""

import datetime
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from testbed.core.files import write_whole
from testbed.core.logs import logger_of
from testbed.host.paths import cache_folder

__all__ = ["findings"]

log = logger_of(__name__)

SOFTWARE: Final = ("BCC", "Open MPI", "torch")
"""Probes that take seconds, because each imports or compiles in a process of its own."""

BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
PACKAGES: Final = Path("/var/lib/dpkg/status")  # written whenever apt installs or removes something


def findings(versions: Mapping[str, str], folder: Path | None = None) -> list[dict[str, Any]]:
    """Return what ``testbed doctor`` finds, each with when it was tried (``tried``, UTC, ISO 8601).

    A success is cached until the machine reboots, packages change, or another user or interpreter
    asks; what was missing is tried again. Devices, file systems and kernel features are always
    tried.

    :param versions: Versions of the Python packages.
    :param folder: Where to cache findings; by default `cache_folder`.
    """
    from testbed.probes import PROBES, Level, find

    place = (folder or cache_folder()) / "findings.json"
    key = list(identity(versions))
    kept = read(place, key)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    found = [
        kept[name] if name in kept else {**asdict(find(name)), "tried": now} for name in PROBES
    ]
    lasting = {
        entry["name"]: entry
        for entry in found
        if entry["name"] in SOFTWARE and entry["level"] == Level.OK
    }
    if lasting != kept:
        write(place, {"key": key, "findings": lasting})
    return found


def identity(versions: Mapping[str, str]) -> Iterator[str]:
    """Yield what findings about software depend on."""
    yield BOOT.read_text(encoding="utf-8").strip()
    yield str(PACKAGES.stat().st_mtime_ns if PACKAGES.exists() else 0)
    yield from (str(os.geteuid()), sys.executable, os.environ.get("PATH", ""))
    yield from (f"{package} {version}" for package, version in sorted(versions.items()))


def read(place: Path, key: list[str]) -> dict[str, dict[str, Any]]:
    """Return the findings cached under a key, by name; empty if there are none, or they cannot be
    read.
    """
    try:
        kept = json.loads(place.read_text(encoding="utf-8"))
        return dict(kept["findings"]) if kept["key"] == key else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write(place: Path, value: Any) -> None:
    """Cache a JSON value; if that fails, probes will run again."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, json.dumps(value, indent=1), str(os.getpid()))
    except OSError as error:
        log.info("%s: findings are not kept: %s", place, error)
