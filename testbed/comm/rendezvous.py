"""How ranks meet over TCP: who listens, who calls, and the greetings that tell a member's connection from a foreign one.

A caller greets first, and whom it has called greets back; a greeting holds the group's cookie, the speaker's rank, and what the
connection is for. One loop calls, listens and greets on all connections at once: who else connects and says nothing, or little
at a time, or something else, holds nobody up.
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

__all__ = ["BASE_PORT", "MOST_STRANGERS", "Call", "Connections", "Rendezvous"]

Call = tuple[int, int]
"""A connection with another member: its rank, and the channel, what the connection is for, 0..255."""
Connections = dict[Call, socket.socket]

BASE_PORT = 20000  # plus the group's id: below the kernel's ephemeral range (32768..)
MOST_STRANGERS = 128  # that have connected and not greeted; who has been there longest makes room for the next

_GREETING_TIMEOUT = 10.0  # seconds; where SYN and greeting are lost, TCP sends the latter again after 3 s (RFC 6298, 5.7)
_AGAIN = 0.005  # seconds until a member is called again that does not listen yet, or that has hung up
_GREETING = struct.Struct("!8sQHBB")  # magic, cookie, group, rank, channel
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # asm-generic/socket.h


class Rendezvous:
    """One rank at the rendezvous of a group. Its deadline is the group's timeout, from now on.

    :param name: The backend's, for errors and in greetings; at most 8 letters count there.
    :param spec: The group, as this rank sees it.
    :param buffer_bytes: Socket buffers of the connections (doubled by the kernel, see socket(7)).
    :param stack: Closes the connections.
    :param patience: Seconds after which a system call on a connection returns in any case; the group's timeout, if not given.
    """

    def __init__(
        self, name: str, spec: GroupSpec, buffer_bytes: int, stack: contextlib.ExitStack, patience: float | None = None
    ) -> None:
        self.spec = spec
        self.deadline = time.monotonic() + spec.timeout
        self._name = name
        self._buffer_bytes = buffer_bytes
        self._stack = stack
        self._patience = spec.timeout if patience is None else patience

    def connect(self, calls: Collection[Call], callers: Collection[Call]) -> tuple[Connections, Connections]:
        """Call members, who need not listen yet, and answer others, until all connections are there.

        :param calls: Whom this rank calls; `callers`: who calls it.
        :returns: The connections of either kind.
        :raises CollectiveError: The port is taken, or a member was not there in time; the text names it.
        """
        with _Hall(self, calls, callers) as hall:
            return hall.wait()

    def error(self, member: Member, what: str) -> CollectiveError:
        """Return an error that names a rank."""
        return CollectiveError(f"{self._name}: rank {member.rank} ({member.name}) {what}")

    def greeting(self, rank: int, channel: int) -> bytes:
        """Return what a rank says first on a connection."""
        return _GREETING.pack(self._name.encode(), self.spec.cookie, self.spec.group_id, rank, channel)

    def address(self, member: Member) -> tuple[str, int]:
        """Return where a member listens."""
        return member.ip, BASE_PORT + self.spec.group_id

    def open(self) -> socket.socket:
        """Return a new socket that does not block."""
        sock = socket.socket()
        sock.setblocking(False)
        # The forced ones pass the sysctls net.core.{w,r}mem_max, given CAP_NET_ADMIN.
        for force, plain in ((_SO_SNDBUFFORCE, socket.SO_SNDBUF), (_SO_RCVBUFFORCE, socket.SO_RCVBUF)):
            try:
                sock.setsockopt(socket.SOL_SOCKET, force, self._buffer_bytes)
            except PermissionError:
                sock.setsockopt(socket.SOL_SOCKET, plain, self._buffer_bytes)
        return sock

    def keep(self, sock: socket.socket) -> socket.socket:
        """Return a connection on which all greetings have been said, ready for use."""
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limit = struct.pack("@ll", int(self._patience), int(self._patience % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        return self._stack.enter_context(sock)


@dataclass(eq=False)
class _Visit:
    """A connection on which not all greetings have been said.

    :param until: When it is given up.
    :param call: Whom it is to; None: somebody has come.
    :param greeted: Whether this rank has greeted whom it calls.
    :param heard: What has come of the other's greeting.
    """

    sock: socket.socket
    until: float
    call: Call | None = None
    greeted: bool = False
    heard: bytes = b""


class _Hall(Closing):
    """Where a rank waits: its door, and all connections on which greetings are still to be said."""

    def __init__(self, rendezvous: Rendezvous, calls: Collection[Call], callers: Collection[Call]) -> None:
        self._rendezvous = rendezvous
        self._calls, self._callers = calls, callers
        self._called: Connections = {}
        self._came: Connections = {}
        self._due = dict.fromkeys(calls, 0.0)  # when to call
        self._visits: list[_Visit] = []  # in the order in which they began
        self._selector = selectors.DefaultSelector()
        self._door = rendezvous.open()  # connections inherit its buffers, early enough for the window scale
        me = rendezvous.spec.me
        try:
            self._door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._door.bind(rendezvous.address(me))
            self._door.listen(socket.SOMAXCONN)
        except OSError as error:
            self.close()
            where = ":".join(map(str, rendezvous.address(me)))
            raise rendezvous.error(me, f"cannot listen on {where}: {error.strerror}") from error
        self._selector.register(self._door, selectors.EVENT_READ)

    def close(self) -> None:
        """Send away who has not greeted."""
        for visit in self._visits:
            visit.sock.close()
        self._door.close()
        self._selector.close()

    def wait(self) -> tuple[Connections, Connections]:
        """Return all connections when they are there; see `Rendezvous.connect`."""
        while len(self._called) < len(self._calls) or len(self._came) < len(self._callers):
            now = time.monotonic()
            if now >= self._rendezvous.deadline:
                raise self._absence()
            for call in [call for call, when in self._due.items() if when <= now]:
                self._call(call)
            for visit in [visit for visit in self._visits if visit.until <= now]:
                self._end(visit)
            wake = min([self._rendezvous.deadline, *self._due.values(), *(visit.until for visit in self._visits)])
            for key, _ in self._selector.select(max(0.0, wake - now)):
                if key.data is None:
                    self._admit()
                elif key.data in self._visits:  # who has come since may have taken its place
                    self._attend(key.data)
        return self._called, self._came

    def _call(self, call: Call) -> None:
        sock = self._rendezvous.open()
        visit = _Visit(sock, self._rendezvous.deadline, call)
        del self._due[call]
        self._visits.append(visit)
        self._selector.register(sock, selectors.EVENT_WRITE, visit)
        if sock.connect_ex(self._rendezvous.address(self._rendezvous.spec.members[call[0]])) not in (0, errno.EINPROGRESS):
            self._end(visit)

    def _admit(self) -> None:
        """Let in who knocks."""
        try:
            sock, _ = self._door.accept()
        except OSError:  # it has gone again, or there is no room for more
            return
        sock.setblocking(False)
        strangers = [visit for visit in self._visits if visit.call is None]
        if len(strangers) >= MOST_STRANGERS:
            self._end(strangers[0])
        visit = _Visit(sock, time.monotonic() + _GREETING_TIMEOUT)
        self._visits.append(visit)
        self._selector.register(sock, selectors.EVENT_READ, visit)
        self._attend(visit)  # most greet at once

    def _attend(self, visit: _Visit) -> None:
        """Say or hear a greeting, as far as it goes now."""
        try:
            if visit.call and not visit.greeted:
                # Raises the reason where there is no connection.
                visit.sock.send(self._rendezvous.greeting(self._rendezvous.spec.rank, visit.call[1]))
                visit.greeted = True
                self._selector.modify(visit.sock, selectors.EVENT_READ, visit)
                return
            said = visit.sock.recv(_GREETING.size - len(visit.heard))
        except BlockingIOError:
            return
        except OSError:
            said = b""
        visit.heard += said
        others = [visit.call] if visit.call else self._callers
        awaited = {self._rendezvous.greeting(*other): other for other in others}
        if not said or not any(greeting.startswith(visit.heard) for greeting in awaited):
            self._end(visit)
        elif visit.heard in awaited:
            self._agree(visit, awaited[visit.heard])

    def _agree(self, visit: _Visit, other: Call) -> None:
        """Keep a connection, and greet who has come."""
        if not visit.call:
            try:
                visit.sock.send(self._rendezvous.greeting(self._rendezvous.spec.rank, other[1]))
            except OSError:
                self._end(visit)
                return
        self._visits.remove(visit)
        self._selector.unregister(visit.sock)
        (self._called if visit.call else self._came)[other] = self._rendezvous.keep(visit.sock)

    def _end(self, visit: _Visit) -> None:
        """Hang up; who was called is called again."""
        self._visits.remove(visit)
        self._selector.unregister(visit.sock)
        visit.sock.close()
        if visit.call:
            self._due[visit.call] = time.monotonic() + _AGAIN

    def _absence(self) -> CollectiveError:
        """Name the first member that is not there."""
        spec = self._rendezvous.spec
        for others, met, what in ((self._calls, self._called, "answer"), (self._callers, self._came, "come")):
            if missing := sorted(set(others) - met.keys()):
                return self._rendezvous.error(spec.members[missing[0][0]], f"did not {what} within {spec.timeout:g} s")
        raise AssertionError("nobody is missing")
