"""The environment of a run, for its manifest."""

import hashlib
import json
from typing import Any

from testbed.host import machine
from testbed.results.findings import findings

__all__ = ["digest", "environment"]


def digest(value: Any) -> str:
    """Return a short hash of anything that JSON can hold."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def environment() -> dict[str, Any]:
    """Return what may explain a difference between two runs of one scenario."""
    found = machine.describe()
    return {**found, "doctor": findings(found["versions"])}
