"""A TCP transfer between two workers."""

import socket
import time

from testbed.worker import WorkerContext

PORT = 5201


def transfer(context: WorkerContext, receiver: str, size: int) -> float:
    """Send or receive ``size`` bytes, depending on the worker; return when the first left or the
    last arrived, seconds of the monotonic clock.
    """
    deadline = time.monotonic() + 30
    if context.name == receiver:
        with socket.create_server(("", PORT)) as server:
            server.settimeout(30)
            connection, _ = server.accept()
            with connection:
                while connection.recv(1 << 16):
                    pass
                return time.monotonic()
    while True:
        try:
            with socket.create_connection(
                (context.fabric_plan.host(receiver).ip, PORT), timeout=30
            ) as connection:
                start = time.monotonic()
                connection.sendall(bytes(size))
            return start
        except ConnectionRefusedError:  # the receiver does not listen yet
            if time.monotonic() > deadline:
                raise
