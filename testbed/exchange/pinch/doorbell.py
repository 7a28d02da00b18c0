"""The doorbell of an exchange: frames that its process sends to its own programs."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Sequence

from testbed.comm.group import GroupSpec
from testbed.core.closing import Closing
from testbed.core.errors import CollectiveError
from testbed.datapath.dispatcher import DOORBELL_FAR, DOORBELL_NEAR
from testbed.kernel.libbpf import explain
from testbed.protocol.pinch.packet import LEAST_BYTES
from testbed.protocol.wire import Frame, Header, PinchKind, encode, frame_seal

__all__ = ["Doorbell", "make_kick"]


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


class Doorbell(Closing):
    """A socket on the doorbell's near end, and all kicks that there are.

    :param flows: The CPUs of the flows.
    :param size: Bytes of a full frame.
    """

    def __init__(self, group: GroupSpec, flows: Sequence[int], size: int) -> None:
        self._group = group
        self.kick_bytes = max(size, LEAST_BYTES)
        #: A kick for each flow, that of this CPU last, so that the other CPUs have begun by then.
        self.kicks = ctypes.create_string_buffer(
            b"".join(
                make_kick(PinchKind.DOORBELL, group, self.kick_bytes, stream=flow) for flow in flows
            )
        )
        self.kick_count = len(flows)
        self._work = make_kick(PinchKind.WORK, group)
        kick = make_kick(PinchKind.SEND_HANDSHAKES, group)
        #: Has this rank's programs send its handshakes.
        self.handshake_kick = ctypes.create_string_buffer(kick, len(kick))
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            self._socket.bind((DOORBELL_NEAR, 0))
        except OSError:
            self._socket.close()
            raise
        self.fd = self._socket.fileno()

    def work(self) -> None:
        """Kick so that queued hubs are added.

        :raises CollectiveError: The doorbell is gone.
        """
        self._send(self._work)

    def send_handshakes(self, attempt: int) -> None:
        """Have handshakes repeated to ranks from which something is missing.

        :param attempt: 1..255.
        :raises CollectiveError: The doorbell is gone.
        """
        self._send(make_kick(PinchKind.SEND_HANDSHAKES, self._group, attempt=attempt))

    def _send(self, kick: bytes) -> None:
        try:
            self._socket.send(kick)
        except OSError as error:
            self.check(error.errno or 0)

    def check(self, code: int) -> None:
        """Raise the error that a call of the doorbell's ended with.

        :param code: An errno, or 0.
        :raises CollectiveError: It is not 0.
        """
        if code:
            host = f"rank {self._group.rank} ({self._group.me.name})"
            raise CollectiveError(
                f"{host}: doorbell {DOORBELL_NEAR}-{DOORBELL_FAR}: {explain(code)}"
            )

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
