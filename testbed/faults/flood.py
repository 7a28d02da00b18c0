"""A switch that has lost its forwarding table: every frame leaves through all ports except its
ingress port.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from testbed.core.errors import SpecError
from testbed.fabric import Fabric
from testbed.fabric.namespace import NetworkNamespace
from testbed.fabric.nodes import BRIDGE_PORT, FLOODING_PORT, change_table
from testbed.faults.copies import check_bounded

__all__ = ["flooded"]


@contextmanager
def flooded(fabric: Fabric, switch: str) -> Iterator[None]:
    """Make a switch flood, on either datapath, and restore its table at the end.

    Neither change loses a frame: ports flood before entries are removed, and until they are
    restored. Fault rules apply to a frame where its sender is attached, before it is flooded, and
    not to its copies.

    :param switch: Its name.
    :raises SpecError: There is no such switch, it already floods, or together with others that
        flood, frames would circulate for ever.
    """
    plan, lost = fabric.plan.switch(switch), fabric.flooding(switch).view(np.uint64)
    if switch in fabric.floods:
        raise SpecError(f"flood of {switch}: it floods already")
    check_bounded(fabric.plan, fabric.floods | {switch})
    # A separate socket: the node's belongs to the thread that created it (pyroute2 has one event
    # loop per thread).
    with NetworkNamespace(fabric.switches[switch].pid) as namespace, ExitStack() as stack:
        index = {port: namespace.index(plan.ifname(port)) for port in plan.ports}
        for port in index.values():
            # bridge link set dev s1-eth1 flood on mcast_flood on bcast_flood on
            stack.callback(namespace.request, "brport", "set", index=port, **BRIDGE_PORT)
            namespace.request("brport", "set", index=port, **FLOODING_PORT)
        for mac, port in plan.forwarding.items():
            change_table(namespace, "del", mac, index[port])
            stack.callback(change_table, namespace, "add", mac, index[port])
        stack.callback(lost.fill, 0)
        lost.fill(1)
        yield
