"""What the fixtures have workers do."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from typing import TYPE_CHECKING

from testbed.collectives.group import GroupSpec
from testbed.collectives.registry import open_transport
from testbed.collectives.transport import Counters, Tensor, Transport

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["begin", "close", "collect", "count", "end", "open_group", "reduce"]

_OUTER = "outside of the test"
_TRANSPORT = "transport of the test's group"


def begin(context: WorkerContext) -> None:
    """Give a test resources and objects of its own."""
    gc.collect()
    gc.freeze()  # what is there now is not looked at by the collections to come
    outer = context.resources, context.objects
    context.resources = context.resources.enter_context(ExitStack())
    context.objects = {**context.objects, _OUTER: outer}


def end(context: WorkerContext) -> None:
    """Close what the test has opened, and forget what it has kept."""
    outer = context.objects[_OUTER]
    try:
        context.resources.close()
    finally:
        context.resources, context.objects = outer


def collect(context: WorkerContext) -> None:
    """Let go of what nobody refers to: memory that is mapped from a BPF map keeps the map until then."""
    gc.collect()


def open_group(context: WorkerContext, name: str, spec: GroupSpec) -> None:
    """Open a transport and connect it."""
    transport = context.objects[_TRANSPORT] = open_transport(name, context, spec)
    context.resources.callback(close, context)
    transport.connect()


def reduce(context: WorkerContext, tensor: Tensor) -> Tensor:
    """All-reduce one tensor."""
    transport: Transport = context.objects[_TRANSPORT]
    return transport.all_reduce(tensor)


def count(context: WorkerContext) -> Counters:
    """Return what this rank has sent."""
    transport: Transport = context.objects[_TRANSPORT]
    return transport.counters()


def close(context: WorkerContext) -> None:
    """Close the transport, if one is open."""
    if transport := context.objects.pop(_TRANSPORT, None):
        transport.close()
