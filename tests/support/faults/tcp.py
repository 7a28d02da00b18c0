"""A TCP transfer between two workers."""

import socket
import time

from testbed.worker import WorkerContext

PORT = 5201


def transfer(context: WorkerContext, receiver: str, size: int) -> float:
    """Send or receive ``size`` bytes, by who this is; the receiver returns bits per second from its
    first byte on.
    """
    deadline = time.monotonic() + 30
    if context.name == receiver:
        with socket.create_server(("", PORT)) as server:
            server.settimeout(30)
            connection, _ = server.accept()
            with connection:
                got = len(connection.recv(1))
                start = time.monotonic()
                while data := connection.recv(1 << 16):
                    got += len(data)
                return got * 8 / (time.monotonic() - start)
    while True:
        try:
            with socket.create_connection(
                (context.fabric_plan.host(receiver).ip, PORT), timeout=30
            ) as connection:
                connection.sendall(bytes(size))
            return 0.0
        except ConnectionRefusedError:  # it does not listen yet
            if time.monotonic() > deadline:
                raise
