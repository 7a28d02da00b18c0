"""A host's link that is down, at the switch's end, as if the cable were unplugged there."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyroute2.netlink.rtnl.ifinfmsg import IFF_UP

from testbed.core.errors import FaultError
from testbed.fabric import Fabric
from testbed.fabric.namespace import NetworkNamespace
from testbed.fabric.nodes import carries_frames

__all__ = ["link_down"]

UP_TIMEOUT = 10.0  # seconds


@contextmanager
def link_down(fabric: Fabric, host: str) -> Iterator[None]:
    """Take a host's link down, and up again at the end; it carries frames when this returns.

    The switch's programs and its static forwarding table stay, and so do the host's address and
    neighbours.

    :param host: Its name.
    :raises SpecError: There is no such host.
    :raises FaultError: The link does not come up again.
    """
    plan = fabric.plan.host(host)
    port = fabric.plan.switch(plan.switch).ifname(plan.port)
    # Separate sockets: the nodes' belong to the thread that created them (pyroute2 has one event
    # loop per thread).
    with (
        NetworkNamespace(fabric.switches[plan.switch].pid) as near,
        NetworkNamespace(fabric.hosts[host].pid) as far,
    ):
        ends = (near, near.index(port)), (far, far.index(plan.ifname))
        # ip link set s1-eth1 down
        near.request("link", "set", index=ends[0][1], flags=0, change=IFF_UP)
        try:
            yield
        finally:
            near.request("link", "set", index=ends[0][1], flags=IFF_UP, change=IFF_UP)
            deadline = time.monotonic() + UP_TIMEOUT
            while not all(
                carries_frames(namespace.request("get_links", index)[0])
                for namespace, index in ends
            ):
                if time.monotonic() > deadline:
                    raise FaultError(
                        f"the link of {host} is not up {UP_TIMEOUT:g} s after it should be"
                    )
                time.sleep(0.001)
