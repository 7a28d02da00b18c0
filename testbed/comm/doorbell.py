"""The doorbell of a host, as a rank's process uses it: frames that it sends to its own programs."""

from __future__ import annotations

import socket

from testbed.comm.group import GroupSpec
from testbed.core.closing import Closing
from testbed.core.errors import CollectiveError
from testbed.datapath.dispatcher import DOORBELL_FAR, DOORBELL_NEAR
from testbed.kernel.libbpf import explain

__all__ = ["Doorbell"]


class Doorbell(Closing):
    """A socket on the doorbell's near end. Native code may send by its `fd`, too."""

    def __init__(self, group: GroupSpec) -> None:
        self._host = f"rank {group.rank} ({group.me.name})"
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            self._socket.bind((DOORBELL_NEAR, 0))
        except OSError:
            self._socket.close()
            raise
        self.fd = self._socket.fileno()

    def send(self, kick: bytes) -> None:
        """Send a kick.

        :raises CollectiveError: The doorbell is gone.
        """
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
            raise CollectiveError(
                f"{self._host}: doorbell {DOORBELL_NEAR}-{DOORBELL_FAR}: {explain(code)}"
            )

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
