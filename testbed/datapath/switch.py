"""What a switch's worker does for the fabric: own the L2 switch program, ``bpf/switch.bpf.c``."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.datapath import napi

if TYPE_CHECKING:
    from testbed.kernel import BpfObject, Link
    from testbed.worker import WorkerContext

__all__ = ["SwitchProgram", "attach", "counters", "detach", "fill"]


@dataclass(frozen=True)
class SwitchProgram:
    """The program, attached.

    :param links: By port.
    :param attachment: Detaches and unloads it.
    """

    program: BpfObject
    links: dict[int, Link]
    attachment: ExitStack


def attach(context: WorkerContext, flooding: int) -> None:
    """Attach the program to all ports of this switch; nothing if it is.

    A switch of kind ``bridge`` gets it without a forwarding table, and never loses one, so that
    every frame goes on to the bridge. It needs a program because a veth only receives what its
    peer's program sends back with XDP_TX while it has a program itself (otherwise
    ``veth_xdp_flush`` in drivers/net/veth.c does not wake its NAPI, with or without GRO).

    :param flooding: Number of the switch's map ``flooding``.
    :raises KernelError: The kernel refused the program or its attachment.
    """
    from testbed.kernel import BpfObject, Map  # imports numpy, which other workers do not need

    if context.find(SwitchProgram):
        return
    forwards = context.fabric_plan.switch_kind == "xdp"
    napi.suspend(context)
    with ExitStack() as stack:
        shared = Map.open(flooding)
        try:
            program = stack.enter_context(
                BpfObject("switch", reuse={"flooding": shared} if forwards else {})
            )
        finally:
            os.close(shared.fd)
        if forwards:
            fill(context, program)
        links = {}
        for port in context.switch.ports:
            ifindex = socket.if_nametoindex(context.switch.ifname(port))
            attached = program.programs["l2_switch"].attach_xdp(
                ifindex, context.fabric_plan.generic
            )
            links[port] = stack.enter_context(attached)
        context.keep(
            SwitchProgram(program, links, context.resources.enter_context(stack.pop_all()))
        )


def fill(context: WorkerContext, program: BpfObject) -> None:
    """Tell a program that has the maps of ``bpf/include/forward.h`` where this switch
    forwards to.
    """
    from testbed.kernel.abi import Struct

    index = {
        port: socket.if_nametoindex(context.switch.ifname(port)) for port in context.switch.ports
    }
    for port, ifindex in index.items():
        program.maps["ports"].update(port, ifindex)
        program.maps["indices"].update(port, ifindex)
    for mac, port in context.switch.forwarding.items():
        destination = Struct("switch_destination", port=port, ifindex=index[port])
        program.maps["forwarding"].update(bytes.fromhex(mac.replace(":", "")), bytes(destination))


def detach(context: WorkerContext) -> None:
    """Detach the program; does nothing if it is not attached."""
    if attached := context.drop(SwitchProgram):
        attached.attachment.close()
        napi.resume(context)


def counters(context: WorkerContext) -> dict[int, tuple[int, int]]:
    """Frames and bytes that the program has redirected out of each port since it was attached.

    Entry 0 counts those that it left to the bridge. Empty while the program is not attached.
    """
    import numpy as np

    from testbed.kernel.abi import dtype

    if not (attached := context.find(SwitchProgram)):
        return {}
    values = attached.program.maps["counters"]
    totals = {}
    for port in (0, *context.switch.ports):
        per_cpu = np.frombuffer(values.lookup(port), dtype("switch_counters"))
        totals[port] = int(per_cpu["frames"].sum()), int(per_cpu["bytes"].sum())
    return totals
