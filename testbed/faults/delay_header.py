"""The header in front of a frame that the delay line sends later: ``struct delay_header``. Pure."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from testbed.kernel.abi import Struct, constant, dtype

__all__ = ["COPIES", "ETHERTYPE", "MAX_LINKS", "SIZE", "DelayHeader", "link_index"]

#: IEEE 802: local experimental 2.
ETHERTYPE = constant("DELAY_ETHERTYPE")
#: Maximum number of copies of one frame.
COPIES = constant("DELAY_COPIES")
_HOSTS = constant("FATE_MAX_HOSTS")
#: Elements of the map ``links``.
MAX_LINKS = constant("FAULT_LINKS")
#: Bytes.
SIZE = dtype("delay_header").itemsize


def link_index(sender: int, receiver: int) -> int:
    """Index of a link, from host number to host number, in the map ``links``."""
    return sender * _HOSTS + receiver


@dataclass(frozen=True)
class DelayHeader:
    """When and where a frame leaves.

    :param ifindex: The egress port.
    :param due: When each copy leaves, ns of CLOCK_MONOTONIC; 0: at once. 1 to :data:`COPIES` of
        them.
    :param link: :func:`link_index`; only used with ``release``.
    :param release: The frame leaves once this many frames have passed on its link; 0: it does not
        wait for others.
    :param latest: When it leaves at the latest, ns of CLOCK_MONOTONIC.
    :param ingress: ifindex of the ingress port: while the switch floods, the frame leaves through
        all others.
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
        header = Struct(
            "delay_header", copies=len(self.due), **{name: getattr(self, name) for name in members}
        )
        header.eth["type"] = ETHERTYPE
        header.due[: len(self.due)] = self.due
        return bytes(header)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read what :meth:`pack` wrote, at the start of ``data``.

        :raises ValueError: It is something else; the text says what.
        """
        if len(data) < SIZE:
            raise ValueError(f"{len(data)} bytes: a delay header takes {SIZE}")
        header = Struct(np.frombuffer(data, dtype("delay_header"), 1))
        mark, copies = int(header.eth["type"]), header.copies
        if mark != ETHERTYPE:
            raise ValueError(f"ethertype {mark:04x} must be {ETHERTYPE:x}, a delay header's")
        if not 1 <= copies <= COPIES:
            raise ValueError(f"{copies} copies in a delay header: must be 1 to {COPIES}")
        due = tuple(header.due[:copies].tolist())
        return cls(header.ifindex, due, header.link, header.release, header.latest, header.ingress)
