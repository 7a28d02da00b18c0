"""Fat-tree of switches with k ports (Al-Fares, Loukissas, Vahdat, SIGCOMM 2008): k pods of k/2 edge
and k/2 aggregation switches, and k*k/4 core switches.

Also for Mininet's own command: ``mn --custom topologies/fat_tree.py --topo fat-tree,4,4
--switch lnxbr,stp=1 --controller none`` (Mininet's bridges learn, so its cycles need STP; the
testbed's have static forwarding and do not).
"""

from typing import Any

from mininet.topo import Topo

__all__ = ["FatTree", "topos"]


class FatTree(Topo):  # type: ignore[misc]  # Mininet has no types
    """Hosts in blocks of k/2 consecutive ranks on ``edge<n>``, pod after pod; the last edge
    switches have fewer if there are fewer than k*k*k/4 hosts.

    Switch ``agg<n>`` is number ``a`` of its pod, and joins ``core<a*k/2+1>..core<(a+1)*k/2>``.
    """

    def build(self, hosts: int = 4, k: int = 4, **_: Any) -> None:
        """Make the graph.

        :param hosts: Number of hosts, at most k*k*k/4.
        :param k: Ports of a switch, an even number.
        """
        half = k // 2
        # Without a dpid, Mininet uses the digits of the name: edge1 and agg1 would clash.
        numbers = iter(range(1, k * k + half * half + 1))
        edges, aggs, cores = (
            [self.addSwitch(f"{kind}{n}", dpid=f"{next(numbers):x}") for n in range(1, count + 1)]
            for kind, count in (("edge", k * half), ("agg", k * half), ("core", half * half))
        )
        for index in range(hosts):
            self.addLink(self.addHost(f"h{index + 1}"), edges[index // half])
        for index in range(k * half):
            pod, place = divmod(index, half)
            for edge in edges[pod * half : (pod + 1) * half]:
                self.addLink(edge, aggs[index])
            for core in cores[place * half : (place + 1) * half]:
                self.addLink(aggs[index], core)


topos = {"fat-tree": FatTree}
