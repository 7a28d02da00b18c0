"""TCP against formulas, and the ring over it."""

import math

import pytest
import simpy

from testbed.comm.options import CollectiveOptions
from testbed.core.errors import SpecError
from testbed.faults.replay import check_replay
from testbed.faults.rule_table import RuleTable, compile_rules
from testbed.faults.spec import parse_fault, rules_of
from testbed.plan import plan_fabric
from testbed.sim.congestion import INITIAL_WINDOW, Cubic, Name
from testbed.sim.faults import Faults
from testbed.sim.hardware import Hardware, HostCosts, LinkModel
from testbed.sim.ring_over_tcp import RingOverTcp
from testbed.sim.tcp_connection import Flows, TcpConnection, TcpModel
from testbed.sim.tcp_receiver import Ack, TcpReceiver
from testbed.sim.train_ring import TrainRing
from testbed.sim.wiring import Wiring

PLAN = plan_fabric("star", 2)
RTO = 0.2
FAST = LinkModel(rate=10e9)


def rules(*texts: str, seed: int = 1) -> RuleTable:
    return compile_rules(rules_of([parse_fault(text) for text in texts]), PLAN, seed)


def connect(
    table: RuleTable, rtt: float, congestion: Name = "reno", link: LinkModel = FAST
) -> tuple[TcpConnection, Faults, simpy.Environment]:
    env = simpy.Environment()
    line = LinkModel(link.rate, rtt / 4, link.queue)
    wiring = Wiring(env, PLAN, Hardware(link=line))
    faults = Faults(wiring, table, Flows().identify)
    return TcpConnection(wiring, 0, 1, TcpModel(congestion=congestion)), faults, env


def rate(
    table: RuleTable, rtt: float, segments: int, congestion: Name = "reno", skip: float = 0.2
) -> float:
    """Segments per second, without the beginning."""
    connection, _, env = connect(table, rtt, congestion)
    connection.write(segments * connection.mss)
    first = int(segments * skip)
    env.run(connection.until(first))
    begin = env.now
    env.run(connection.until(segments))
    return (segments - first) / float(env.now - begin)


def mathis(p: float, rtt: float) -> float:
    """Mathis, Semke, Mahdavi, Ott, CCR 1997: segments per second."""
    return math.sqrt(3 / 2 / p) / rtt


def pftk(p: float, rtt: float) -> float:
    """Padhye, Firoiu, Towsley, Kurose, SIGCOMM 1998, equation 30 with b = 1: windows grow by the
    segments that are acknowledged.
    """
    timeouts = RTO * min(1.0, 3 * math.sqrt(3 * p / 8)) * p * (1 + 32 * p * p)
    return 1 / (rtt * math.sqrt(2 * p / 3) + timeouts)


@pytest.mark.deep
@pytest.mark.parametrize("p", [0.002, 0.005, 0.01, 0.02])
def test_reno_is_as_fast_as_mathis_and_pftk_say(p: float) -> None:
    found = rate(rules(f"drop p={p} kind=tcp link=h1->h2"), 0.1, min(60_000, int(400 / p)))
    assert found == pytest.approx(mathis(p, 0.1), rel=0.15)
    assert found == pytest.approx(pftk(p, 0.1), rel=0.15)


def test_reno_spends_its_time_in_timeouts_as_pftk_says() -> None:
    p = 0.05
    found = rate(rules(f"drop p={p} kind=tcp link=h1->h2"), 0.1, 8000)
    assert found == pytest.approx(pftk(p, 0.1), rel=0.15)
    assert found < 0.8 * mathis(p, 0.1)


@pytest.mark.deep
@pytest.mark.parametrize("period", [2000, 5000])
def test_cubic_has_the_window_of_rfc_9438(period: int) -> None:
    """Section 5.1, equation 5, for one loss in ``period`` segments."""
    rtt, losses, beta, factor = 0.1, 14, 0.7, 0.4
    table = rules(*(f"drop kind=tcp link=h1->h2 chunk={period * i + 200}" for i in range(losses)))
    window = (factor * (3 + beta) / (4 * (1 - beta))) ** 0.25 * (rtt * period) ** 0.75
    found = rate(table, rtt, period * (losses - 1), "cubic", skip=6 / (losses - 1))
    assert found == pytest.approx(window / rtt, rel=0.15)


def test_cubic_grows_back_to_the_window_of_the_loss() -> None:
    """RFC 9438, section 4.2: K seconds after the loss."""
    control = Cubic()
    control.cwnd = 1000.0
    control.on_loss(0.0)
    assert control.cwnd == control.ssthresh == pytest.approx(700.0)
    k = (300 / 0.4) ** (1 / 3)
    now, rtt = 0.0, 0.1  # so long that Reno would be slower
    while now < k:
        for _ in range(int(control.cwnd)):
            control.on_ack(1, now, rtt)
        now += rtt
    assert control.cwnd == pytest.approx(1000, rel=0.02)


def test_slow_start_doubles_the_window() -> None:
    connection, _, env = connect(rules(), 0.1)
    connection.write(10_000 * connection.mss)
    windows = []
    for rounds in range(5):
        env.run(0.1 * rounds + 0.095)
        windows.append(connection.sender.pipe)
    assert windows == pytest.approx([INITIAL_WINDOW * 2**n for n in range(5)], rel=0.11)


@pytest.mark.deep
@pytest.mark.parametrize("congestion", ["reno", "cubic"])
def test_a_connection_fills_its_link(congestion: Name) -> None:
    """Also if the queue drops what does not fit, which then is sent again."""
    link = LinkModel(rate=1e8, queue=125_000)
    connection, _, env = connect(rules(), 0.01, congestion, link)
    connection.write(20_000 * connection.mss)
    env.run(connection.until(20_000))
    assert 20_000 * link.seconds(1514) / env.now == pytest.approx(1, rel=0.05)
    assert connection.sender.retransmissions > 0


def test_what_is_lost_at_the_end_waits_for_the_timer() -> None:
    connection, faults, env = connect(rules("drop kind=tcp link=h1->h2 chunk=4"), 0.01)
    env.run(connection.until(connection.write(5 * connection.mss)))
    assert connection.sender.timeouts == 1
    assert env.now == pytest.approx(1.0 + 0.005, abs=0.25)  # RFC 6298: 1 s, or 0.2 s once measured
    check_replay(faults.table, faults.log())


def test_acknowledgements_are_delayed_unless_something_is_missing() -> None:
    env, sent = simpy.Environment(), list[tuple[float, Ack]]()
    receiver = TcpReceiver(env, 0.04, lambda ack: sent.append((env.now, ack)))
    receiver.arrive(0, 0.0)
    assert sent == []
    receiver.arrive(1, 0.0)
    assert [ack.expected for _, ack in sent] == [2]
    receiver.arrive(2, 0.0)
    env.run()
    assert [(time, ack.expected) for time, ack in sent[1:]] == [(0.04, 3)]
    for segment in (4, 6, 5, 3):
        receiver.arrive(segment, 0.0)
    assert [(ack.expected, ack.blocks) for _, ack in sent[2:]] == [
        (3, ((4, 5),)),
        (3, ((6, 7), (4, 5))),
        (3, ((4, 7),)),
        (7, ()),
    ]


@pytest.mark.deep
def test_the_ring_over_tcp_takes_the_time_of_its_bytes() -> None:
    plan, link = plan_fabric("star", 4), LinkModel(rate=1e9)
    ring = RingOverTcp(plan, Hardware(link=link))
    ring.all_reduce(1 << 20)  # windows open
    frames = 2 * 3 / 4 * (1 << 22) / ring.connections[0].mss
    assert ring.all_reduce(1 << 20) == pytest.approx(frames * link.seconds(1514), rel=0.05)
    assert ring.retransmissions == 0


@pytest.mark.deep
def test_the_ring_over_tcp_survives_losses_and_is_slower_than_the_ring_in_the_kernel() -> None:
    plan = plan_fabric("star", 4)
    hardware = Hardware(
        HostCosts(frame=1e-6, byte=0.2e-9, wakeup=3e-6, syscall=1e-6, prepare=0.2e-9)
    )
    table = compile_rules(rules_of([parse_fault("drop p=0.001 kind=tcp")]), plan, 3)
    lossless = RingOverTcp(plan, hardware)
    lossy = RingOverTcp(plan, hardware, table=table)
    assert lossy.all_reduce(1 << 20) > lossless.all_reduce(1 << 20)
    assert lossy.retransmissions > 0
    ring = TrainRing(plan, hardware, CollectiveOptions(lanes="int16"), 1 << 20)
    assert ring.run() < lossless.all_reduce(1 << 20)


def test_a_ring_needs_two_ranks() -> None:
    with pytest.raises(SpecError, match="hosts: 1: must be at least 2 for an all-reduce"):
        RingOverTcp(plan_fabric(hosts=1), Hardware())
