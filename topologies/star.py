"""Star: every host on one switch.

Also for Mininet's own command:
``mn --custom topologies/star.py --topo star,4 --switch lnxbr --controller none``.
"""

from typing import Any

from mininet.topo import Topo

__all__ = ["Star", "topos"]


class Star(Topo):  # type: ignore[misc]  # Mininet has no types
    """Hosts ``h1..hN`` on switch ``s1``; host ``h<i>`` is on port ``i``."""

    def build(self, hosts: int = 4, **_: Any) -> None:
        """Make the graph.

        :param hosts: Number of hosts.
        """
        switch = self.addSwitch("s1")
        for number in range(1, hosts + 1):
            self.addLink(self.addHost(f"h{number}"), switch)


topos = {"star": Star}
