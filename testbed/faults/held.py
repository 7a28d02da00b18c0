"""What stands in front of a frame that is to leave later: ``struct held`` of ``bpf/shared/held_abi.h``. Pure."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from testbed.kernel.abi import Struct, constant, dtype

__all__ = ["COPIES", "ETHERTYPE", "MAX_LINKS", "SIZE", "Held", "link_index"]

#: IEEE 802: local experimental 2.
ETHERTYPE = constant("HELD_ETHERTYPE")
#: Most copies of one frame.
COPIES = constant("HELD_COPIES")
_HOSTS = constant("FATE_MAX_HOSTS")
#: Elements of the map ``links``.
MAX_LINKS = constant("FAULT_LINKS")
#: Bytes.
SIZE = dtype("held").itemsize


def link_index(sender: int, receiver: int) -> int:
    """Index of a link, from host number to host number, in the map ``links``."""
    return sender * _HOSTS + receiver


@dataclass(frozen=True)
class Held:
    """When and where a frame leaves.

    :param ifindex: Of the port that it leaves by.
    :param due: When each copy leaves, ns of CLOCK_MONOTONIC; 0 is at once. 1 to :data:`COPIES` of them.
    :param link: :func:`link_index`; only counts with ``release``.
    :param release: The frame goes when so many have passed on its link; 0: it waits for no other.
    :param latest: When it goes if they have not, ns of CLOCK_MONOTONIC.
    :param ingress: Index of the port that it came in by: while the switch floods, it leaves by all others.
    """

    ifindex: int
    due: tuple[int, ...]
    link: int = 0
    release: int = 0
    latest: int = 0
    ingress: int = 0

    def pack(self) -> bytes:
        """Return the struct, to be followed by the frame."""
        members = ("ifindex", "link", "release", "latest", "ingress")
        held = Struct("held", copies=len(self.due), **{name: getattr(self, name) for name in members})
        held.eth["type"] = ETHERTYPE
        held.due[: len(self.due)] = self.due
        return bytes(held)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read what :meth:`pack` wrote, at the start of ``data``.

        :raises ValueError: It is something else; the text says what.
        """
        if len(data) < SIZE:
            raise ValueError(f"{len(data)} bytes are no held frame: its header takes {SIZE}")
        held = Struct(np.frombuffer(data, dtype("held"), 1))
        mark, copies = int(held.eth["type"]), held.copies
        if mark != ETHERTYPE:
            raise ValueError(f"ethertype {mark:04x} is no held frame's, which is {ETHERTYPE:x}")
        if not 1 <= copies <= COPIES:
            raise ValueError(f"{copies} copies of a held frame: allowed are 1 to {COPIES}")
        due = tuple(held.due[:copies].tolist())
        return cls(held.ifindex, due, held.link, held.release, held.latest, held.ingress)
