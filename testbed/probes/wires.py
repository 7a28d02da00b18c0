"""Probes of devices, in separate namespaces: XDP redirect over veth, TC programs, qdiscs."""

import contextlib
import socket
import struct
import time

from testbed.kernel import BpfObject, Link, compile_bpf
from testbed.probes.finding import Missing
from testbed.probes.netns import Namespace

__all__ = ["clsact", "qdisc", "tcx", "xdp_redirect"]

ETHERTYPE = 0x88B5  # IEEE 802: for local experiments; nothing else uses it
FRAMES = 50
DEADLINE = (
    2.0  # seconds from the first frame to the last; on an idle machine it takes one millisecond
)
MARK = 0x5A  # what probe_mark writes
ALONE = ["unshare", "--mount", "--propagation", "private"]


def frame(number: int) -> bytes:
    """Return the frame with this number, 60 bytes long, the minimum of Ethernet."""
    return struct.pack("!6s6sHBxI", b"\x02" * 6, b"\x06" * 6, ETHERTYPE, 0, number).ljust(60, b"\0")


def packet_socket(namespace: Namespace, device: str) -> socket.socket:
    """Return a packet socket on a device of a namespace, where it stays."""
    with namespace.entered(), contextlib.ExitStack() as stack:
        opened = stack.enter_context(
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
        )
        opened.bind((device, ETHERTYPE))
        stack.pop_all()
        return opened


def exchange(sender: socket.socket, receiver: socket.socket) -> list[bytes]:
    """Send the frames, and return the different ones that arrive before the deadline."""
    for number in range(FRAMES):
        sender.send(frame(number))
    arrived: dict[bytes, bytes] = {}
    deadline = time.monotonic() + DEADLINE
    with contextlib.suppress(TimeoutError):
        while len(arrived) < FRAMES and (left := deadline - time.monotonic()) > 0:
            receiver.settimeout(left)
            data = receiver.recv(2048)
            arrived[data[16:20]] = data
    return list(arrived.values())


def xdp_redirect() -> str:
    """Send frames from one host to another through a port whose native XDP program
    redirects them.
    """
    with contextlib.ExitStack() as stack:
        hosts, switch = stack.enter_context(Namespace()), stack.enter_context(Namespace())
        probe = stack.enter_context(BpfObject("probe"))
        for port in ("a", "b"):
            switch.add_veth(f"port_{port}", f"host_{port}", hosts)
            switch.set_up(f"port_{port}")
        # The sender last: its device is ready when the command returns, others a little later.
        hosts.set_up("host_b", "host_a")
        with switch.entered():
            out = socket.if_nametoindex("port_b")
            probe.maps["ports"].update(0, out)
            stack.enter_context(
                probe.programs["probe_redirect"].attach_xdp(socket.if_nametoindex("port_a"))
            )
        with hosts.entered():
            stack.enter_context(
                probe.programs["probe_pass"].attach_xdp(socket.if_nametoindex("host_b"))
            )
        receiver = stack.enter_context(packet_socket(hosts, "host_b"))
        sender = stack.enter_context(packet_socket(hosts, "host_a"))
        count = len(exchange(sender, receiver))
    if count < FRAMES:
        raise Missing(f"{count} of {FRAMES} frames arrived")
    return f"{count} of {FRAMES} frames arrived, native XDP on both ends"


def clsact() -> str:
    """Send frames through a TC program on a device's egress, and check that it changed them."""
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(Namespace())
        program = ["direct-action", "object-file", str(compile_bpf("probe")), "section", "tc"]
        hosts.add_veth("host_a", "host_b")
        hosts.run(
            ["tc", "qdisc", "add", "dev", "host_a", "clsact"],
            # tc mounts bpffs where it is not: in a namespace of its own.
            [*ALONE, "tc", "filter", "add", "dev", "host_a", "egress", "bpf", *program],
        )
        hosts.set_up("host_b", "host_a")
        receiver = stack.enter_context(packet_socket(hosts, "host_b"))
        sender = stack.enter_context(packet_socket(hosts, "host_a"))
        count = sum(data[14] == MARK for data in exchange(sender, receiver))
    if count < FRAMES:
        raise Missing(f"{count} of {FRAMES} frames were changed by a TC program on egress")
    return f"a TC program on egress changed {count} of {FRAMES} frames"


def tcx() -> str:
    """Send frames through a TC program that a link holds on a device's ingress, and check that it
    changed them.
    """
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(Namespace())
        probe = stack.enter_context(BpfObject("probe"))
        hosts.add_veth("host_a", "host_b")
        hosts.set_up("host_b", "host_a")
        with hosts.entered():
            ifindex = socket.if_nametoindex("host_b")
            attached = stack.enter_context(probe.programs["probe_mark"].attach_tc_ingress(ifindex))
        if not isinstance(attached, Link):
            raise Missing("the kernel attaches a program to ingress by a filter, not by a link")
        receiver = stack.enter_context(packet_socket(hosts, "host_b"))
        sender = stack.enter_context(packet_socket(hosts, "host_a"))
        count = sum(data[14] == MARK for data in exchange(sender, receiver))
    if count < FRAMES:
        raise Missing(f"{count} of {FRAMES} frames were changed by a TC program on ingress")
    return f"a TC program that a link holds on ingress changed {count} of {FRAMES} frames"


def qdisc(*options: str) -> str:
    """Put a queueing discipline on a device.

    :param options: What follows ``tc qdisc add dev DEV root``, such as ``netem``, ``delay``,
        ``1ms``.
    """
    with Namespace() as namespace:
        namespace.add_veth("host_a", "host_b")
        namespace.run(["tc", "qdisc", "add", "dev", "host_a", "root", *options])
    return f"tc qdisc add ... {' '.join(options)}"
