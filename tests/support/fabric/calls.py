"""Functions that tests call in workers."""

import socket
import time

from testbed.datapath.dispatcher import Dispatcher
from testbed.kernel import BpfObject
from testbed.worker import WorkerContext
from tests.support.kept import kept

ETHERTYPE = 0x88B5  # IEEE 802: local experimental


def redirect_kicks(context: WorkerContext) -> None:
    """Have XDP at the doorbell redirect every frame out of eth0, in place of the testbed's own
    program.
    """
    if dispatcher := context.find(Dispatcher):
        dispatcher.detach()
    probe = context.resources.enter_context(BpfObject("probe"))
    probe.maps["ports"].update(0, socket.if_nametoindex("eth0"))
    link = probe.programs["probe_redirect"].attach_xdp(socket.if_nametoindex("doorbell1"))
    context.resources.enter_context(link)


def listen(context: WorkerContext) -> None:
    receiver = context.resources.enter_context(
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
    )
    receiver.bind(("eth0", ETHERTYPE))
    kept(context)["receiver"] = receiver


def ring(context: WorkerContext, mac: str, frames: int) -> None:
    """Send frames for ``mac`` into the doorbell."""
    addresses = [bytes.fromhex(address.replace(":", "")) for address in (mac, context.host.mac)]
    header = b"".join(addresses) + ETHERTYPE.to_bytes(2, "big")
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind(("doorbell0", 0))
        for number in range(frames):
            sender.send(header + number.to_bytes(2, "big") + bytes(44))


def receive(context: WorkerContext, frames: int, timeout: float) -> list[int]:
    """The numbers of the frames that arrive, until there are ``frames`` or the time is over."""
    receiver = kept(context)["receiver"]
    numbers: list[int] = []
    deadline = time.monotonic() + timeout
    while len(numbers) < frames and (left := deadline - time.monotonic()) > 0:
        receiver.settimeout(left)
        try:
            numbers.append(int.from_bytes(receiver.recv(2048)[14:16], "big"))
        except TimeoutError:
            break
    return numbers
