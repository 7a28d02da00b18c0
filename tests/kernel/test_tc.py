"""Programs on a device's ingress, attached by link and by filter: both act on frames, and both
leave nothing behind.
"""

import socket

import pytest
from pyroute2 import IPRoute

from testbed.core.errors import KernelError
from testbed.kernel import BpfObject
from testbed.kernel.tc import TcFilter
from testbed.probes.netns import Namespace

pytestmark = pytest.mark.kernel

LOOPBACK = 1


def by_link(program):
    return program.attach_tc_ingress(LOOPBACK)


def by_filter(program):
    return TcFilter(program.fd, program.name, LOOPBACK)


def arrives():
    """Whether a datagram gets through the loopback."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        sender.sendto(b"?", receiver.getsockname())
        receiver.settimeout(0.2)  # the loopback delivers before sendto returns
        try:
            return receiver.recv(10) == b"?"
        except TimeoutError:
            return False


@pytest.mark.parametrize("attach", [by_link, by_filter])
def test_frames_pass_through_the_program_while_it_is_attached(attach):
    """The program overwrites the first byte of the IP header, so the stack drops the frames that it
    has seen.
    """
    with (
        Namespace() as namespace,
        namespace.entered(),
        BpfObject("probe") as loaded,
        IPRoute() as route,
    ):
        route.link("set", index=LOOPBACK, state="up")
        assert arrives()
        for _ in range(2):
            with attach(loaded.programs["probe_mark"]) as attachment:
                assert not arrives()
            attachment.close()  # closing twice is no error
            assert arrives()
        assert {qdisc.get_attr("TCA_KIND") for qdisc in route.get_qdiscs(LOOPBACK)} <= {"noqueue"}


def test_attaching_to_a_missing_device_fails():
    with Namespace() as namespace, namespace.entered(), BpfObject("probe") as loaded:
        with pytest.raises(
            KernelError,
            match=r"attach probe_mark to the device with index 99 \(tcx ingress\): ENODEV",
        ):
            loaded.programs["probe_mark"].attach_tc_ingress(99)
        with pytest.raises(
            KernelError,
            match=r"attach probe_mark on the device with index 99 \(clsact ingress\): qdisc",
        ):
            TcFilter(loaded.programs["probe_mark"].fd, "probe_mark", 99)
