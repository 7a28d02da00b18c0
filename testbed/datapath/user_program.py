"""A host worker's part in users' programs: it loads them, and owns their attachment."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from testbed.datapath.chain import LINK, Chain, Member, Place

if TYPE_CHECKING:
    from testbed.kernel import BpfObject
    from testbed.worker import WorkerContext

__all__ = ["Hook", "Order", "attach", "detach"]

Hook = Literal["xdp", "xdp-generic", "tc-ingress", "tc-egress"]
CHAINED = "testbed_chained"


class _GenericChain(Chain):
    """The chain of a worker whose programs run in the stack."""


@dataclass(frozen=True)
class Order:
    """What is to be attached.

    :param number: Names it in this fabric.
    :param path: The compiled object.
    :param function: The program's name in it.
    :param first: Before what is attached already, instead of after it.
    :param rodata: Values of its variables, by name.
    :param sizes: Numbers of entries of its maps.
    :param shared: Kernel's numbers of other programs' maps, which it uses for its own.
    """

    number: int
    path: Path
    function: str
    hook: Hook
    first: bool
    rodata: Mapping[str, Any]
    sizes: Mapping[str, int]
    shared: Mapping[str, int]


@dataclass
class _Attached:
    """The programs of this host, by number."""

    stacks: dict[int, ExitStack] = field(default_factory=dict)


def attach(context: WorkerContext, order: Order) -> dict[str, int]:
    """Worker call: load and attach a program to the host's link; return the kernel's numbers of its
    maps by name.

    :raises KernelError: The kernel refused it; the text has the verifier's log, or who holds the
        device.
    """
    from testbed.kernel import BpfObject, Map  # imports numpy, which other workers do not need

    with ExitStack() as stack:
        shared = {name: Map.open(number) for name, number in order.shared.items()}
        try:
            loaded = BpfObject(
                order.path, max_entries=order.sizes, reuse=shared, constants=order.rodata
            )
        finally:
            for each in shared.values():
                os.close(each.fd)
        stack.enter_context(loaded)
        _attach(context, order, loaded, stack)
        numbers = {name: found.number for name, found in loaded.maps.items()}
        attached = context.state(_Attached)
        attached.stacks[order.number] = stack.pop_all()
    context.resources.callback(detach, context, order.number)
    return numbers


def _attach(context: WorkerContext, order: Order, loaded: BpfObject, stack: ExitStack) -> None:
    from testbed.core.errors import KernelError
    from testbed.kernel import Program

    if order.hook in ("tc-ingress", "tc-egress"):
        program, ifindex = loaded.programs[order.function], socket.if_nametoindex(LINK)
        stack.enter_context(program.attach_tc(ifindex, order.hook == "tc-egress", order.first))
        return
    generic = context.fabric_plan.generic  # then all are, and in one chain
    native = order.hook == "xdp" or generic
    wanted, other = (Chain, _GenericChain) if native else (_GenericChain, Chain)
    if (found := context.find(other)) is not None and len(found):
        mode = "native" if other is Chain else "generic"
        raise KernelError(
            f"attach {order.function} to {LINK} of {context.name} ({order.hook}): a device takes"
            f" either native or generic XDP programs, and the testbed has {len(found)} {mode}"
            " there: use the same hook, tc-ingress, or the datapath sockets"
        )
    chain = context.find(wanted)
    if chain is None:
        chain = context.keep(wanted(LINK, generic or not native))
        context.resources.callback(chain.close)
    place = Place.FIRST if order.first else Place.LAST
    program = Program(order.function, loaded.programs[CHAINED].fd)  # errors have the user's name
    member = Member(program, loaded.maps["testbed_behind"], place)
    chain.insert(member)
    stack.callback(chain.remove, member)


def detach(context: WorkerContext, number: int) -> None:
    """Worker call: detach and unload a program; does nothing if that is done."""
    if stack := context.state(_Attached).stacks.pop(number, None):
        stack.close()
