"""The worker calls of the fixtures."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from testbed.collectives.registry import open_backend
from testbed.comm.backend import Backend, Tensor
from testbed.comm.collective import Counters
from testbed.comm.group import GroupSpec

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["begin", "close", "collect", "count", "end", "open_group", "run"]


@dataclass(frozen=True)
class Outer:
    """The resources that a worker has outside of the test."""

    resources: ExitStack
    kept: dict[type, Any]


@dataclass
class Opened:
    """The backend of the test's group."""

    backend: Backend


def begin(context: WorkerContext) -> None:
    """Give a test its own resources and objects."""
    gc.collect()
    gc.freeze()  # later collections skip what exists now
    outer = Outer(context.resources, context.kept)
    context.resources = context.resources.enter_context(ExitStack())
    context.kept = dict(context.kept)
    context.keep(outer)


def end(context: WorkerContext) -> None:
    """Close what the test has opened, and forget what it has kept."""
    outer = context.get(Outer)
    try:
        context.resources.close()
    finally:
        context.resources, context.kept = outer.resources, outer.kept


def collect(context: WorkerContext) -> None:
    """Collect garbage: until then, memory mapped from a BPF map keeps the map alive."""
    gc.collect()


def open_group(context: WorkerContext, name: str, spec: GroupSpec) -> None:
    """Open a backend and connect it."""
    opened = context.keep(Opened(open_backend(name, context, spec)))
    context.resources.callback(close, context)
    opened.backend.connect()


def run(context: WorkerContext, method: str, tensor: Tensor, **options: Any) -> Tensor:
    """Do a collective: a method of `Backend`."""
    result: Tensor = getattr(context.get(Opened).backend, method)(tensor, **options)
    return result


def count(context: WorkerContext) -> Counters:
    """Return what this rank has sent."""
    return context.get(Opened).backend.counters()


def close(context: WorkerContext) -> None:
    """Close the backend, if one is open."""
    if opened := context.drop(Opened):
        opened.backend.close()
