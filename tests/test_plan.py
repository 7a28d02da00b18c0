"""Plans: golden files, forwarding on shortest paths, the exact text of every error."""

import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.errors import SpecError
from testbed.plan import FabricPlan, SimulatedFabricOptions, plan_fabric

GOLDEN = Path(__file__).parent / "golden"

PLANS: dict[str, dict[str, Any]] = {
    "star-4": {"topology": "star", "hosts": 4},
    "ring-5": {"topology": "ring", "hosts": 5, "switch": "bridge", "offload": False},
    "leaf-spine-6": {"topology": "leaf-spine", "hosts": 6, "k": 3, "mtu": 3506, "net": 7},
}

ERRORS = [
    (
        {"topology": "mesh"},
        'topology: "mesh": must be star, ring, leaf-spine, fat-tree or module:Class',
    ),
    ({"switch": "ovs"}, 'switch: "ovs": must be bridge or xdp'),
    ({"hosts": 0}, "hosts: 0: must be 1 to 32"),
    ({"hosts": 33}, "hosts: 33: must be 1 to 32"),
    ({"hosts": True}, "hosts: true: must be a whole number"),
    ({"hosts": 4.0}, "hosts: 4.0: must be a whole number"),
    ({"mtu": 575}, "mtu: 575: must be 576 to 65535"),
    ({"mtu": 65_536}, "mtu: 65536: must be 576 to 65535"),
    ({"queues": 0}, "queues: 0: must be 1 to 64"),
    ({"xdp": "skb"}, 'xdp: "skb": must be native or generic'),
    ({"net": 256}, "net: 256: must be 0 to 255"),
    ({"k": 2}, "k: 2 has no meaning for topology 'star', only for 'leaf-spine' and 'fat-tree'"),
    (
        {"topology": "fat-tree", "hosts": 4, "k": 5},
        "k: 5: must be even, the number of ports of a switch of fat-tree",
    ),
    (
        {"topology": "fat-tree", "hosts": 17, "k": 4},
        "k: 4: must be at least 6 for 17 hosts of fat-tree",
    ),
    (
        {"topology": "leaf-spine", "hosts": 4, "k": 5},
        "k: 5: must be at most the number of hosts, 4",
    ),
]


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_equals_its_golden_file(name: str) -> None:
    # To make one anew: python -c 'from tests.test_plan import *; write_golden_files()'
    plan = plan_fabric(**PLANS[name], queues=2)
    golden = json.loads((GOLDEN / f"plan-{name}.json").read_text())
    assert json.loads(json.dumps(plan.to_dict())) == golden
    assert FabricPlan.from_dict(golden) == plan


def write_golden_files() -> None:
    for name, parameters in PLANS.items():
        text = json.dumps(plan_fabric(**parameters, queues=2).to_dict(), indent=1)
        (GOLDEN / f"plan-{name}.json").write_text(text + "\n")


@pytest.mark.parametrize(("parameters", "text"), ERRORS)
def test_an_error_names_key_value_and_what_is_allowed(
    parameters: dict[str, Any], text: str
) -> None:
    with pytest.raises(SpecError) as caught:
        plan_fabric(**parameters)
    assert str(caught.value) == text


def test_jumbo_frames_need_the_bridge() -> None:
    assert plan_fabric(mtu=9000, switch="bridge").mtu == 9000


def test_unknown_names_are_errors() -> None:
    plan = plan_fabric("ring", 2)
    with pytest.raises(SpecError, match="host: 'h3' is not in this fabric; hosts are h1, h2"):
        plan.host("h3")
    with pytest.raises(SpecError, match="switch: 'h1' is not in this fabric; switches are s1, s2"):
        plan.switch("h1")


@st.composite
def plans(draw: st.DrawFn) -> FabricPlan:
    topology = draw(st.sampled_from(["star", "ring", "leaf-spine", "fat-tree"]))
    hosts = draw(st.integers(1, 32))
    k = draw(st.none() | st.integers(1, hosts)) if topology == "leaf-spine" else None
    return plan_fabric(topology, hosts, k=k, net=draw(st.integers(0, 255)))


@given(plans())
def test_frames_arrive_by_a_shortest_path(plan: FabricPlan) -> None:
    far_end = {}  # by node and port
    for link in plan.links:
        far_end[link.a, link.a_port] = link.b
        far_end[link.b, link.b_port] = link.a
    for destination in plan.hosts:
        distance = distances(plan, destination.switch)
        for source in plan.hosts:
            if source == destination:
                continue
            node, hops = source.switch, 0
            while node != destination.name:
                node = far_end[node, plan.switch(node).forwarding[destination.mac]]
                hops += 1
                assert hops <= distance[source.switch] + 1
            assert hops == distance[source.switch] + 1


def distances(plan: FabricPlan, start: str) -> dict[str, int]:
    """Hops from every switch to ``start``, computed from the links only."""
    neighbours: dict[str, set[str]] = {switch.name: set() for switch in plan.switches}
    for link in plan.links:
        if link.a in neighbours and link.b in neighbours:
            neighbours[link.a].add(link.b)
            neighbours[link.b].add(link.a)
    found, queue = {start: 0}, deque([start])
    while queue:
        near = queue.popleft()
        for far in neighbours[near] - found.keys():
            found[far] = found[near] + 1
            queue.append(far)
    return found


@given(plans())
def test_a_plan_is_sound(plan: FabricPlan) -> None:
    assert [host.name for host in plan.hosts] == [f"h{rank + 1}" for rank in range(len(plan.hosts))]
    assert [host.rank for host in plan.hosts] == list(range(len(plan.hosts)))
    assert (
        len({host.ip for host in plan.hosts})
        == len({host.mac for host in plan.hosts})
        == len(plan.hosts)
    )
    for host in plan.hosts:
        assert int(host.mac[:2], 16) & 3 == 2  # locally administered, unicast (IEEE 802, 8.2)
        assert plan.switch(host.switch).forwarding[host.mac] == host.port
    for switch in plan.switches:
        assert len(switch.forwarding) == len(plan.hosts)
        assert set(switch.forwarding.values()) <= set(switch.ports)
        for port in switch.ports:
            assert len(switch.ifname(port)) <= 15  # IFNAMSIZ - 1
    assert FabricPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_destinations_are_spread_over_equal_paths() -> None:
    leaf = plan_fabric("leaf-spine", 32, k=2).switch("leaf1")
    uplinks = {port for mac, port in leaf.forwarding.items() if int(mac[-2:], 16) > 16}
    assert len(uplinks) == 2


def test_a_fat_tree_has_the_published_shape() -> None:
    """Al-Fares 2008: k=16 joins 1,024 hosts with 320 switches of 16 ports, 3,072 links."""
    plan = SimulatedFabricOptions(topology="fat-tree", hosts=1024, switch="bridge").plan()
    assert (len(plan.switches), len(plan.links)) == (320, 3072)
    assert {len(switch.ports) for switch in plan.switches} == {16}
    assert plan.hosts[255].ip == "10.0.1.0"
    assert len({host.mac for host in plan.hosts}) == 1024
    core_links = {
        switch.forwarding[plan.hosts[-1].mac] for switch in plan.switches if "core" in switch.name
    }
    assert core_links == {16}  # the last pod


def test_a_built_fabric_stays_small() -> None:
    with pytest.raises(SpecError, match="hosts: 1024: must be 1 to 32"):
        plan_fabric("fat-tree", hosts=1024)
