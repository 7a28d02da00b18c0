"""A host's programs, on its link and its doorbell: they hand each group's frames to that group's
own programs.

The control side of ``bpf/dispatch.bpf.c``, in the worker of the host.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Self

from testbed.core.closing import Closing
from testbed.core.errors import CollectiveError, KernelError
from testbed.core.logs import logger_of
from testbed.datapath.chain import LINK, Chain, Member, Place
from testbed.kernel import BpfObject, Map, Program
from testbed.kernel.abi import constant

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["DOORBELL_FAR", "DOORBELL_NEAR", "LINK", "Dispatcher", "attach", "detach"]

DOORBELL_NEAR = "doorbell0"
DOORBELL_FAR = "doorbell1"

logger = logger_of(__name__)

_LIVE = constant("TOKEN_PAGE")
_TRIES, _SLOW = 5, 1e-3  # seconds


class Dispatcher:
    """The dispatcher programs of ``bpf/dispatch.bpf.c``, loaded once per worker; closed with the
    worker.
    """

    def __init__(self, chain: Chain) -> None:
        self._object = BpfObject("dispatch")
        self._links: list[Closing] = []
        self._chain = chain
        program = self._object.programs["dispatch_link"]
        self._member = Member(program, self._object.maps["behind"], Place.OWN)

    @classmethod
    def of(cls, context: WorkerContext) -> Self:
        """The worker's own dispatcher, created and attached on first use."""
        if (found := context.find(cls)) is None:
            found = context.keep(cls(Chain.of(context)))
            context.resources.callback(found.close)
            found.attach()
        return found

    def attach(self) -> None:
        """Attach to link and doorbell; does nothing if already attached."""
        if not self._links:
            self._chain.insert(self._member)
            programs = {DOORBELL_FAR: "dispatch_doorbell", DOORBELL_NEAR: "dispatch_execute"}
            for device, program in programs.items():
                ifindex = socket.if_nametoindex(device)
                attached = self._object.programs[program].attach_xdp(ifindex, self._chain.generic)
                self._links.append(attached)
            self._links.append(
                self._object.programs["dispatch_send"].attach_tc_ingress(
                    socket.if_nametoindex(DOORBELL_FAR)
                )
            )

    def detach(self) -> None:
        """Detach, which leaves the devices to the network stack; groups stay, and work again once
        attached.
        """
        self._chain.remove(self._member)
        while self._links:
            self._links.pop().close()

    @contextmanager
    def tapped(self, program: Program, behind: Map) -> Iterator[None]:
        """Run another program first on frames that arrive on the link. Neither change loses a
        frame.

        :param program: The program; it must continue with a tail call.
        :param behind: The map of its tail calls; its first entry becomes what follows.
        :raises CollectiveError: No program of the testbed is attached to the link.
        """
        if self._member not in self._chain:
            raise CollectiveError(
                f"tap: {LINK} carries no program of the testbed: the datapath has to be xdp"
            )
        member = Member(program, behind, Place.FIRST)
        self._chain.insert(member)
        try:
            yield
        finally:
            self._chain.remove(member)

    def add(
        self,
        group: int,
        link: Program,
        doorbell: Program,
        execute: Program,
        send: Program | None = None,
    ) -> None:
        """Hand a group's frames to its programs.

        :param send: A TC program, for the frames that `doorbell` passes.
        :raises CollectiveError: The host is already in a group with that number.
        """
        for table, program in (("groups", link), ("doorbells", doorbell), ("executors", execute)):
            try:
                self._object.maps[table].lookup(group)
            except KeyError:
                self._object.maps[table].update(group, program.fd)
            else:
                raise CollectiveError(
                    f"this host is in group {group} already: close that one, or choose another"
                    " group_id"
                )
        if send:
            self._object.maps["senders"].update(group, send.fd)

    def remove(self, group: int) -> None:
        """Forget a group: from here on, its frames count as foreign."""
        for table in ("groups", "doorbells", "executors", "senders"):
            self._object.maps[table].delete(group)

    @property
    def doorbell(self) -> Program:
        """The program at the doorbell's far end."""
        return self._object.programs["dispatch_doorbell"]

    @cached_property
    def rings(self) -> bool:
        """Whether the kernel makes frames for the doorbell's program (`Program.run_live`), and
        does so fast.

        The programs that are attached run from a table of the kernel's with 48 entries
        (kernel/bpf/dispatcher.c). Where it is full, the kernel enters a program to run it, and
        waits for RCU grace periods.
        """
        taken = []
        try:
            for _ in range(_TRIES):
                started = time.perf_counter()
                self.doorbell.run_live(bytes(_LIVE), 2)  # no group's, so they are dropped
                taken.append(time.perf_counter() - started)
        except KernelError as error:
            logger.info("the kernel makes no frames for doorbells: %s", error)
            return False
        if min(taken) > _SLOW:
            logger.info("the kernel makes frames for doorbells, but in %.1f ms", 1e3 * min(taken))
        return min(taken) <= _SLOW

    @property
    def strangers(self) -> int:
        """Number of frames to the ring's port for groups that this host is not in."""
        data = self._object.maps["strangers"].lookup(0)
        return sum(int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8))

    def close(self) -> None:
        """Detach and unload."""
        self.detach()
        self._object.close()


def attach(context: WorkerContext) -> None:
    """Worker call: attach the host's programs."""
    Dispatcher.of(context).attach()


def detach(context: WorkerContext) -> None:
    """Worker call: detach the host's programs; groups stay, and go on once attached again."""
    if dispatcher := context.find(Dispatcher):
        dispatcher.detach()
