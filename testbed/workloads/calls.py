"""Worker calls that all workloads share.

Opening, working and closing are separate calls, so that no rank closes its backend while another
still needs an answer from it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["close_rank", "closing"]


class Opened(ExitStack):
    """The resources that a rank has open."""


def closing(context: WorkerContext) -> ExitStack:
    """Return a new stack of resources, which `close_rank` closes, or the worker when it ends."""
    return context.keep(context.resources.enter_context(Opened()))


def close_rank(context: WorkerContext) -> None:
    """Close everything that has been opened."""
    if opened := context.drop(Opened):
        opened.close()
