"""The L2 switch program, packet by packet."""

from collections.abc import Iterator

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether

from testbed.kernel import XDP_PASS, XDP_REDIRECT, BpfObject
from testbed.kernel.abi import Struct, dtype

pytestmark = pytest.mark.kernel

KNOWN = "02:00:0a:00:00:02"
REFLECTED = "02:00:0a:00:00:03"  # would leave through its ingress port
LOOPBACK = 1  # the ingress ifindex of a test run's packets


def mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def to_port(port: int, ifindex: int) -> bytes:
    return bytes(Struct("switch_destination", port=port, ifindex=ifindex))


@pytest.fixture
def switch() -> Iterator[BpfObject]:
    with BpfObject("switch") as program:
        program.maps["ports"].update(2, LOOPBACK)
        program.maps["forwarding"].update(mac(KNOWN), to_port(2, LOOPBACK + 1))
        program.maps["forwarding"].update(mac(REFLECTED), to_port(2, LOOPBACK))
        yield program


def counted(switch: BpfObject, port: int) -> tuple[int, int]:
    values = np.frombuffer(switch.maps["counters"].lookup(port), dtype("switch_counters"))
    return int(values["frames"].sum()), int(values["bytes"].sum())


@pytest.mark.parametrize(
    ("destination", "verdict", "counter"),
    [
        (KNOWN, XDP_REDIRECT, 2),
        (REFLECTED, XDP_PASS, 0),
        ("02:00:0a:00:00:04", XDP_PASS, 0),
        ("ff:ff:ff:ff:ff:ff", XDP_PASS, 0),
        ("01:00:5e:00:00:01", XDP_PASS, 0),
    ],
)
def test_the_destination_determines_the_port(
    switch: BpfObject, destination: str, verdict: int, counter: int
) -> None:
    frame = bytes(Ether(dst=destination, src="02:00:0a:00:00:01") / IP() / UDP() / bytes(100))
    run = switch.programs["l2_switch"].test_run(frame)
    assert run.retval == verdict
    assert run.data == frame
    assert counted(switch, counter) == (1, len(frame))
    assert counted(switch, 2 - counter) == (0, 0)


def test_the_ethertype_does_not_matter(switch: BpfObject) -> None:
    for frame in (Ether(dst=KNOWN) / ARP(), Ether(dst=KNOWN, type=0x88B5), mac(KNOWN) + bytes(8)):
        assert switch.programs["l2_switch"].test_run(bytes(frame)).retval == XDP_REDIRECT


def test_a_port_without_a_device_leaves_frames_to_the_bridge(switch: BpfObject) -> None:
    switch.maps["forwarding"].update(mac(KNOWN), to_port(3, LOOPBACK + 1))
    assert switch.programs["l2_switch"].test_run(mac(KNOWN) + bytes(50)).retval == XDP_PASS


@pytest.mark.parametrize(
    "destination", [KNOWN, REFLECTED, "02:00:0a:00:00:04", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01"]
)
def test_without_its_table_every_frame_leaves_by_all_other_ports(
    switch: BpfObject, destination: str
) -> None:
    for port, index in {1: LOOPBACK, 3: LOOPBACK + 2, 63: LOOPBACK + 3}.items():
        switch.maps["indices"].update(port, index)
    switch.maps["indices"].update(2, LOOPBACK + 1)
    lost = switch.maps["flooding"].view(np.uint64)
    lost[0, 0] = 1
    frame = bytes(Ether(dst=destination) / IP() / UDP() / bytes(100))
    run = switch.programs["l2_switch"].test_run(frame)
    assert (run.retval, run.data) == (XDP_REDIRECT, frame)
    assert {port: counted(switch, port) for port in (0, 1, 2, 3, 4, 63)} == {
        **dict.fromkeys((0, 1, 4), (0, 0)),
        **dict.fromkeys((2, 3, 63), (1, len(frame))),
    }
    lost[0, 0] = 0
    run = switch.programs["l2_switch"].test_run(frame)
    assert run.retval == (XDP_REDIRECT if destination == KNOWN else XDP_PASS)
    assert counted(switch, 3) == (1, len(frame))
