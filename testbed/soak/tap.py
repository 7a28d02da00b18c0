"""A host worker's part in strays: it owns the program ``bpf/tap.bpf.c`` on its link, which copies
incoming frames.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from testbed.datapath.dispatcher import Dispatcher
from testbed.kernel import BpfObject, Map
from testbed.kernel.abi import constant, dtype

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["ROOM", "TAPPED", "attach", "detach"]

#: ``struct tapped``: a frame and its length, bytes; 0: it could not be copied.
TAPPED: Final = dtype("tapped")
ROOM: Final = constant("TAP_ROOM")
"""Bytes of the ring buffer. What it has no room for costs next to nothing."""


class _Tap(ExitStack):
    """What a worker's tap holds, until it is closed."""


def attach(context: WorkerContext, frames: int) -> None:
    """Worker call: copy frames from now on.

    :param frames: Number of the ring buffer that takes the copies.
    """
    shared = Map.open(frames)
    try:
        with _Tap() as stack:
            tap = stack.enter_context(BpfObject("tap", reuse={"frames": shared}))
            stack.enter_context(
                Dispatcher.of(context).tapped(tap.programs["tap"], tap.maps["behind"])
            )
            context.keep(context.resources.enter_context(stack.pop_all()))
    finally:
        os.close(shared.fd)


def detach(context: WorkerContext) -> None:
    """Worker call: copy no more."""
    if tap := context.drop(_Tap):
        tap.close()
