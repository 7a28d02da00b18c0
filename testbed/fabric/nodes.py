"""Mininet's nodes and links, without its shells, its ifconfig calls, and names in the root
namespace.

Mininet runs a shell and a dozen commands in each node. Here a node is one process that holds the
namespaces, and netlink does the rest: 16 hosts are up in well under a second.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyroute2.netlink.rtnl import ndmsg
from pyroute2.netlink.rtnl.ifinfmsg import IFF_NOARP, IFF_UP

from testbed.core.errors import FabricError
from testbed.core.logs import logger_of
from testbed.core.registry import load
from testbed.fabric.namespace import NetworkNamespace
from testbed.fabric.state import HOLDER_NAME
from testbed.host.processes import RUN_VARIABLE
from testbed.plan import HostPlan, SwitchPlan

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Mininet 2.3 imports distutils
    from mininet.link import Intf, Link
    from mininet.node import Node, Switch

if TYPE_CHECKING:
    from testbed.fabric.core import Fabric

__all__ = [
    "BRIDGE_PORT",
    "DOORBELL",
    "FLOODING_PORT",
    "Bridge",
    "Host",
    "NamespaceNode",
    "SilentIntf",
    "VethLink",
    "carries_frames",
    "change_table",
]

logger = logger_of(__name__)

#: A host's doorbell: frames are sent into the first device, and XDP receives them at the second.
DOORBELL = ("doorbell0", "doorbell1")

#: ``ip link add ... index``: see :meth:`VethLink.makeIntfPair`.
FIRST_INDEX = 100

START_TIMEOUT = 10.0  # seconds

# Frames that are not in a bridge's table are dropped: no learning, no flooding.
BRIDGE_PORT = {"learning": 0, "unicast_flood": 0, "mcast_flood": 0, "bcast_flood": 0}
#: The options that differ while a switch has lost its table.
FLOODING_PORT = {"unicast_flood": 1, "mcast_flood": 1, "bcast_flood": 1}

# exec, so that `cat` keeps the process id of the namespaces' holder.
# mnexec mounts a /sys of the node's own, and so its bpffs is its own: pins in it go with it.
_SETUP = 'mount --bind "$1" /etc/hosts && mount -t bpf bpf /sys/fs/bpf && exec cat'
HOLDER = ["mnexec", "-n", "sh", "-c", _SETUP, "holder"]


def carries_frames(link: Any) -> bool:
    """Whether an end of a link carries frames: it is up, and forwards where it is a bridge's port.

    :param link: As netlink shows it (RTM_GETLINK).
    """
    slave = link.get(("linkinfo", "slave_data"))
    forwards = slave is None or slave.get("state") == 3  # BR_STATE_FORWARDING
    return link.get("operstate") == "UP" and forwards


def change_table(
    namespace: NetworkNamespace, verb: Literal["add", "del"], mac: str, index: int
) -> None:
    """Add an entry to the table of a bridge, or remove it.

    :param index: ifindex of the port where frames for ``mac`` leave.
    """
    # bridge fdb add 02:00:0a:00:00:01 dev s1-eth1 master static
    namespace.request(
        "fdb",
        verb,
        ifindex=index,
        lladdr=mac,
        state=ndmsg.states["noarp"],
        flags=ndmsg.flags["master"],
    )


class NamespaceNode(Node):  # type: ignore[misc]  # Mininet has no types
    """A Mininet node that is a network namespace and a mount namespace, held by an idle process.

    :param fabric: The fabric that it belongs to.
    :param plan: Its plan.
    """

    plan: HostPlan | SwitchPlan

    def __init__(
        self, name: str, fabric: "Fabric", plan: HostPlan | SwitchPlan, **params: Any
    ) -> None:
        self.fabric = fabric
        self.plan = plan
        self._stack = ExitStack()
        super().__init__(name, **params)

    def startShell(self, mnopts: str | None = None) -> None:
        """Start the holder, which echoes a byte when its namespaces exist.

        It ends when its standard input does, so it does not outlive a controller that is killed.
        """
        if shutil.which("mnexec") is None:
            raise FabricError("Mininet's mnexec is not there: apt-get install mininet")
        holder = subprocess.Popen(
            [*HOLDER, str(self.fabric.directory / "hosts")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, RUN_VARIABLE: self.fabric.run_id},
            start_new_session=True,  # a Ctrl-C at the terminal is for the controller
        )
        self.shell: subprocess.Popen[bytes] | None = holder
        self.pid = holder.pid
        self.fabric.track(HOLDER_NAME.format(self.name), self.pid)
        logger.debug("%s: network and mount namespace, held by process %d", self.name, self.pid)
        with contextlib.suppress(BrokenPipeError):
            assert holder.stdin
            holder.stdin.write(b"\n")

    def enter(self) -> None:
        """Wait until the namespaces exist, and open sockets in them."""
        assert self.shell
        assert self.shell.stdout
        assert self.shell.stderr
        ready, _, _ = select.select([self.shell.stdout], [], [], START_TIMEOUT)
        if not ready or not self.shell.stdout.read(1):
            self.shell.kill()
            reason = self.shell.stderr.read().decode(errors="replace").strip()
            raise FabricError(
                f"the namespaces of {self.name} did not come up: {reason or 'no answer'}"
            )
        self.namespace = self._stack.enter_context(NetworkNamespace(self.pid))
        # IPv6 would send router and neighbour solicitations, which would distort counters.
        if os.path.exists("/proc/sys/net/ipv6"):
            self.namespace.sysctl(
                {"ipv6.conf.all.disable_ipv6": 1, "ipv6.conf.default.disable_ipv6": 1}
            )
        self.up("lo")

    def up(self, ifname: str, flags: int = 0) -> None:
        """``ip link set <ifname> up``, and other flags."""
        flags |= IFF_UP
        self.namespace.request(
            "link", "set", index=self.namespace.index(ifname), flags=flags, change=flags
        )

    def ready(self) -> bool:
        """Whether all ends of links carry frames.

        That is later than "up": the kernel's link watcher sees a carrier, then starts the device's
        queues and tells the bridge, which lets the port forward.
        """
        # The loopback has no carrier, and the bridge's own does not matter here.
        links = self.namespace.request("get_links")
        return all(
            carries_frames(link) for link in links if link.get(("linkinfo", "kind")) == "veth"
        )

    def wait_ready(self, deadline: float) -> None:
        """Wait until :meth:`ready`, or until ``deadline`` on the monotonic clock.

        :raises FabricError: It is not.
        """
        while not self.ready():
            if time.monotonic() > deadline:
                raise FabricError(
                    f"the interfaces of {self.name} are not up {START_TIMEOUT:g} s after they"
                    " should be"
                )
            time.sleep(0.002)

    def cmd(self, *args: Any, **_: Any) -> str:
        """Run a command line in a shell inside the node, as Mininet's ``cmd``, and return what it
        prints.
        """
        line = " ".join(map(str, args))
        return self.fabric.run(
            self.name,
            ["sh", "-c", line],
            capture_output=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
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

    def attach(
        self,
        file: str | Path,
        hook: str = "xdp",
        section: str | None = None,
        order: str = "first",
        rodata: Mapping[str, Any] | None = None,
        maps: Mapping[str, Any] | None = None,
    ) -> Any:
        """Attach a BPF program to the host's link, until what is returned is closed; compile it
        first, unless it is an object.

        The fabric needs workers, which own programs.

        :param file: C source or a compiled object; a relative path is one from the current folder.
        :param hook: ``xdp`` (native), ``xdp-generic``, ``tc-ingress`` or ``tc-egress``.
        :param section: Section or function of the program, if the file has several for the hook.
        :param order: ``first``: before all that is attached there, the testbed's programs among it;
            ``last``: after it, on what that passes.
        :param rodata: Values of its constants and other initialized variables, by name.
        :param maps: Numbers of entries of its maps, or maps of another program to use instead.
        :returns: A `testbed.datapath.programs.Attached`.
        :raises SpecError: There is no such file, hook or program in it, or its frames are too long
            for the program.
        :raises KernelError: clang or the kernel refused it; the text has their message, or who
            holds the device.
        """
        # By name, as the programs are owned by workers, which are of a layer above.
        return load("testbed.datapath.programs:of_host")(
            self, file, hook, section, order, rodata, maps
        )

    def configDefault(self, **_: Any) -> None:
        """Set the address and neighbours, make the doorbell, bring all of them up."""
        fabric, namespace = self.fabric.plan, self.namespace
        eth0 = namespace.index(self.plan.ifname)
        # ip address add 10.0.0.1/16 dev eth0
        namespace.request("addr", "add", index=eth0, address=self.plan.ip, prefixlen=16)
        self.up(self.plan.ifname)
        permanent = ndmsg.states["permanent"]
        for peer in fabric.hosts:
            if peer.name != self.name:
                # ip neighbour add 10.0.0.2 lladdr 02:00:0a:00:00:02 dev eth0 nud permanent
                namespace.request(
                    "neigh", "add", dst=peer.ip, lladdr=peer.mac, ifindex=eth0, state=permanent
                )
        # Room for buffers of 16 MiB. Mininet would set such limits for the whole machine.
        namespace.sysctl(
            {"ipv4.tcp_rmem": "4096 131072 16777216", "ipv4.tcp_wmem": "4096 65536 16777216"}
        )
        # Collectives are bursts: TCP would go through slow start for each, and delay small
        # segments.
        namespace.sysctl({"ipv4.tcp_slow_start_after_idle": 0, "ipv4.tcp_autocorking": 0})
        size = {"mtu": fabric.mtu, "num_tx_queues": fabric.queues, "num_rx_queues": fabric.queues}
        near_end, far_end = DOORBELL
        # ip link add doorbell0 mtu 1500 numtxqueues 2 numrxqueues 2 type veth peer name doorbell1
        # ...
        namespace.request(
            "link", "add", ifname=near_end, kind="veth", peer={"ifname": far_end, **size}, **size
        )
        for ifname in DOORBELL:
            self.up(ifname, IFF_NOARP)


class Bridge(NamespaceNode, Switch):  # type: ignore[misc]
    """A switch: the Linux bridge ``br0`` with static forwarding, in a namespace of its own."""

    plan: SwitchPlan

    def start(self, controllers: list[Any]) -> None:
        """Make the bridge; ``controllers`` is Mininet's, and empty."""
        namespace = self.namespace
        # ip link add br0 type bridge stp_state 0 mcast_snooping 0
        namespace.request(
            "link", "add", ifname="br0", kind="bridge", br_stp_state=0, br_mcast_snooping=0
        )
        bridge = namespace.index("br0")
        self.up("br0")
        index = {port: namespace.index(self.plan.ifname(port)) for port in self.plan.ports}
        for port, port_index in index.items():
            # ip link set s1-eth1 master br0
            namespace.request("link", "set", index=port_index, master=bridge)
            # bridge link set dev s1-eth1 learning off flood off mcast_flood off bcast_flood off
            namespace.request("brport", "set", index=port_index, **BRIDGE_PORT)
            self.up(self.plan.ifname(port))
        for mac, port in self.plan.forwarding.items():
            change_table(namespace, "add", mac, index[port])


class SilentIntf(Intf):  # type: ignore[misc]
    """Mininet's record of an interface, which :class:`VethLink` has already set up."""

    def config(self, **_: Any) -> dict[str, Any]:
        """Do nothing, where Mininet would run ifconfig."""
        return {}


class VethLink(Link):  # type: ignore[misc]
    """A veth pair created inside the nodes' namespaces, so that the names of several fabrics never
    collide.
    """

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
        """Make the pair.

        Its ends get different ifindexes; the second gets the next free one, from 2. With equal
        ones, which separate namespaces would assign, the kernel treats a veth as a device of the
        lowest layer and checks its carrier only once per second (``linkwatch_urgent_event`` in
        net/core/link_watch.c), and the link is dead until then.
        """
        plan = node1.fabric.plan
        size = {"mtu": plan.mtu, "num_tx_queues": plan.queues, "num_rx_queues": plan.queues}
        peer = {"ifname": name2, "address": mac2, "net_ns_fd": node2.namespace.fd, **size}
        # ip -n h1 link add eth0 index 100 mtu 1500 numtxqueues 2 numrxqueues 2 type veth peer
        # s1-eth1 netns s1 ...
        index = FIRST_INDEX + len(node1.intfs)
        node1.namespace.request(
            "link", "add", ifname=name1, index=index, kind="veth", address=mac1, peer=peer, **size
        )

    def stop(self) -> None:
        """Do nothing: the pair disappears with its namespaces."""
