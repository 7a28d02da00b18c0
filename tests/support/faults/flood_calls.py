"""Functions that tests call in workers: they send datagrams that begin with their numbers, and
record all that arrive, whatever their destination.
"""

import itertools
import os
import socket
import struct
import time
from collections import Counter

from testbed.worker import WorkerContext
from tests.support.kept import kept

PORT = 4000
PAYLOAD = 100
_HEADERS = 14 + 20 + 8  # Ethernet, IPv4, UDP
_ETH_P_IP = 0x0800
_ROOM = 1 << 23  # bytes
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h


def hear(context: WorkerContext) -> None:
    """Record what arrives from now on; a socket that accepts the datagrams keeps the stack from
    answering them.
    """
    link = context.resources.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    link.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM)
    link.bind((context.host.ifname, _ETH_P_IP))
    taker = context.resources.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    taker.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM)
    taker.bind(("", PORT))
    kept(context)["link"], kept(context)["taker"] = link, taker
    kept(context)["heard"] = Counter()


def send(context: WorkerContext, receivers: list[str], numbers: range) -> None:
    """Send one datagram per number to each receiver."""
    plan = context.fabric_plan
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for number in numbers:
            for name in receivers:
                sender.sendto(
                    number.to_bytes(4, "big").ljust(PAYLOAD, b"\0"), (plan.host(name).ip, PORT)
                )


def send_until(context: WorkerContext, receiver: str, enough: str, pause: float) -> int:
    """Send datagrams until a file exists; return how many.

    :param pause: Seconds after each.
    """
    for number in itertools.count():
        if os.path.exists(enough):
            break
        send(context, [receiver], range(number, number + 1))
        time.sleep(pause)
    return number


def heard(
    context: WorkerContext, least: int, timeout: float = 10.0
) -> "Counter[tuple[str, str, int]]":
    """Return what has arrived since :func:`hear` by sender, receiver and number, as soon as there
    are ``least`` frames or the time is up.
    """
    link, counted = kept(context)["link"], kept(context)["heard"]
    names = {host.mac: host.name for host in context.fabric_plan.hosts}
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic() if counted.total() < least else 0.0
        link.settimeout(max(0.0, left))
        try:
            frame = link.recv(4096)
        except (TimeoutError, BlockingIOError):
            return Counter(counted)
        addressed, sender = (names[frame[at : at + 6].hex(":")] for at in (0, 6))
        if frame[23] == socket.IPPROTO_UDP and struct.unpack_from("!H", frame, 36)[0] == PORT:
            counted[sender, addressed, int.from_bytes(frame[_HEADERS : _HEADERS + 4], "big")] += 1


def taken(context: WorkerContext) -> list[int]:
    """Return the numbers of the datagrams that the stack has delivered so far."""
    taker, found = kept(context)["taker"], []
    taker.setblocking(False)
    while True:
        try:
            found.append(int.from_bytes(taker.recv(2048)[:4], "big"))
        except BlockingIOError:
            return found
