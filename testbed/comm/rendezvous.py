"""How ranks connect over TCP: who listens, who calls, and the handshakes that tell a member's
connection from a foreign one.

A caller sends its handshake first, and the rank that it has called answers with its own. A
handshake holds the group's cookie, the sender's rank, and the purpose of the connection. One loop
serves all connections at once, so a client that sends nothing, sends slowly, or sends something
else delays no other.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import struct
import time
from collections.abc import Collection
from dataclasses import dataclass

from testbed.comm.group import GroupSpec, Member
from testbed.core.closing import Closing
from testbed.core.errors import CollectiveError

__all__ = ["BASE_PORT", "MOST_PENDING", "Call", "Connections", "Rendezvous"]

Call = tuple[int, int]
"""A connection with another member: its rank, and the channel, what the connection is for, 0..255.
"""
Connections = dict[Call, socket.socket]

BASE_PORT = 20000  # plus the group's id; below the kernel's ephemeral range (32768..)
MOST_PENDING = 128  # accepted connections with incomplete handshakes; a new one replaces the oldest

# seconds; if SYN and handshake are lost, TCP retransmits the latter after 3 s (RFC 6298, 5.7)
_HANDSHAKE_TIMEOUT = 10.0
_RETRY = 0.005  # seconds until a member that is not listening yet, or has hung up, is called again
_HANDSHAKE = struct.Struct("!8sQHBB")  # magic, cookie, group, rank, channel
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # asm-generic/socket.h


class Rendezvous:
    """One rank at the rendezvous of a group. Its deadline is the group's ``connect_timeout``, from
    now on.

    :param name: The backend's name, for errors and for handshakes, which have room for 8 letters.
    :param spec: The group, as this rank sees it.
    :param buffer_bytes: Socket buffers of the connections (doubled by the kernel, see socket(7)).
    :param stack: Closes the connections.
    :param patience: Seconds after which a system call on a connection returns in any case; the
        group's timeout, if not given.
    """

    def __init__(
        self,
        name: str,
        spec: GroupSpec,
        buffer_bytes: int,
        stack: contextlib.ExitStack,
        patience: float | None = None,
    ) -> None:
        self.spec = spec
        self.deadline = time.monotonic() + spec.connect_timeout
        self._name = name
        self._buffer_bytes = buffer_bytes
        self._stack = stack
        self._patience = spec.timeout if patience is None else patience

    def connect(
        self, calls: Collection[Call], callers: Collection[Call]
    ) -> tuple[Connections, Connections]:
        """Call members, which need not be listening yet, and answer others, until all connections
        are complete.

        :param calls: The members that this rank calls; `callers`: those that call it.
        :returns: All connections.
        :raises CollectiveError: The port is taken, or a member did not connect in time; the text
            names it.
        """
        with _Meeting(self, calls, callers) as meeting:
            return meeting.wait()

    def error(self, member: Member, what: str) -> CollectiveError:
        """Return an error that names a rank."""
        return CollectiveError(f"{self._name}: rank {member.rank} ({member.name}) {what}")

    def handshake(self, rank: int, channel: int) -> bytes:
        """Return the handshake of a rank on a connection."""
        return _HANDSHAKE.pack(
            self._name.encode(), self.spec.cookie, self.spec.group_id, rank, channel
        )

    def address(self, member: Member) -> tuple[str, int]:
        """Return where a member listens."""
        return member.ip, BASE_PORT + self.spec.group_id

    def open(self) -> socket.socket:
        """Return a new non-blocking socket."""
        sock = socket.socket()
        sock.setblocking(False)
        # With CAP_NET_ADMIN, the forced options exceed the sysctls net.core.{w,r}mem_max.
        for force, plain in (
            (_SO_SNDBUFFORCE, socket.SO_SNDBUF),
            (_SO_RCVBUFFORCE, socket.SO_RCVBUF),
        ):
            try:
                sock.setsockopt(socket.SOL_SOCKET, force, self._buffer_bytes)
            except PermissionError:
                sock.setsockopt(socket.SOL_SOCKET, plain, self._buffer_bytes)
        return sock

    def keep(self, sock: socket.socket) -> socket.socket:
        """Return a connection whose handshakes are complete, ready for use."""
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limit = struct.pack("@ll", int(self._patience), int(self._patience % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        return self._stack.enter_context(sock)


@dataclass(eq=False)
class _Pending:
    """A connection whose handshakes are not complete.

    :param until: When it is abandoned.
    :param call: The member and channel that it calls; None: it was accepted.
    :param sent: Whether this rank, as the caller, has sent its handshake.
    :param received: The part of the other's handshake that has arrived.
    """

    sock: socket.socket
    until: float
    call: Call | None = None
    sent: bool = False
    received: bytes = b""


class _Meeting(Closing):
    """One rank's listening socket, and all connections whose handshakes are not complete."""

    def __init__(
        self, rendezvous: Rendezvous, calls: Collection[Call], callers: Collection[Call]
    ) -> None:
        self._rendezvous = rendezvous
        self._calls, self._callers = calls, callers
        self._called: Connections = {}
        self._accepted: Connections = {}
        self._due = dict.fromkeys(calls, 0.0)  # when to call
        self._pending: list[_Pending] = []  # oldest first
        self._selector = selectors.DefaultSelector()
        self._listener = (
            rendezvous.open()
        )  # connections inherit its buffers, early enough for the window scale
        me = rendezvous.spec.me
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(rendezvous.address(me))
            self._listener.listen(socket.SOMAXCONN)
        except OSError as error:
            self.close()
            where = ":".join(map(str, rendezvous.address(me)))
            raise rendezvous.error(me, f"cannot listen on {where}: {error.strerror}") from error
        self._selector.register(self._listener, selectors.EVENT_READ)

    def close(self) -> None:
        """Close the listening socket and all pending connections."""
        for pending in self._pending:
            pending.sock.close()
        self._listener.close()
        self._selector.close()

    def wait(self) -> tuple[Connections, Connections]:
        """Return all connections once they are complete; see `Rendezvous.connect`."""
        while len(self._called) < len(self._calls) or len(self._accepted) < len(self._callers):
            now = time.monotonic()
            if now >= self._rendezvous.deadline:
                raise self._missing()
            for call in [call for call, when in self._due.items() if when <= now]:
                self._call(call)
            for pending in [pending for pending in self._pending if pending.until <= now]:
                self._drop(pending)
            wake = min(
                [
                    self._rendezvous.deadline,
                    *self._due.values(),
                    *(pending.until for pending in self._pending),
                ]
            )
            for key, _ in self._selector.select(max(0.0, wake - now)):
                if key.data is None:
                    self._accept()
                elif key.data in self._pending:  # a connection accepted since may have displaced it
                    self._proceed(key.data)
        return self._called, self._accepted

    def _call(self, call: Call) -> None:
        sock = self._rendezvous.open()
        pending = _Pending(sock, self._rendezvous.deadline, call)
        del self._due[call]
        self._pending.append(pending)
        self._selector.register(sock, selectors.EVENT_WRITE, pending)
        if sock.connect_ex(
            self._rendezvous.address(self._rendezvous.spec.members[call[0]])
        ) not in (0, errno.EINPROGRESS):
            self._drop(pending)

    def _accept(self) -> None:
        """Accept a connection."""
        try:
            sock, _ = self._listener.accept()
        except OSError:  # the client has gone, or there are no descriptors left
            return
        sock.setblocking(False)
        accepted = [pending for pending in self._pending if pending.call is None]
        if len(accepted) >= MOST_PENDING:
            self._drop(accepted[0])
        pending = _Pending(sock, time.monotonic() + _HANDSHAKE_TIMEOUT)
        self._pending.append(pending)
        self._selector.register(sock, selectors.EVENT_READ, pending)
        self._proceed(pending)  # most clients send their handshake at once

    def _proceed(self, pending: _Pending) -> None:
        """Send or receive as much of a handshake as is possible now."""
        try:
            if pending.call and not pending.sent:
                # Raises the error of a connection that has failed.
                pending.sock.send(
                    self._rendezvous.handshake(self._rendezvous.spec.rank, pending.call[1])
                )
                pending.sent = True
                self._selector.modify(pending.sock, selectors.EVENT_READ, pending)
                return
            data = pending.sock.recv(_HANDSHAKE.size - len(pending.received))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        pending.received += data
        others = [pending.call] if pending.call else self._callers
        expected = {self._rendezvous.handshake(*other): other for other in others}
        if not data or not any(handshake.startswith(pending.received) for handshake in expected):
            self._drop(pending)
        elif pending.received in expected:
            self._finish(pending, expected[pending.received])

    def _finish(self, pending: _Pending, other: Call) -> None:
        """Keep a connection; answer the handshake of an accepted one."""
        if not pending.call:
            try:
                pending.sock.send(self._rendezvous.handshake(self._rendezvous.spec.rank, other[1]))
            except OSError:
                self._drop(pending)
                return
        self._pending.remove(pending)
        self._selector.unregister(pending.sock)
        (self._called if pending.call else self._accepted)[other] = self._rendezvous.keep(
            pending.sock
        )

    def _drop(self, pending: _Pending) -> None:
        """Close a connection; a member that was called is called again."""
        self._pending.remove(pending)
        self._selector.unregister(pending.sock)
        pending.sock.close()
        if pending.call:
            self._due[pending.call] = time.monotonic() + _RETRY

    def _missing(self) -> CollectiveError:
        """Return an error that names the first member that is missing."""
        spec = self._rendezvous.spec
        for others, met, what in (
            (self._calls, self._called, "answer"),
            (self._callers, self._accepted, "come"),
        ):
            if missing := sorted(set(others) - met.keys()):
                return self._rendezvous.error(
                    spec.members[missing[0][0]], f"did not {what} within {spec.connect_timeout:g} s"
                )
        raise AssertionError("nobody is missing")
