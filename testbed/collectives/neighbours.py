"""The two TCP neighbours of a rank on a ring: how they meet, and how they learn which rank has failed.

Every pair of neighbours has two connections: one carries data to the right; the other,
unused while all goes well, carries one-byte notes in both directions. A rank that gives up writes the number of
the rank at fault to both
neighbours before it closes, so that all ranks name the same one and not the neighbour that closed on them.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from typing import Literal

from testbed.collectives.group import GroupSpec, Member
from testbed.errors import CollectiveError

__all__ = ["BASE_PORT", "Neighbours"]

BASE_PORT = 20000  # plus the group's id: below the kernel's ephemeral range (32768..)

Side = Literal["left", "right"]
_HELLO_TIMEOUT = 10.0  # seconds; where SYN and hello are lost, TCP sends the latter again after 3 s (RFC 6298, 5.7)
_HELLO = struct.Struct("!8sQHBB")  # magic, cookie, group, rank, channel
_MAGIC = b"tcp-ring"
_DATA, _NOTES = 0, 1
_ALIVE = 0xFF  # a note that is no rank: "I am waiting as well"
_GRACE = 1.0  # seconds for a note to come round, after the ring has stood still for the timeout


class Neighbours:
    """Connections to the right and the left neighbour of a ring of at least two ranks.

    :param spec: The group, as this rank sees it.
    :param buffer_bytes: Socket buffers of the data connections (doubled by the kernel, see socket(7)).
    :raises CollectiveError: A neighbour did not come within the timeout.
    """

    def __init__(self, spec: GroupSpec, buffer_bytes: int) -> None:
        self._spec = spec
        self._buffer_bytes = buffer_bytes
        self._open = contextlib.ExitStack()
        deadline = time.monotonic() + spec.timeout
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._open)
            with self._listen() as listener:
                right = [self._call(channel, deadline) for channel in (_DATA, _NOTES)]
                left = self._answer(listener, deadline)
            undo.pop_all()
        self.right, self._right_notes = right
        self.left, self._left_notes = left[_DATA], left[_NOTES]

    def _listen(self) -> socket.socket:
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._set_buffers(listener)  # accepted sockets inherit them, early enough for the window scale
            listener.bind((self._spec.me.ip, BASE_PORT + self._spec.group_id))
            listener.listen(8)
        except OSError as error:
            listener.close()
            where = f"{self._spec.me.ip}:{BASE_PORT + self._spec.group_id}"
            text = f"tcp-ring: rank {self._spec.rank} cannot listen on {where}: {error.strerror}"
            raise CollectiveError(text) from error
        return listener

    def _set_buffers(self, sock: socket.socket) -> None:
        # SO_SNDBUFFORCE and SO_RCVBUFFORCE pass the sysctls net.core.{w,r}mem_max, given CAP_NET_ADMIN.
        for force, plain in ((32, socket.SO_SNDBUF), (33, socket.SO_RCVBUF)):
            try:
                sock.setsockopt(socket.SOL_SOCKET, force, self._buffer_bytes)
            except PermissionError:
                sock.setsockopt(socket.SOL_SOCKET, plain, self._buffer_bytes)

    def _call(self, channel: int, deadline: float) -> socket.socket:
        """Connect to the right neighbour, which may not listen yet."""
        right = self._spec.right
        while True:
            sock = socket.socket()
            try:
                self._set_buffers(sock)
                sock.settimeout(max(deadline - time.monotonic(), 1e-3))
                sock.connect((right.ip, BASE_PORT + self._spec.group_id))
            except OSError as error:
                sock.close()
                if time.monotonic() > deadline:
                    raise self._error(right, f"did not answer within {self._spec.timeout:g} s") from error
                time.sleep(0.005)
                continue
            self._open.enter_context(sock)
            sock.sendall(_HELLO.pack(_MAGIC, self._spec.cookie, self._spec.group_id, self._spec.rank, channel))
            return self._prepare(sock)

    def _answer(self, listener: socket.socket, deadline: float) -> dict[int, socket.socket]:
        """Accept the left neighbour's two connections; who does not know the cookie is sent away."""
        left = self._spec.left
        met: dict[int, socket.socket] = {}
        while len(met) < 2:
            try:
                listener.settimeout(max(deadline - time.monotonic(), 1e-3))
                sock, _ = listener.accept()
            except OSError as error:
                raise self._error(left, f"did not come within {self._spec.timeout:g} s") from error
            hello = b""
            with contextlib.suppress(OSError):
                sock.settimeout(min(_HELLO_TIMEOUT, max(deadline - time.monotonic(), 1e-3)))
                hello = sock.recv(_HELLO.size, socket.MSG_WAITALL)
            for channel in {_DATA, _NOTES} - met.keys():
                if hello == _HELLO.pack(_MAGIC, self._spec.cookie, self._spec.group_id, left.rank, channel):
                    met[channel] = self._prepare(self._open.enter_context(sock))
                    break
            else:
                sock.close()
        return met

    def _prepare(self, sock: socket.socket) -> socket.socket:
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limit = struct.pack("@ll", int(self._spec.timeout), int(self._spec.timeout % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        return sock

    def _error(self, member: Member, what: str) -> CollectiveError:
        return CollectiveError(f"tcp-ring: rank {member.rank} ({member.name}) {what}")

    def blame(self, side: Side, silent: bool) -> CollectiveError:
        """Find the rank at fault after a data connection failed, tell the neighbours, return the error.

        :param side: The neighbour whose connection failed.
        :param silent: It stood still for the timeout; otherwise it was closed.
        """
        spec = self._spec
        member = spec.left if side == "left" else spec.right
        if silent:
            self._tell(_ALIVE)
        culprit = self._listen_to_notes(member)
        if culprit is None:
            # It waits as well, and nobody has found the cause: the clocks of the ranks are too far apart.
            return self._error(member, f"has got nothing for {spec.timeout:g} s, nor has rank {spec.rank}")
        self._tell(culprit.rank)
        how = f"was silent for {spec.timeout:g} s" if silent else "has closed its connection or died"
        return self._error(culprit, how)

    def _tell(self, note: int) -> None:
        for sock in (self._left_notes, self._right_notes):
            with contextlib.suppress(OSError):
                sock.send(bytes([note]), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)

    def _listen_to_notes(self, suspect: Member) -> Member | None:
        """Read notes until one, or the end of one neighbour's, names the rank at fault.

        :returns: That rank; `suspect` where it stays silent here too; None where it does not, unnamed.
        """
        notes = {self._left_notes: self._spec.left, self._right_notes: self._spec.right}
        deadline = time.monotonic() + _GRACE
        while (seconds := deadline - time.monotonic()) > 0:
            for sock in select.select(list(notes), [], [], seconds)[0]:
                try:
                    note = sock.recv(1)
                except OSError:
                    note = b""
                if not note:
                    return notes[sock]
                if note[0] != _ALIVE:
                    return self._spec.members[note[0] % self._spec.size]
                if notes[sock] == suspect:
                    suspect, deadline = (
                        self._spec.me,
                        deadline + _GRACE,
                    )  # some rank will name the cause
        return None if suspect == self._spec.me else suspect

    def close(self) -> None:
        """Close all connections."""
        self._open.close()
