"""The kicks of an exchange: frames that its process sends to its own programs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from testbed.comm.doorbell import Doorbell
from testbed.comm.group import GroupSpec
from testbed.protocol.pinch.packet import LEAST_BYTES
from testbed.protocol.wire import Frame, Header, PinchKind, encode, frame_seal, stored

__all__ = ["Kicks", "make_kick"]


def make_kick(kind: PinchKind, group: GroupSpec, size: int = LEAST_BYTES, **fields: int) -> bytes:
    """Return a frame from a host's process to its own programs, sealed like any other.

    :param size: Bytes of the kick. It should be as long as the frame that it becomes, so that it
        does not have to grow.
    :param fields: Further members of ``struct ring_frame``.
    """
    header = Header(
        kind,
        group.group_id,
        group.cookie,
        sender=group.rank,
        receiver=group.rank,
        **stored(**fields),
    )
    header.checksum = frame_seal(header)
    me = group.me.endpoint
    return encode(Frame(header, source=me, destination=me)).ljust(size, b"\0")


class Kicks:
    """All kinds of kicks, and the doorbell to which they go.

    :param flows: The CPUs of the flows.
    :param size: Bytes of a full frame.
    """

    def __init__(
        self, doorbell: Doorbell, group: GroupSpec, flows: Sequence[int], size: int
    ) -> None:
        self.doorbell = doorbell
        self._group = group
        self.size = max(size, LEAST_BYTES)
        #: A kick for each flow. The one for this CPU comes last, so that the other CPUs have begun
        #: by then.
        self.flows = ctypes.create_string_buffer(
            b"".join(make_kick(PinchKind.DOORBELL, group, self.size, flow=flow) for flow in flows)
        )
        self.count = len(flows)
        #: Makes the programs add queued hubs.
        self.work = make_kick(PinchKind.WORK, group)
        kick = make_kick(PinchKind.SEND_HANDSHAKES, group)
        #: Makes this rank's programs send its handshakes.
        self.handshake = ctypes.create_string_buffer(kick, len(kick))

    def add_hubs(self) -> None:
        """Kick the programs so that they add queued hubs.

        :raises CollectiveError: The doorbell is gone.
        """
        self.doorbell.send(self.work)

    def send_handshakes(self, attempt: int) -> None:
        """Repeat handshakes to partners from which something is missing, or, if exchanges have
        ended, tell ranks that do not know it.

        :param attempt: 1 or more. It must differ each time, because fault rules may match on it.
        :raises CollectiveError: The doorbell is gone.
        """
        attempt = (attempt - 1) % 255 + 1
        self.doorbell.send(make_kick(PinchKind.SEND_HANDSHAKES, self._group, attempt=attempt))
