"""What stands in front of a frame that is to leave later: ``struct held`` of ``bpf/include/held.h``. Pure."""

import struct
from dataclasses import dataclass
from typing import Self

__all__ = ["COPIES", "ETHERTYPE", "MAX_LINKS", "SIZE", "Held", "link_index"]

#: IEEE 802: local experimental 2.
ETHERTYPE = 0x88B6
#: Most copies of one frame.
COPIES = 8
_HOSTS = 32
#: Elements of the map ``links``.
MAX_LINKS = _HOSTS * _HOSTS
_STRUCT = struct.Struct(f"=12x2sHIIIxxxxQQ{COPIES}Q")
#: Bytes.
SIZE = _STRUCT.size


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
        times = (*self.due, *[0] * (COPIES - len(self.due)))
        mark = ETHERTYPE.to_bytes(2, "big")
        return _STRUCT.pack(mark, len(self.due), self.ifindex, self.link, self.ingress, self.release, self.latest, *times)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read what :meth:`pack` wrote, at the start of ``data``.

        :raises ValueError: It is something else; the text says what.
        """
        if len(data) < SIZE:
            raise ValueError(f"{len(data)} bytes are no held frame: its header takes {SIZE}")
        mark, copies, ifindex, link, ingress, release, latest, *times = _STRUCT.unpack_from(data)
        if int.from_bytes(mark, "big") != ETHERTYPE:
            raise ValueError(f"ethertype {mark.hex()} is no held frame's, which is {ETHERTYPE:x}")
        if not 1 <= copies <= COPIES:
            raise ValueError(f"{copies} copies of a held frame: allowed are 1 to {COPIES}")
        return cls(ifindex, tuple(times[:copies]), link, release, latest, ingress)
