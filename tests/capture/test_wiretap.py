"""Frames of a fabric that is up, captured by another process."""

import io
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.inet import ICMP
from scapy.utils import PcapNgReader

from testbed.capture.order import locked, order
from testbed.datapath import set_datapath
from testbed.kernel.compile import BPF
from testbed.kernel.xdp_links import XdpLink, xdp_links
from testbed.testing.group import Group
from tests.support.capturing import capturing
from tests.support.command import PROGRAM, run_testbed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.net
PINGS = 5


def attached(fabric, node, ifname):
    """The number of an XDP program; None: none is attached."""
    namespace = {**fabric.hosts, **fabric.switches}[node].namespace
    (link,) = namespace.request("get_links", namespace.index(ifname))
    return link.get_attr("IFLA_XDP").get_attr("IFLA_XDP_PROG_ID") or None


def ping(fabric, count=PINGS):
    fabric.run("h1", ["ping", "-q", "-c", str(count), "-i", "0.01", fabric.plan.host("h2").ip])


@pytest.mark.fabric(hosts=2, datapath="xdp")
def test_frames_of_both_directions_and_what_was_attached_is_attached_again(fabric, tmp_path):
    before = attached(fabric, "h1", "eth0"), attached(fabric, "s1", "s1-eth1")
    assert before[1] is not None
    path = tmp_path / "x.pcapng"
    count = ["--count", str(4 * PINGS)]  # requests and answers, at both ports
    with capturing(fabric, path, "h1", "s1:2", *count) as process:
        ping(fabric)
        said = json.loads(process.communicate(timeout=60)[0])
    assert said == {"out": str(path), "frames": 4 * PINGS, "lost": 0}
    assert (attached(fabric, "h1", "eth0"), attached(fabric, "s1", "s1-eth1")) == before
    with PcapNgReader(str(path)) as reader:
        packets = list(reader)
    kinds = [(packet.sniffed_on, packet.direction, packet[ICMP].type) for packet in packets]
    assert sorted(set(kinds)) == [("h1", 1, 0), ("h1", 2, 8), ("s1:2", 1, 0), ("s1:2", 2, 8)]
    times = [packet.time for packet in packets]
    assert times == sorted(times)
    assert abs(float(times[-1]) - time.time()) < 600


@pytest.mark.fabric(hosts=2, datapath="xdp")
def test_after_a_kill_the_programs_are_put_back(fabric, tmp_path):
    before = attached(fabric, "s1", "s1-eth1")
    with capturing(fabric, tmp_path / "x.pcapng", "h1") as process:
        assert attached(fabric, "s1", "s1-eth1") != before
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=60)
    wait_until(lambda: attached(fabric, "s1", "s1-eth1") == before)
    ping(fabric, 1)


def link_of(fabric, node, ifname):
    """The link of a fabric's own program. Nothing may change there meanwhile."""
    namespace = {**fabric.hosts, **fabric.switches}[node].namespace
    place = namespace.index(ifname), attached(fabric, node, ifname)
    (number,) = (link.number for link in xdp_links() if (link.ifindex, link.program) == place)
    return XdpLink(number, "capture_behind")


@pytest.mark.fabric(hosts=2, datapath="xdp")
def test_two_captures_of_one_link_and_a_program_one_of_them_killed(fabric, tmp_path):
    """None of them cuts the host off, whichever is in front and whatever ends."""
    links = [link_of(fabric, *end) for end in (("h2", "eth0"), ("s1", "s1-eth2"))]

    def orders():
        with locked(fabric.directory):
            return [order(link) for link in links]

    before = orders()

    def in_front(count):
        wait_until(lambda: [len(each) for each in orders()] == [1 + count] * 2)
        sums = group.all_reduce([np.ones(1024, np.float32)] * 2)
        assert [float(each.sum()) for each in sums] == [2048, 2048]

    (tmp_path / "pass.bpf.c").write_text((BPF / "pass.bpf.c").read_text())
    with (
        Group(fabric, "xdp-ring", capacity=1024) as group,
        capturing(fabric, tmp_path / "1.pcapng", "h2") as first,
        capturing(fabric, tmp_path / "2.pcapng", "s1:2", "--count", "1000000") as second,
    ):
        in_front(2)
        with fabric.hosts["h2"].attach(tmp_path / "pass.bpf.c"):
            in_front(2)
        first.send_signal(signal.SIGKILL)
        first.wait(timeout=60)
        in_front(1)
        with capturing(fabric, tmp_path / "3.pcapng", "h2") as third:
            in_front(2)
            second.send_signal(signal.SIGINT)
            assert json.loads(second.communicate(timeout=60)[0])["frames"] > 0
            in_front(1)
            third.send_signal(signal.SIGKILL)
            third.wait(timeout=60)
        in_front(0)
        assert orders() == before


@pytest.mark.fabric(hosts=2)
def test_standard_output_has_the_frames_alone(fabric):
    """What is said goes to standard error, also where standard output is named as a file."""
    count = ["--count", str(2 * PINGS)]
    for place in ("-", "/dev/stdout"):
        command = [*PROGRAM, "capture", "h1", "--run", fabric.run_id, "-o", place, *count]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stderr.readline() == b"capturing h1\n"
            ping(fabric)
            data, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (0, f"{2 * PINGS} frames of h1 in {place}\n".encode())
        with PcapNgReader(io.BytesIO(data)) as reader:
            assert len(list(reader)) == 2 * PINGS
    done = run_testbed("capture", "h1", "--run", fabric.run_id, "-o", "-", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--json: must be left out with --out -" in done.stderr
    assert not Path("-").exists()


@pytest.mark.fabric(hosts=2)
def test_a_run_may_change_its_datapath(fabric, tmp_path):
    """Frames between the change and the next look at it may be missed."""
    with capturing(fabric, tmp_path / "x.pcapng", "h1", "--count", "200") as process:
        for datapath in ("sockets", "xdp", "sockets"):
            set_datapath(fabric, datapath)
            ping(fabric)
        assert (attached(fabric, "s1", "s1-eth1") is not None) == (fabric.datapath == "xdp")
        wait_until(lambda: ping(fabric) or process.poll() is not None)
        assert json.loads(process.stdout.read())["frames"] == 200
    assert attached(fabric, "s1", "s1-eth1") is None
