"""Mininet's nodes and links, without its shells, its ifconfig calls, and interface names in the root namespace.

Mininet runs a bash and several commands in each node; 16 hosts take it 15 s or more. Here a node is one process that
holds the namespaces, and netlink does the rest.
"""

import contextlib
import os
import signal
import subprocess
import warnings
from contextlib import ExitStack
from select import select
from typing import TYPE_CHECKING, Any

from pyroute2.netlink.rtnl import ndmsg
from pyroute2.netlink.rtnl.ifinfmsg import IFF_NOARP, IFF_UP

from testbed.errors import FabricError
from testbed.fabric.namespace import NetworkNamespace
from testbed.plan import HostPlan, SwitchPlan

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Mininet 2.3 imports distutils
    from mininet.link import Intf, Link
    from mininet.node import Node, Switch

if TYPE_CHECKING:
    from testbed.fabric.core import Fabric

__all__ = ["DOORBELL", "Bridge", "Host", "NamespaceNode", "SilentIntf", "VethLink"]

#: A host's doorbell: frames are sent into the first, XDP meets them at the second.
DOORBELL = ("bell0", "bell1")

START_TIMEOUT = 10.0  # seconds

# Frames for a bridge that are not in its table are dropped: nothing is learned, nothing is flooded.
BRIDGE_PORT = {"learning": 0, "unicast_flood": 0, "mcast_flood": 0, "bcast_flood": 0}


class NamespaceNode(Node):  # type: ignore[misc]  # Mininet has no types
    """A Mininet node that is a network and a mount namespace, held by a process that does nothing.

    :param fabric: The fabric that it belongs to.
    :param plan: Its plan.
    """

    fabric: "Fabric"
    plan: HostPlan | SwitchPlan
    namespace: NetworkNamespace

    def __init__(self, name: str, fabric: "Fabric", plan: HostPlan | SwitchPlan, **params: Any) -> None:
        self.fabric = fabric
        self.plan = plan
        self._stack = ExitStack()
        super().__init__(name, **params)

    def startShell(self, mnopts: str | None = None) -> None:
        """Start the holder: ``cat``, which echoes a byte when its namespaces are there.

        It ends when its standard input does, so that it cannot outlive a controller that was killed.
        """
        hosts = self.fabric.directory / "hosts"
        holder = subprocess.Popen(
            # cat in place of the shell: the process id stays that of the namespaces' holder.
            ["mnexec", "-n", "sh", "-c", 'mount --bind "$1" /etc/hosts && exec cat', "holder", str(hosts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C at the terminal is the controller's
        )
        self.shell, self.pid = holder, holder.pid
        self.fabric.track(f"namespaces of {self.name}", holder.pid)
        assert holder.stdin
        holder.stdin.write(b"\n")
        holder.stdin.flush()

    def enter(self) -> None:
        """Wait until the namespaces are there, and open sockets in them."""
        ready, _, _ = select([self.shell.stdout], [], [], START_TIMEOUT)
        if not ready or not self.shell.stdout.read(1):
            raise FabricError(f"the namespaces of {self.name} did not come up: is `mnexec` of Mininet there?")
        self.namespace = self._stack.enter_context(NetworkNamespace(self.pid))
        # IPv6 would send router and neighbour solicitations of its own, which blur counters.
        if os.path.exists("/proc/sys/net/ipv6"):
            self.namespace.sysctl({"ipv6.conf.all.disable_ipv6": 1, "ipv6.conf.default.disable_ipv6": 1})
        self.namespace.request("link", "set", index=self.namespace.index("lo"), flags=IFF_UP, change=IFF_UP)

    def up(self, ifname: str, flags: int = 0) -> None:
        """``ip link set <ifname> up``."""
        index = self.namespace.index(ifname)
        self.namespace.request("link", "set", index=index, flags=IFF_UP | flags, change=IFF_UP | flags)

    def cmd(self, *args: Any, **_: Any) -> str:
        """Run a command line in a shell inside the node, as Mininet's ``cmd`` does, and return what it prints."""
        return subprocess.run(
            ["mnexec", "-a", str(self.pid), "sh", "-c", " ".join(map(str, args))],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ).stdout

    def terminate(self) -> None:
        """End the holder; the kernel then takes down namespaces and interfaces."""
        self._stack.close()
        if self.shell:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.shell.pid, signal.SIGKILL)
            with self.shell:  # closes the pipes and waits
                pass
            self.shell = None


class Host(NamespaceNode):
    """A host: ``eth0`` with an address and all neighbours, and a doorbell."""

    plan: HostPlan

    def configDefault(self, **_: Any) -> None:
        """Addresses and neighbours."""
        fabric, namespace = self.fabric.plan, self.namespace
        eth0 = namespace.index(self.plan.ifname)
        # ip address add 10.0.0.1/16 dev eth0
        namespace.request("addr", "add", index=eth0, address=self.plan.ip, prefixlen=16)
        self.up(self.plan.ifname)
        for peer in fabric.hosts:
            if peer.name != self.name:
                # ip neighbour add 10.0.0.2 lladdr 02:00:0a:00:00:02 dev eth0 nud permanent
                namespace.request(
                    "neigh",
                    "add",
                    dst=peer.ip,
                    lladdr=peer.mac,
                    ifindex=eth0,
                    state=ndmsg.states["permanent"],
                )
        # Room for buffers of 16 MiB; the limits that Mininet sets for the whole machine are left alone.
        namespace.sysctl({"ipv4.tcp_rmem": "4096 131072 16777216", "ipv4.tcp_wmem": "4096 65536 16777216"})
        size = {"mtu": fabric.mtu, "num_tx_queues": fabric.queues, "num_rx_queues": fabric.queues}
        bell, peer_bell = DOORBELL
        # ip link add bell0 numtxqueues 2 numrxqueues 2 mtu 1500 type veth peer name bell1 ...
        namespace.request("link", "add", ifname=bell, kind="veth", peer={"ifname": peer_bell, **size}, **size)
        for ifname in DOORBELL:
            self.up(ifname, IFF_NOARP)


class Bridge(NamespaceNode, Switch):
    """A switch: the Linux bridge ``br0`` with static forwarding in a namespace of its own."""

    plan: SwitchPlan

    def start(self, controllers: list[Any]) -> None:
        """Make the bridge; ``controllers`` is Mininet's, and empty."""
        namespace = self.namespace
        # ip link add br0 type bridge stp_state 0 mcast_snooping 0
        namespace.request("link", "add", ifname="br0", kind="bridge", br_stp_state=0, br_mcast_snooping=0)
        bridge = namespace.index("br0")
        index = {port: namespace.index(self.plan.ifname(port)) for port in self.plan.ports}
        for port in index.values():
            # ip link set s1-eth1 master br0
            namespace.request("link", "set", index=port, master=bridge)
            # bridge link set dev s1-eth1 learning off flood off mcast_flood off bcast_flood off
            namespace.request("brport", "set", index=port, **BRIDGE_PORT)
        for mac, port_number in self.plan.forwarding.items():
            # bridge fdb add 02:00:0a:00:00:01 dev s1-eth1 master static
            namespace.request(
                "fdb",
                "add",
                ifindex=index[port_number],
                lladdr=mac,
                state=ndmsg.states["noarp"],
                flags=ndmsg.flags["master"],
            )
        for port_number in self.plan.ports:
            self.up(self.plan.ifname(port_number))
        self.up("br0")


class SilentIntf(Intf):  # type: ignore[misc]
    """Mininet's record of an interface; :class:`VethLink` has made it with all that it needs."""

    def config(self, **_: Any) -> dict[str, Any]:
        """Mininet would run ifconfig here."""
        return {}


class VethLink(Link):  # type: ignore[misc]
    """A veth pair whose ends are made inside the nodes' namespaces, so that names of several fabrics never meet."""

    def intfName(self, node: NamespaceNode, n: int) -> str:
        """``eth0`` in a host, ``<switch>-eth<port>`` in a switch."""
        return node.plan.ifname if isinstance(node.plan, HostPlan) else node.plan.ifname(n)

    @classmethod
    def makeIntfPair(
        cls,
        name1: str,
        name2: str,
        mac1: str,
        mac2: str,
        node1: NamespaceNode,
        node2: NamespaceNode,
        **_: Any,
    ) -> None:
        """Make the pair."""
        plan = node1.fabric.plan
        size = {"mtu": plan.mtu, "num_tx_queues": plan.queues, "num_rx_queues": plan.queues}
        # ip -n h1 link add eth0 index 100 mtu 1500 numtxqueues 2 numrxqueues 2 type veth peer name s1-eth1 netns s1 ...
        node1.namespace.request(
            "link",
            "add",
            ifname=name1,
            # Ends with equal indices would be taken for one ordinary device, whose carrier changes the kernel reports
            # once a second only (linkwatch_urgent_event in net/core/link_watch.c). The other end's is below 100.
            index=100 + len(node1.intfs),
            kind="veth",
            address=mac1,
            peer={"ifname": name2, "address": mac2, "net_ns_fd": node2.namespace.fd, **size},
            **size,
        )

    def stop(self) -> None:
        """The pair goes with its namespaces."""
