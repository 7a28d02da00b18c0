"""The Topo classes, loaded as ``mn --custom FILE --topo NAME,ARGUMENTS`` loads them."""

import re
from pathlib import Path
from typing import Any

import pytest
from mininet.util import buildTopo

import topologies
from testbed.plan import plan_fabric
from topologies.leaf_spine import LeafSpine
from topologies.ring import Ring

DIRECTORY = Path(topologies.__file__).parent


def load(file: str) -> dict[str, Any]:
    """Do what /usr/bin/mn does with ``--custom``: run the file, and return its ``topos``."""
    namespace: dict[str, Any] = {"__name__": "custom"}
    exec(compile((DIRECTORY / file).read_text(), file, "exec"), namespace)
    return dict(namespace["topos"])


@pytest.mark.parametrize(
    ("file", "topo", "parameters"),
    [
        ("star.py", "star,5", {"topology": "star", "hosts": 5}),
        ("ring.py", "ring,1", {"topology": "ring", "hosts": 1}),
        ("ring.py", "ring,2", {"topology": "ring", "hosts": 2}),
        ("ring.py", "ring,12", {"topology": "ring", "hosts": 12}),
        ("leaf_spine.py", "leaf-spine,7,3", {"topology": "leaf-spine", "hosts": 7, "k": 3}),
        ("leaf_spine.py", "leaf-spine,hosts=4,k=1", {"topology": "leaf-spine", "hosts": 4, "k": 1}),
        ("fat_tree.py", "fat-tree,5,4", {"topology": "fat-tree", "hosts": 5, "k": 4}),
        ("fat_tree.py", "fat-tree,16", {"topology": "fat-tree", "hosts": 16}),
    ],
)
def test_topo_and_plan_agree(file: str, topo: str, parameters: dict[str, Any]) -> None:
    graph = buildTopo(load(file), topo)
    plan = plan_fabric(**parameters)
    assert graph.hosts() == [host.name for host in plan.hosts]
    assert graph.switches() == [switch.name for switch in plan.switches]
    edges = {
        (info["node1"], info["port1"], info["node2"], info["port2"])
        for _, _, info in graph.links(withInfo=True)
    }
    assert edges == {(link.a, link.a_port, link.b, link.b_port) for link in plan.links}


def test_every_name_is_documented_with_its_command() -> None:
    for name, topo in topologies.TOPOLOGIES.items():
        module = topo.__module__.rpartition(".")[2]
        text = (DIRECTORY / f"{module}.py").read_text()
        assert re.search(rf"mn --custom topologies/{module}\.py --topo {name},4", text)
        assert load(f"{module}.py").keys() == {name}


def test_mininet_can_distinguish_leaves_from_spines() -> None:
    graph = LeafSpine(hosts=4, k=2)
    datapath_ids = [graph.nodeInfo(switch)["dpid"] for switch in graph.switches()]
    assert len(set(datapath_ids)) == 4


def test_a_ring_is_a_cycle() -> None:
    for hosts, trunks in ((1, 0), (2, 1), (3, 3), (8, 8)):
        graph = Ring(hosts=hosts)
        assert len(graph.links()) == hosts + trunks
