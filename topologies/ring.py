"""Ring: every host on a switch of its own, the switches in a cycle.

Also for Mininet's own command:
``mn --custom topologies/ring.py --topo ring,4 --switch lnxbr,stp=1 --controller none``
(Mininet's bridges learn, so its cycle needs STP; the testbed's have static forwarding and do not).
"""

from itertools import pairwise
from typing import Any

from mininet.topo import Topo

__all__ = ["Ring", "topos"]


class Ring(Topo):  # type: ignore[misc]  # Mininet has no types
    """Host ``h<i>`` on port 1 of switch ``s<i>``; ``s<i>`` is joined to ``s<i+1>``, the last one to
    ``s1``.

    Two switches have one link, not two, because shortest-path forwarding would not use the second.
    """

    def build(self, hosts: int = 4, **_: Any) -> None:
        """Make the graph.

        :param hosts: Number of hosts, and of switches.
        """
        switches = [self.addSwitch(f"s{number}") for number in range(1, hosts + 1)]
        for number, switch in enumerate(switches, 1):
            self.addLink(self.addHost(f"h{number}"), switch)
        for switch, following in pairwise(switches):
            self.addLink(switch, following)
        if hosts > 2:
            self.addLink(switches[-1], switches[0])


topos = {"ring": Ring}
