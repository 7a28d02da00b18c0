"""Frames on the wires of a plan."""

import pytest
import simpy

from testbed.plan import plan_fabric
from testbed.sim.hardware import Hardware, HostCosts, LinkModel, SwitchModel
from testbed.sim.wiring import Message, Wiring

HARDWARE = Hardware(
    link=LinkModel(rate=1e9, delay=1e-6, overhead=0), switch=SwitchModel(delay=3e-6)
)
LENGTH = 1250  # 10 us


@pytest.mark.parametrize(
    ("topology", "hosts", "receiver", "links"),
    [
        ("star", 4, 3, 2),
        ("ring", 6, 3, 5),
        ("leaf-spine", 4, 3, 4),
        ("fat-tree", 16, 1, 2),
        ("fat-tree", 16, 3, 4),
        ("fat-tree", 16, 15, 6),
    ],
)
def test_a_frame_crosses_the_links_of_a_shortest_path(
    topology: str, hosts: int, receiver: int, links: int
) -> None:
    env = simpy.Environment()
    wiring = Wiring(env, plan_fabric(topology, hosts), HARDWARE)
    arrived = []
    wiring.hosts[receiver].receive = lambda message: arrived.append((env.now, message.content))
    wiring.send(Message(0, receiver, LENGTH, "hello"))
    env.run()
    assert arrived == [(pytest.approx(links * 11e-6 + (links - 1) * 3e-6), "hello")]
    assert sum(line.frames for line in wiring.transmitters) == links


def test_namespaces_of_one_machine_share_its_cpus() -> None:
    env, plan = simpy.Environment(), plan_fabric("star", 4)
    shared = Wiring(env, plan, Hardware(host=HostCosts(cores=2, shared=True)))
    assert len(shared.cpus) == 2
    assert shared.hosts[0].kernel is shared.hosts[2].kernel
    alone = Wiring(env, plan, Hardware(host=HostCosts(cores=2)))
    assert len({id(cpu) for host in alone.hosts for cpu in (host.kernel, host.user)}) == 8


def test_what_meets_a_fate_does_so_where_its_sender_is_attached() -> None:
    env, seen, arrived = simpy.Environment(), [], []
    wiring = Wiring(env, plan_fabric("leaf-spine", 4), HARDWARE)

    def fate(message: Message, go_on) -> None:  # type: ignore[no-untyped-def]
        seen.append(env.now)
        go_on(message, 0.0)
        go_on(message, 1e-3)

    wiring.fate = fate
    wiring.hosts[3].receive = lambda message: arrived.append(env.now)
    wiring.send(Message(0, 3, LENGTH, None))
    env.run()
    assert seen == [pytest.approx(14e-6)]
    assert arrived == pytest.approx([53e-6, 1.053e-3])
