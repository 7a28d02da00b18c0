"""Frames that pass a switch, recorded and replayed."""

from collections.abc import Iterator
from contextlib import contextmanager
from socket import AF_PACKET, SOCK_RAW, SOL_SOCKET, htons, socket

from testbed.fabric import Fabric
from testbed.fabric.namespace import inside
from testbed.protocol.wire import Frame, decode

__all__ = ["received", "replay", "tapped"]

SO_RCVBUFFORCE = 33  # asm-generic/socket.h
ETH_P_ALL = 3


@contextmanager
def tapped(fabric: Fabric) -> Iterator[socket]:
    """A socket that receives all that passes switch s1, which has to be a bridge."""
    namespace = fabric.switches["s1"].namespace
    with inside(namespace.fd, lambda: socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL))) as tap:
        tap.setsockopt(SOL_SOCKET, SO_RCVBUFFORCE, 1 << 27)
        tap.setblocking(False)
        yield tap


def received(tap: socket) -> Iterator[tuple[bytes, Frame]]:
    """Frames of the ring and PINCH that a socket has received, as bytes and decoded."""
    while True:
        try:
            data = tap.recv(4096)
        except BlockingIOError:
            return
        if (frame := decode(data)) is not None:
            yield data, frame


def replay(fabric: Fabric, frames: list[bytes]) -> None:
    """Send frames from h4, which is no member of the group."""
    with inside(fabric.hosts["h4"].namespace.fd, lambda: socket(AF_PACKET, SOCK_RAW, 0)) as wire:
        wire.bind(("eth0", 0))
        for data in frames:
            wire.send(data)
