"""How ranks meet over TCP: who listens, who calls, and the hello that tells a member's connection from a foreign one."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Collection

from testbed.collectives.group import GroupSpec, Member
from testbed.errors import CollectiveError

__all__ = ["BASE_PORT", "Meeting"]

BASE_PORT = 20000  # plus the group's id: below the kernel's ephemeral range (32768..)

_HELLO_TIMEOUT = 10.0  # seconds; where SYN and hello are lost, TCP sends the latter again after 3 s (RFC 6298, 5.7)
_HELLO = struct.Struct("!8sQHBB")  # magic, cookie, group, rank, channel
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # asm-generic/socket.h


class Meeting:
    """One rank at the meeting of a group. Its deadline is the group's timeout, from now on.

    :param name: The transport's, for errors and in hellos; at most 8 letters count there.
    :param spec: The group, as this rank sees it.
    :param buffer_bytes: Socket buffers of the connections (doubled by the kernel, see socket(7)).
    :param stack: Closes what is opened here.
    :param patience: Seconds after which a system call on a connection returns in any case; the group's timeout, if not given.
    """

    def __init__(
        self, name: str, spec: GroupSpec, buffer_bytes: int, stack: contextlib.ExitStack, patience: float | None = None
    ) -> None:
        self._name = name
        self._spec = spec
        self._buffer_bytes = buffer_bytes
        self._stack = stack
        self._patience = spec.timeout if patience is None else patience
        self._deadline = time.monotonic() + spec.timeout

    def listen(self) -> socket.socket:
        """Open this rank's door; the caller closes it when all have come.

        :raises CollectiveError: The port is taken.
        """
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._set_buffers(listener)  # accepted sockets inherit them, early enough for the window scale
            listener.bind((self._spec.me.ip, BASE_PORT + self._spec.group_id))
            listener.listen(64)
        except OSError as error:
            listener.close()
            where = f"{self._spec.me.ip}:{BASE_PORT + self._spec.group_id}"
            text = f"{self._name}: rank {self._spec.rank} cannot listen on {where}: {error.strerror}"
            raise CollectiveError(text) from error
        return listener

    def call(self, member: Member, channel: int = 0) -> socket.socket:
        """Connect to a member, which may not listen yet.

        :raises CollectiveError: It did not answer in time; the text names it.
        """
        while True:
            sock = socket.socket()
            try:
                self._set_buffers(sock)
                sock.settimeout(self._seconds_left())
                sock.connect((member.ip, BASE_PORT + self._spec.group_id))
            except OSError as error:
                sock.close()
                if time.monotonic() > self._deadline:
                    raise self.error(member, f"did not answer within {self._spec.timeout:g} s") from error
                time.sleep(0.005)
                continue
            self._stack.enter_context(sock)
            sock.sendall(self._hello(self._spec.rank, channel))
            return self._prepare(sock)

    def answer(self, listener: socket.socket, callers: Collection[tuple[int, int]]) -> dict[tuple[int, int], socket.socket]:
        """Accept connections until all expected ones are there; who does not know the cookie is sent away.

        :param callers: Ranks, and the channels that they call on.
        :raises CollectiveError: One did not come in time; the text names it.
        """
        awaited = {self._hello(rank, channel): (rank, channel) for rank, channel in callers}
        met: dict[tuple[int, int], socket.socket] = {}
        while awaited:
            try:
                listener.settimeout(self._seconds_left())
                sock, _ = listener.accept()
            except OSError as error:
                late = self._spec.members[min(awaited.values())[0]]
                raise self.error(late, f"did not come within {self._spec.timeout:g} s") from error
            hello = b""
            with contextlib.suppress(OSError):
                sock.settimeout(min(_HELLO_TIMEOUT, self._seconds_left()))
                hello = sock.recv(_HELLO.size, socket.MSG_WAITALL)
            if caller := awaited.pop(hello, None):
                met[caller] = self._prepare(self._stack.enter_context(sock))
            else:
                sock.close()
        return met

    def error(self, member: Member, what: str) -> CollectiveError:
        """Return an error that names a rank."""
        return CollectiveError(f"{self._name}: rank {member.rank} ({member.name}) {what}")

    def _hello(self, rank: int, channel: int) -> bytes:
        return _HELLO.pack(self._name.encode(), self._spec.cookie, self._spec.group_id, rank, channel)

    def _seconds_left(self) -> float:
        return max(self._deadline - time.monotonic(), 1e-3)

    def _set_buffers(self, sock: socket.socket) -> None:
        # The forced ones pass the sysctls net.core.{w,r}mem_max, given CAP_NET_ADMIN.
        for force, plain in ((_SO_SNDBUFFORCE, socket.SO_SNDBUF), (_SO_RCVBUFFORCE, socket.SO_RCVBUF)):
            try:
                sock.setsockopt(socket.SOL_SOCKET, force, self._buffer_bytes)
            except PermissionError:
                sock.setsockopt(socket.SOL_SOCKET, plain, self._buffer_bytes)

    def _prepare(self, sock: socket.socket) -> socket.socket:
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limit = struct.pack("@ll", int(self._patience), int(self._patience % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        return sock
