"""Leaf-spine: k leaves, each joined to each of k spines (a two-level Clos network).

Also for Mininet's own command: ``mn --custom topologies/leaf_spine.py --topo leaf-spine,4,2
--switch lnxbr,stp=1 --controller none`` (Mininet's bridges learn, so its cycles need STP; the
testbed's have static forwarding and do not).
"""

from typing import Any

from mininet.topo import Topo

__all__ = ["LeafSpine", "topos"]


class LeafSpine(Topo):  # type: ignore[misc]  # Mininet has no types
    """Hosts in blocks of consecutive ranks on ``leaf1..leaf<k>``; block sizes differ by one at
    most.
    """

    def build(self, hosts: int = 4, k: int = 2, **_: Any) -> None:
        """Make the graph.

        :param hosts: Number of hosts.
        :param k: Number of leaves and of spines.
        """
        # Without a dpid, Mininet uses the digits of the name: leaf1 and spine1 would clash.
        leaves = [self.addSwitch(f"leaf{number}", dpid=f"{number:x}") for number in range(1, k + 1)]
        spines = [
            self.addSwitch(f"spine{number}", dpid=f"{k + number:x}") for number in range(1, k + 1)
        ]
        for index in range(hosts):
            self.addLink(self.addHost(f"h{index + 1}"), leaves[index * k // hosts])
        for leaf in leaves:
            for spine in spines:
                self.addLink(leaf, spine)


topos = {"leaf-spine": LeafSpine}
