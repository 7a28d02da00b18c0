"""The kicks of an exchange: frames that its process sends to its own programs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from testbed.comm.doorbell import Doorbell
from testbed.comm.group import GroupSpec
from testbed.protocol.pinch.packet import LEAST_BYTES
from testbed.protocol.wire import Frame, Header, PinchKind, encode, frame_seal

__all__ = ["Kicks", "make_kick"]


def make_kick(kind: PinchKind, group: GroupSpec, size: int = LEAST_BYTES, **fields: int) -> bytes:
    """Return a frame from a host's process to its own programs, sealed like any other.

    :param size: Bytes, as many as the frame that it becomes, so that it need not grow.
    :param fields: Others of the header.
    """
    header = Header(
        kind, group.group_id, group.cookie, sender=group.rank, receiver=group.rank, **fields
    )
    header.checksum = frame_seal(header)
    me = group.me.endpoint
    return encode(Frame(header, source=me, destination=me)).ljust(size, b"\0")


class Kicks:
    """All kicks that there are, and the doorbell that they go to.

    :param flows: The CPUs of the flows.
    :param size: Bytes of a full frame.
    """

    def __init__(
        self, doorbell: Doorbell, group: GroupSpec, flows: Sequence[int], size: int
    ) -> None:
        self.doorbell = doorbell
        self._group = group
        self.size = max(size, LEAST_BYTES)
        #: A kick for each flow, that of this CPU last, so that the other CPUs have begun by then.
        self.flows = ctypes.create_string_buffer(
            b"".join(make_kick(PinchKind.DOORBELL, group, self.size, stream=flow) for flow in flows)
        )
        self.count = len(flows)
        #: Has queued hubs added.
        self.work = make_kick(PinchKind.WORK, group)
        kick = make_kick(PinchKind.SEND_HANDSHAKES, group)
        #: Has this rank's programs send its handshakes.
        self.handshake = ctypes.create_string_buffer(kick, len(kick))

    def add_hubs(self) -> None:
        """Kick so that queued hubs are added.

        :raises CollectiveError: The doorbell is gone.
        """
        self.doorbell.send(self.work)

    def send_handshakes(self, attempt: int) -> None:
        """Have handshakes repeated to partners from which something is missing, or the end to ranks
        that do not know it.

        :param attempt: 1 or more. The header's is different each time, because fault rules match
            on it.
        :raises CollectiveError: The doorbell is gone.
        """
        attempt = (attempt - 1) % 255 + 1
        self.doorbell.send(make_kick(PinchKind.SEND_HANDSHAKES, self._group, attempt=attempt))
