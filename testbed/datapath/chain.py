"""The XDP programs of a device, in order: each hands on the frames that it passes by a tail call.

A device takes one XDP program; libxdp's dispatcher, which lets it have several, replaces functions
of a loaded program (freplace), which locked-down kernels refuse. Tail calls work on all.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Self

from testbed.core.closing import Closing
from testbed.core.errors import KernelError

if TYPE_CHECKING:
    from testbed.kernel import Link, Map, Program
    from testbed.worker import WorkerContext

__all__ = ["LINK", "Chain", "Member", "Place"]

LINK = "eth0"
MOST = 16
"""Programs of a device: a chain of tail calls ends after 33, and the ring's programs need some."""


class Place(IntEnum):
    """Where a program goes."""

    FIRST = 0
    OWN = 1
    LAST = 2


@dataclass(frozen=True, eq=False)
class Member:
    """A program of a chain.

    :param behind: The map of its tail call: entry 0 is what it hands on to.
    """

    program: Program
    behind: Map
    place: Place


class Chain(Closing):
    """The programs of a host's link, in the worker of the host.

    :param device: The device's name.
    :param generic: In the stack, instead of natively.
    """

    def __init__(self, device: str = LINK, generic: bool = False) -> None:
        self.generic = generic
        self._device = device
        self._members: list[Member] = []
        self._link: Link | None = None

    @classmethod
    def of(cls, context: WorkerContext) -> Self:
        """The worker's own chain of the host's link."""
        if (found := context.find(cls)) is None:
            found = context.keep(cls(generic=context.fabric_plan.generic))
            context.resources.callback(found.close)
        return found

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def insert(self, member: Member) -> None:
        """Add a program: before all others, after them, or between those two kinds.

        No frame is lost, and none misses a program that was there before.

        :raises KernelError: The kernel refused it, or there are too many.
        """
        if len(self._members) == MOST:
            raise KernelError(f"{self._device} has {MOST} XDP programs already: detach one")
        before = {
            Place.FIRST: 0,
            Place.OWN: sum(each.place is Place.FIRST for each in self._members),
            Place.LAST: len(self._members),
        }
        self._members.insert(before[member.place], member)
        try:
            self._weave()
        except BaseException:
            self._members.remove(member)
            self._weave()
            raise

    def remove(self, member: Member) -> None:
        """Take a program out; does nothing if it is not in."""
        if member in self._members:
            self._members.remove(member)
            self._weave()

    def close(self) -> None:
        """Detach all."""
        self._members.clear()
        self._weave()

    def _weave(self) -> None:
        """Set the tail calls from the last to the first, then the program of the device."""
        following: Member | None = None
        for member in reversed(self._members):
            if following:
                member.behind.update(0, following.program.fd)
            else:
                member.behind.delete(0)
            following = member
        if following is None:
            if self._link:
                self._link.close()
                self._link = None
        elif self._link:
            self._link.update(following.program)
        else:
            ifindex = socket.if_nametoindex(self._device)
            try:
                self._link = following.program.attach_xdp(ifindex, self.generic)
            except KernelError as error:
                if holder := held_by(ifindex):
                    error.also(f"{self._device} is held by {holder}")
                raise


def held_by(ifindex: int) -> str | None:
    """Return which XDP program a device of this network namespace carries, in words."""
    from pyroute2 import IPRoute

    with IPRoute() as route:
        (link,) = route.get_links(ifindex)
    found = link.get_attr("IFLA_XDP")
    if not found or not found.get_attr("IFLA_XDP_PROG_ID"):
        return None
    number = found.get_attr("IFLA_XDP_PROG_ID")
    return (
        f"program {number} ({found.get_attr('IFLA_XDP_ATTACHED')}), which `bpftool prog show id"
        f" {number}` describes"
    )
