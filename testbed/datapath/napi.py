"""A switch's ports whose hosts send back or redirect frames by XDP: they get a program, if they
have none.

A veth receives what its peer's program sends with XDP_TX only while it has a program itself
(``veth_xdp_flush`` in drivers/net/veth.c), and what is redirected to its peer only while it has
NAPI, which a program gives it. Without, those frames are lost, and nothing counts them.
"""

from __future__ import annotations

import socket
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["give", "resume", "suspend", "take_back"]


@dataclass
class Napi:
    """The ports of this switch.

    :param wanted: How many programs each port's host has that need it.
    :param attached: Closes the programs of the ports; None while the switch's own are there.
    """

    wanted: Counter[int] = field(default_factory=Counter)
    attached: dict[int, ExitStack] = field(default_factory=dict)
    suspended: bool = False


def give(context: WorkerContext, port: int) -> None:
    """Worker call: let a port's host use XDP_TX and redirects."""
    context.state(Napi).wanted[port] += 1
    context.resources.callback(_close, context)
    _attach(context)


def take_back(context: WorkerContext, port: int) -> None:
    """Worker call: undo one `give`."""
    napi = context.state(Napi)
    napi.wanted[port] -= 1
    if napi.wanted[port] <= 0 and (stack := napi.attached.pop(port, None)):
        stack.close()


def suspend(context: WorkerContext) -> None:
    """Make room for the switch's own program, which serves as well."""
    napi = context.state(Napi)
    napi.suspended = True
    _close(context)


def resume(context: WorkerContext) -> None:
    """The switch's own program is gone."""
    context.state(Napi).suspended = False
    _attach(context)


def _attach(context: WorkerContext) -> None:
    from testbed.kernel import BpfObject  # imports numpy, which other workers do not need

    napi = context.state(Napi)
    for port, count in napi.wanted.items():
        if count <= 0 or napi.suspended or port in napi.attached:
            continue
        with ExitStack() as stack:
            program = stack.enter_context(BpfObject("pass")).programs["pass"]
            ifindex = socket.if_nametoindex(context.switch.ifname(port))
            stack.enter_context(program.attach_xdp(ifindex, context.fabric_plan.generic))
            napi.attached[port] = stack.pop_all()


def _close(context: WorkerContext) -> None:
    attached = context.state(Napi).attached
    while attached:
        attached.popitem()[1].close()
