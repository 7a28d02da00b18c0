"""Connections to a rank's listener from clients that are not members of its group."""

import contextlib
import functools
import random
import socket
from collections.abc import Callable, Iterator, Sequence

from testbed.comm.rendezvous import BASE_PORT
from tests.support.waiting import wait_until

__all__ = ["FOREIGN", "address_of", "connect_clients", "is_closed"]

Behaviour = Callable[[socket.socket, int], None]


def _silent(_sock: socket.socket, _number: int) -> None:
    """Connect, and send nothing."""


def _garbage(sock: socket.socket, number: int) -> None:
    sock.sendall(random.Random(number).randbytes(1 + 97 * number))


def _slow(sock: socket.socket, number: int) -> None:
    """Start like a member, one byte at a time, and stop before the cookie."""
    for byte in b"tcp-ring"[: 1 + number % 8]:
        sock.send(bytes([byte]))


def _wrong_cookie(sock: socket.socket, number: int) -> None:
    sock.sendall(b"tcp-ring" + random.Random(number).randbytes(8) + bytes(4))


def _gone(sock: socket.socket, _number: int) -> None:
    sock.shutdown(socket.SHUT_RDWR)


FOREIGN: dict[str, Behaviour] = {
    "silent": _silent,
    "garbage": _garbage,
    "slow": _slow,
    "wrong cookie": _wrong_cookie,
    "gone": _gone,
}


def address_of(spec) -> tuple[str, int]:
    """The address at which a group's rank listens."""
    return spec.me.ip, BASE_PORT + spec.group_id


@contextlib.contextmanager
def connect_clients(
    address: tuple[str, int], behaviours: Sequence[Behaviour], alive: Callable[[], bool]
) -> Iterator[list[socket.socket]]:
    """Connect one client per behaviour to a listener, which need not exist yet.

    :param alive: Whether a listener that does not exist yet may still appear.
    """
    with contextlib.ExitStack() as stack:
        clients = []
        for number, behave in enumerate(behaviours):
            sock = stack.enter_context(socket.socket())
            wait_until(functools.partial(_connected, sock, address, alive))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(
                ConnectionError
            ):  # a client may be closed while it still sends
                behave(sock, number)
            sock.settimeout(5)
            clients.append(sock)
        yield clients


def _connected(sock: socket.socket, address: tuple[str, int], alive: Callable[[], bool]) -> bool:
    """Call a listener; if it does not answer, check that it still may."""
    if sock.connect_ex(address):
        assert alive()
        return False
    return True


def is_closed(sock: socket.socket) -> bool:
    """Whether the other side has closed a connection without sending anything."""
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True
