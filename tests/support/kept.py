"""Objects that test calls keep in a worker for later calls, by name."""

from typing import Any

from testbed.worker import WorkerContext

__all__ = ["kept"]


class Kept(dict[Any, Any]):
    """By name."""


def kept(context: WorkerContext) -> dict[Any, Any]:
    """Return what earlier calls have kept; a test of `testbed.testing` has its own store."""
    return context.state(Kept)
