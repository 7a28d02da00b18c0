"""What hosts do while they are watched."""

import socket
import time

PORT = 7100
SIZE = 1000


def listen(context):
    """Bind a socket that nobody reads: all work on its datagrams is the kernel's, in softirq."""
    context.keep(context.resources.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
    context.get(socket.socket).bind((context.host.ip, PORT))


def play(context, receiver, seconds):
    """Send (h1) or compute (the others) for so much CPU time of this process; returns how often."""
    deadline, times = time.process_time() + seconds, 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        while time.process_time() < deadline:
            if context.name == "h1":
                sock.sendto(bytes(SIZE), (receiver, PORT))
            else:
                sum(range(100))
            times += 1
    return times
