"""The fault programs, frame by frame with BPF_PROG_TEST_RUN: what they decide, count, and leave of
the frame.
"""

import numpy as np
import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from testbed.faults.attach import LINK
from testbed.faults.delay_header import SIZE, DelayHeader, link_index
from testbed.faults.fate import judge
from testbed.faults.packet import KINDS, Packet
from testbed.kernel import XDP_DROP, XDP_PASS, XDP_REDIRECT, Map
from testbed.kernel.abi import Struct
from tests.support.faults.programs import LOOPBACK, PLAN, Programs, between, ring

pytestmark = pytest.mark.kernel

TC_UNSPEC, TC_SHOT, TC_REDIRECT = 0xFFFFFFFF, 2, 7
PASSES = {"impair_xdp": XDP_REDIRECT, "impair_tc": TC_UNSPEC}
DROPS = {"impair_xdp": XDP_DROP, "impair_tc": TC_SHOT}


@pytest.fixture(params=["impair_xdp", "impair_tc"])
def program(request):
    return request.param


def test_ring_frames_are_known_by_their_header(program):
    """Of frames that differ in one field each, a rule with exact fields drops one."""
    exact = {"kind": KINDS["result"], "group": 7, "seq": 70_000, "chunk": 3, "hop": 2, "attempt": 1}
    words = " ".join(f"{key}={value}" for key, value in exact.items() if key != "kind")
    programs = Programs(f"drop kind=result link=h2->h3 {words}")
    assert programs.run(program, ring(1, 2, **exact))[0] == DROPS[program]
    for key, value in exact.items():
        assert (
            programs.run(program, ring(1, 2, **exact | {key: value % 5 + 1}))[0] == PASSES[program]
        )
    assert programs.run(program, ring(2, 1, **exact))[0] == PASSES[program]
    assert programs.fired(0, 1, 2) == 1
    assert programs.link(1, 2)["frames"] == 7
    assert programs.link(1, 2)["passed"] == 6


FLOWS = {
    "tcp": TCP(sport=1000, dport=2000),
    "udp": UDP(sport=1000, dport=2000),
    "icmp": ICMP(),
}


@pytest.mark.parametrize("kind", FLOWS)
def test_other_frames_are_known_by_flow_and_index(program, kind):
    """The packet that is dropped is the fifth of its flow, in each of which packets are numbered
    from 0.
    """
    programs = Programs(f"drop kind={kind} seq=1 chunk=4")
    other = {
        "tcp": TCP(sport=1001, dport=2000),
        "udp": UDP(sport=1001, dport=2000),
        "icmp": ICMP(),
    }[kind]
    first = bytes(between() / FLOWS[kind] / Raw(bytes(60)))
    second = bytes((between(0, 1) if kind != "icmp" else between()) / other / Raw(bytes(60)))
    if kind == "icmp":  # no ports: another address makes another flow
        second = bytes(
            Ether(src=PLAN.hosts[0].mac, dst=PLAN.hosts[1].mac)
            / IP(src="10.0.9.9", dst="10.0.0.2")
            / ICMP()
            / bytes(60)
        )
    verdicts = [programs.run(program, data)[0] for _ in range(7) for data in (first, second)]
    assert [index for index, verdict in enumerate(verdicts) if verdict == DROPS[program]] == [9]
    assert programs.link()["flows"] == 2


STRANGERS = {
    "ARP": Ether(src=PLAN.hosts[0].mac, dst=PLAN.hosts[1].mac) / ARP(),
    "an unknown sender": (
        Ether(src="02:00:00:00:00:99", dst=PLAN.hosts[1].mac)
        / IP(dst=PLAN.hosts[1].ip)
        / UDP()
        / bytes(50)
    ),
    "a short frame": (
        Ether(src=PLAN.hosts[0].mac, dst=PLAN.hosts[1].mac, type=0x0800) / Raw(b"\x45" + bytes(21))
    ),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_frames_without_an_identity_have_no_faults(program, name):
    programs = Programs("drop", "corrupt")
    data = bytes(STRANGERS[name])
    assert programs.run(program, data) == (PASSES[program], data)
    assert not programs.maps["links"].view(LINK)["frames"].any()


def test_an_unknown_receiver_takes_the_bridge():
    data = bytes(Ether(src=PLAN.hosts[0].mac, dst="ff:ff:ff:ff:ff:ff") / IP() / UDP() / bytes(50))
    assert Programs("drop").run("impair_xdp", data) == (XDP_PASS, data)


def test_bits_are_flipped_where_the_reference_says(program):
    programs = Programs("corrupt bits=5", "corrupt p=0.5 bits=64", seed=9)
    for chunk in range(20):
        data = ring(chunk=chunk)
        expected = bytearray(data)
        for bit in judge(
            programs.table, Packet(0, 1, KINDS["reduce"], chunk=chunk), len(data)
        ).corrupt:
            expected[bit // 8] ^= 1 << bit % 8
        assert programs.run(program, data) == (PASSES[program], bytes(expected))


def test_delayed_frames_carry_when_and_where(program):
    programs = Programs(
        "delay delay=3ms jitter=1ms", "duplicate copies=2", "reorder behind=4 within=20ms"
    )
    data = ring()
    programs.run(program, data)
    verdict, found = programs.run(program, ring())
    assert verdict == {"impair_xdp": XDP_REDIRECT, "impair_tc": TC_REDIRECT}[program]
    header = DelayHeader.unpack(found)
    assert found[SIZE:] == data
    fate = judge(programs.table, Packet(0, 1, KINDS["reduce"]), len(data))
    assert (header.ifindex, header.ingress, header.link, header.release) == (
        LOOPBACK + 1,
        LOOPBACK,
        link_index(0, 1),
        4,
    )
    assert tuple(due - header.due[0] for due in header.due) == tuple(
        delay - fate.delays_ns[0] for delay in fate.delays_ns
    )
    assert header.latest - header.due[0] == fate.within_ns - fate.delays_ns[0]
    assert programs.link()["holding"] == 2
    assert programs.link()["passed"] == 0


def test_copies_leave_by_a_fan_of_their_port():
    """A test run redirects without sending; a port without a fan sends one frame, and says so."""
    programs = Programs("duplicate copies=2")
    assert programs.run("impair_xdp", ring())[0] == XDP_REDIRECT
    assert programs.link()["unplaced"] == 1
    fan = Map.create("fan", 14, 4, 4, 8)
    programs.maps["fans"].update(2 * 8 + 2, fan.fd)
    assert programs.run("impair_xdp", ring())[0] == XDP_REDIRECT
    assert programs.link()["unplaced"] == 1
    counted = (
        np.frombuffer(programs.maps["counters"].lookup(2), np.uint64).reshape(-1, 2).sum(axis=0)
    )
    assert counted.tolist() == [1 + 3, 4 * len(ring())]


def test_copies_of_a_switch_that_floods_leave_by_the_fan_of_all_ports():
    """Judged and counted as ever, but for the ports."""
    programs = Programs("duplicate copies=2", "corrupt bits=1", seed=3)
    programs.maps["flooding"].view(np.uint64)[0, 0] = 1
    for port, ifindex in {1: LOOPBACK, 2: LOOPBACK + 1, 3: LOOPBACK + 2}.items():
        programs.maps["indices"].update(port, ifindex)
    assert programs.run("impair_xdp", ring())[0] == XDP_REDIRECT
    assert programs.link()["unplaced"] == 1  # no fan: one frame leaves by each
    fan = Map.create("fan", 14, 4, 4, 3 * 3)
    programs.maps["fans"].update(2, fan.fd)
    assert programs.run("impair_xdp", ring())[0] == XDP_REDIRECT
    assert (programs.link()["unplaced"], programs.link()["passed"]) == (1, 2)
    assert (programs.fired(0), programs.fired(1)) == (2, 2)
    for port, frames in {1: 0, 2: 1 + 3, 3: 1 + 3}.items():
        counted = (
            np.frombuffer(programs.maps["counters"].lookup(port), np.uint64)
            .reshape(-1, 2)
            .sum(axis=0)
        )
        assert counted.tolist() == [frames, frames * len(ring())]


def test_a_switch_that_floods_drops_what_a_rule_drops(program):
    programs = Programs("drop link=h1->h2")
    programs.maps["flooding"].view(np.uint64)[0, 0] = 1
    assert programs.run(program, ring())[0] == DROPS[program]
    assert programs.run(program, ring(0, 2))[0] == PASSES[program]
    assert (programs.fired(0), programs.link()["frames"], programs.link(0, 2)["passed"]) == (
        1,
        1,
        1,
    )


def test_blocked_links_lose_before_any_rule(program):
    programs = Programs("drop")
    programs.maps["blocked"].view(np.uint64)[0, 0] = 1 << 1
    assert programs.run(program, ring())[0] == DROPS[program]
    assert (programs.link()["blocked"], programs.fired(0)) == (1, 0)
    assert programs.run(program, ring(0, 2))[0] == DROPS[program]
    assert (programs.link(0, 2)["blocked"], programs.fired(0, 0, 2)) == (0, 1)


@pytest.mark.parametrize("index", [0, 3])  # what h1 sends, what h2 is sent
def test_limits_let_a_bucket_pass(program, index):
    """So slow a rate that nothing flows into the bucket during the test."""
    programs = Programs()
    rate, frames = 8, 5  # bits per second
    burst = frames * len(ring()) * 8 * 10**9 // rate
    programs.maps["limits"].update(index, bytes(Struct("fault_limit", rate=rate, burst=burst)))
    verdicts = [programs.run(program, ring())[0] for _ in range(8)]
    assert verdicts == [PASSES[program]] * frames + [DROPS[program]] * 3
    assert programs.link()["limited"] == 3


def test_a_link_with_holdings_is_told_that_frames_pass(program):
    programs = Programs()
    _, producer, _ = programs.maps["wakeups"].ring_buffer()
    programs.run(program, ring())
    assert producer[0] == 0
    programs.link()["holding"] = 1
    programs.run(program, ring())
    assert producer[0] == 16
    assert programs.link()["passed"] == 2


def test_a_full_log_counts_what_it_lacks(program):
    programs = Programs("corrupt", "duplicate p=0")
    room = programs.maps["records"].max_entries // 48
    programs.object.programs[program].test_run(ring(), repeat=room + 100)
    assert programs.link()["lost"] in (100, 101)  # the kernel keeps a little room
    assert programs.fired(0) == room + 100
