"""Connections to a rank's door from somebody who is no member of its group."""

import contextlib
import random
import socket
from collections.abc import Callable, Iterator, Sequence

from testbed.comm.rendezvous import BASE_PORT

__all__ = ["STRANGERS", "door", "is_sent_away", "knock"]

Behaviour = Callable[[socket.socket, int], None]


def _silent(_sock: socket.socket, _number: int) -> None:
    """Connect, and nothing more."""


def _garbage(sock: socket.socket, number: int) -> None:
    sock.sendall(random.Random(number).randbytes(1 + 97 * number))


def _slow(sock: socket.socket, number: int) -> None:
    """Begin as a member would, a byte at a time, and stop before the cookie."""
    for byte in b"tcp-ring"[: 1 + number % 8]:
        sock.send(bytes([byte]))


def _wrong_cookie(sock: socket.socket, number: int) -> None:
    sock.sendall(b"tcp-ring" + random.Random(number).randbytes(8) + bytes(4))


def _gone(sock: socket.socket, _number: int) -> None:
    sock.shutdown(socket.SHUT_RDWR)


STRANGERS: dict[str, Behaviour] = {
    "silent": _silent,
    "garbage": _garbage,
    "slow": _slow,
    "wrong cookie": _wrong_cookie,
    "gone": _gone,
}


def door(spec) -> tuple[str, int]:
    """The address at which a group's rank listens."""
    return spec.me.ip, BASE_PORT + spec.group_id


@contextlib.contextmanager
def knock(
    address: tuple[str, int], behaviours: Sequence[Behaviour], alive: Callable[[], bool]
) -> Iterator[list[socket.socket]]:
    """Connect one stranger a behaviour to a door, which need not be there yet.

    :param alive: Whether somebody is still going to be there.
    """
    with contextlib.ExitStack() as stack:
        strangers = []
        for number, behave in enumerate(behaviours):
            sock = stack.enter_context(socket.socket())
            while sock.connect_ex(address):
                assert alive()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(ConnectionError):  # who is sent away may still be speaking
                behave(sock, number)
            sock.settimeout(5)
            strangers.append(sock)
        yield strangers


def is_sent_away(sock: socket.socket) -> bool:
    """Whether a connection has been closed by the other side, who has said nothing."""
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True
