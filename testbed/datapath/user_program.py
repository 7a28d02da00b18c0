"""A host worker's part in users' programs: it loads them, and owns their attachment."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from testbed.datapath.chain import LINK, Chain, Member, Place

if TYPE_CHECKING:
    from testbed.kernel import BpfObject
    from testbed.kernel.chained import Chained
    from testbed.worker import WorkerContext

__all__ = ["Hook", "Order", "attach", "detach"]

Hook = Literal["xdp", "xdp-generic", "tc-ingress", "tc-egress"]
_PROG_ARRAY: Final = 3  # enum bpf_map_type


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
    """The programs of this host, by number.

    :param pins: How many of them have a map that one of them has pinned, by its path.
    """

    stacks: dict[int, ExitStack] = field(default_factory=dict)
    pins: Counter[Path] = field(default_factory=Counter)

    def pinned(self, loaded: BpfObject, stack: ExitStack) -> None:
        """Remove pins with the last of the programs, so that a corrected one can be attached;
        those that were there before, such as bpftool's, are left.
        """
        for path in loaded.pins:
            if path in self.pins or path not in loaded.found_pins:
                self.pins[path] += 1
                stack.callback(self._unpin, path)

    def _unpin(self, path: Path) -> None:
        self.pins[path] -= 1
        if not self.pins[path]:
            del self.pins[path]
            path.unlink(missing_ok=True)


def attach(context: WorkerContext, order: Order) -> dict[str, int]:
    """Worker call: load and attach a program to the host's link; return the kernel's numbers of its
    maps by name.

    :raises KernelError: The kernel refused it; the text has the verifier's log, or who holds the
        device.
    """
    from testbed.kernel import BpfObject, Map  # imports numpy, which other workers do not need

    attached = context.state(_Attached)
    with ExitStack() as stack:
        chain = _chain(context, order) if order.hook in ("xdp", "xdp-generic") else None
        chained = None if chain is None else _chained(chain, order, stack)
        shared = {name: Map.open(number) for name, number in order.shared.items()}
        try:
            loaded = BpfObject(
                order.path,
                max_entries=order.sizes,
                reuse=shared,
                constants=order.rodata,
                chained=chained,
                classifier=order.function if chain is None else None,
            )
        finally:
            for each in shared.values():
                os.close(each.fd)
        stack.enter_context(loaded)
        attached.pinned(loaded, stack)
        program = loaded.programs[order.function]
        if chain is not None and chained is not None:
            member = Member(program, chained.behind, Place.FIRST if order.first else Place.LAST)
            chain.insert(member)
            stack.callback(chain.remove, member)
        else:
            ifindex = socket.if_nametoindex(LINK)
            stack.enter_context(program.attach_tc(ifindex, order.hook == "tc-egress", order.first))
        numbers = {name: found.number for name, found in loaded.maps.items() if found.fd >= 0}
        attached.stacks[order.number] = stack.pop_all()
    context.resources.callback(detach, context, order.number)
    return numbers


def _chain(context: WorkerContext, order: Order) -> Chain:
    """The chain of the link that a program belongs to."""
    from testbed.core.errors import KernelError

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
    return chain


def _chained(chain: Chain, order: Order, stack: ExitStack) -> Chained:
    """How a program is loaded that belongs to a chain."""
    from testbed.kernel import Map
    from testbed.kernel.chained import Chained

    behind = Map.create("behind", _PROG_ARRAY, 4, 4, 1)
    stack.callback(os.close, behind.fd)
    # The stack puts a frame into one piece for a program that does not take pieces. The testbed's
    # own do, and are in no chain of the stack's that is not the whole fabric's.
    return Chained(order.function, behind, frags=not isinstance(chain, _GenericChain))


def detach(context: WorkerContext, number: int) -> None:
    """Worker call: detach and unload a program; does nothing if that is done."""
    if stack := context.state(_Attached).stacks.pop(number, None):
        stack.close()
