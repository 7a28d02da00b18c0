"""The plan of a fabric: hosts, links, switches and their forwarding tables, as data.

Pure: it needs no privileges, and nothing from the machine except its number of CPUs if ``queues``
is not given. The graph comes from the Mininet Topo classes in ``topologies``, so plan and Topo
cannot disagree. `FabricOptions` defines the options of a fabric for scenario files, flags and code.
"""

import inspect
import os
import re
import zlib
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Self

from annotated_types import Le
from pydantic import Field, model_validator

from testbed.core.errors import SpecError
from testbed.core.tables import Named, Table, checked
from topologies import TOPOLOGIES

__all__ = [
    "MAX_HOSTS",
    "MAX_LINEAR_MTU",
    "MAX_MTU",
    "MAX_SIMULATED_HOSTS",
    "MIN_MTU",
    "NAME",
    "TAKES_K",
    "Datapath",
    "FabricOptions",
    "FabricPlan",
    "HostPlan",
    "LargeFabricOptions",
    "LinkPlan",
    "SimulatedFabricOptions",
    "SwitchKind",
    "SwitchPlan",
    "XdpMode",
    "plan_fabric",
]

SwitchKind = Literal["bridge", "xdp"]
Datapath = Literal["xdp", "sockets"]
"""What is attached to the links of a fabric: the testbed's programs, or none of them."""
XdpMode = Literal["native", "generic"]
"""Where XDP programs run: in the driver, on frames, or in the stack, on socket buffers."""

MAX_HOSTS = 32
#: A fat-tree of switches with 32 ports.
MAX_SIMULATED_HOSTS = 8192
#: Topologies whose size has a parameter besides the number of hosts.
TAKES_K = ("leaf-spine", "fat-tree")
#: RFC 791: the datagram size that every IPv4 host has to accept.
MIN_MTU = 576
#: What the length of an IPv4 packet can say.
MAX_MTU = 65_535
#: A frame is in one piece while it, headroom and skb_shared_info fit a page: 4096 - 256 - 320 - 14
#: (drivers/net/veth.c). Programs need ``xdp.frags`` for more.
MAX_LINEAR_MTU = 3506
MAX_QUEUES = 64
#: Names of hosts and switches, in a fabric's own Topo or another's: letters, digits, and dots,
#: underscores and hyphens between them. It is what fault rules, files and devices can carry.
NAME = r"[A-Za-z][A-Za-z0-9_]*(?:[.-][A-Za-z0-9_]+)*"
MAX_NAME = 32
IFNAMSIZ = 15  # the longest name of an interface


class FabricOptions(Table):
    """``[fabric]``: hosts, links and switches."""

    hosts: int = Field(default=4, ge=1, le=MAX_HOSTS, description="number of hosts, one rank each")
    topology: Annotated[str, Named(TOPOLOGIES, arguments=True)] = Field(
        default="star",
        description=(
            "how switches are joined: a name, or module:Class of a Mininet Topo with arguments as"
            " in mn --topo, such as mininet.topolib:TreeTopo,depth=2,fanout=2"
        ),
    )
    k: int | None = Field(
        default=None,
        ge=1,
        le=MAX_HOSTS,
        description=(
            "leaves and spines of leaf-spine, default: 2; ports of a switch of fat-tree, default:"
            " as few as the hosts need"
        ),
    )
    switch: SwitchKind = Field(
        default="xdp",
        description=(
            "kind of switches: bridge (Linux bridge) or xdp (L2 switch program, the bridge"
            " behind it)"
        ),
    )
    mtu: int = Field(
        default=1500,
        ge=MIN_MTU,
        le=MAX_MTU,
        description=(
            f"bytes of an IP packet; in-kernel backends need multi-buffer XDP for more than"
            f" {MAX_LINEAR_MTU}"
        ),
    )
    offload: Literal["on", "off"] = Field(
        default="on", description="TSO, GSO, GRO and TX checksums of every link"
    )
    queues: int | None = Field(
        default=None,
        ge=1,
        le=MAX_QUEUES,
        description="queues of an interface; default: one per CPU",
    )
    xdp: XdpMode = Field(
        default="native",
        description=(
            "where the testbed's XDP programs run: native (in the driver) or generic (in the stack,"
            " on socket buffers)"
        ),
    )

    @model_validator(mode="after")
    def _linear(self) -> Self:
        """In the stack, a program sees only the linear part of a socket buffer."""
        if self.xdp == "generic" and self.mtu > MAX_LINEAR_MTU:
            raise ValueError(
                f'mtu = {self.mtu}: must be {MIN_MTU} to {MAX_LINEAR_MTU} with xdp = "generic"'
            )
        return self

    @model_validator(mode="after")
    def _as_the_topo_says(self) -> Self:
        """Take the number of hosts from a Topo that has its own; `hosts` may be left out."""
        name, comma, _ = self.topology.partition(",")
        if TOPOLOGIES.owns(name):
            if comma:
                raise ValueError(
                    f'topology = "{self.topology}": {name} takes no arguments but hosts and k'
                )
            return self
        try:
            count = len(make_topo(self.topology, {"hosts": self.hosts}).hosts())
        except SpecError as error:
            raise ValueError(f'topology = "{self.topology}": {error}') from None
        most = next(
            each.le for each in type(self).model_fields["hosts"].metadata if isinstance(each, Le)
        )
        if not 1 <= count <= int(str(most)):
            raise ValueError(
                f'topology = "{self.topology}": has {count} hosts: must be 1 to {most}'
            )
        if self.hosts not in (count, type(self).model_fields["hosts"].default):
            raise ValueError(f"hosts = {self.hosts}: must be {count}, as topology {name} has")
        self.__dict__["hosts"] = count
        return self

    def plan(self, net: int = 0) -> "FabricPlan":
        """Plan the fabric; see `plan_fabric`."""
        return plan_fabric(
            **{**self.model_dump(), "offload": self.offload == "on"}, net=net, model=type(self)
        )


class LargeFabricOptions(FabricOptions):
    """A fabric that is simulated and never built, so that it may be larger."""

    hosts: int = Field(
        default=4, ge=1, le=MAX_SIMULATED_HOSTS, description="number of hosts, one rank each"
    )


class SimulatedFabricOptions(LargeFabricOptions):
    """The fabric of a bench of the simulator, with the defaults that show its scale."""

    hosts: int = Field(
        default=64, ge=1, le=MAX_SIMULATED_HOSTS, description="number of hosts, one rank each"
    )
    topology: Annotated[str, Named(TOPOLOGIES, arguments=True)] = Field(
        default="fat-tree", description="how switches are joined"
    )
    switch: SwitchKind = Field(
        default="bridge", description="kind of switches, which sets the largest MTU"
    )


@dataclass(frozen=True)
class HostPlan:
    """A host: one interface, one address.

    :param name: ``h1..hN``.
    :param rank: Index of the host, from 0.
    :param ip: IPv4 address, in a /16 shared by all hosts.
    :param mac: Locally administered unicast address: ``02:00`` and the four octets of the IPv4
        address.
    :param switch: Name of the switch that the host is attached to.
    :param port: Port number there.
    """

    name: str
    rank: int
    ip: str
    mac: str
    switch: str
    port: int
    ifname: str = "eth0"


@dataclass(frozen=True)
class LinkPlan:
    """A link between two nodes; a host's port is 0, switch ports count from 1."""

    a: str
    a_port: int
    b: str
    b_port: int


@dataclass(frozen=True)
class SwitchPlan:
    """A switch.

    :param ports: Port numbers, ascending.
    :param forwarding: Port number by destination MAC, for every host of the fabric.
    """

    name: str
    ports: tuple[int, ...]
    forwarding: Mapping[str, int]

    def ifname(self, port: int) -> str:
        """Name of the interface of ``port``, inside the switch's namespace; without the switch's
        name if that is too long.
        """
        name = f"{self.name}-eth{port}"
        return name if len(name) <= IFNAMSIZ else f"eth{port}"


@dataclass(frozen=True)
class FabricPlan:
    """Everything that defines a fabric.

    :param topology: Name of the topology.
    :param hosts: By rank.
    :param switch_kind: ``bridge`` (Linux bridge) or ``xdp`` (L2 switch program, the bridge behind
        it).
    :param mtu: MTU of every interface, bytes.
    :param offload: TSO, GSO, GRO and TX checksums on or off, at both ends of every link.
    :param queues: Receive and transmit queues of every interface.
    :param xdp: Where the testbed's XDP programs run, ``native`` or ``generic``.
    """

    topology: str
    hosts: tuple[HostPlan, ...]
    links: tuple[LinkPlan, ...]
    switches: tuple[SwitchPlan, ...]
    switch_kind: SwitchKind
    mtu: int
    offload: bool
    queues: int
    xdp: XdpMode = "native"

    @property
    def generic(self) -> bool:
        """Whether XDP programs run in the stack."""
        return self.xdp == "generic"

    def summary(self) -> dict[str, Any]:
        """What benches and reports show of the fabric."""
        return {
            "topology": self.topology,
            "hosts": len(self.hosts),
            "switch": self.switch_kind,
            "mtu": self.mtu,
            "offload": "on" if self.offload else "off",
            "queues": self.queues,
            "xdp": self.xdp,
        }

    def host(self, name: str) -> HostPlan:
        """Host by name.

        :raises SpecError: There is no such host.
        """
        for host in self.hosts:
            if host.name == name:
                return host
        names = ", ".join(host.name for host in self.hosts)
        raise SpecError(f"host: {name!r} is not in this fabric; hosts are {names}")

    def switch(self, name: str) -> SwitchPlan:
        """Switch by name.

        :raises SpecError: There is no such switch.
        """
        for switch in self.switches:
            if switch.name == name:
                return switch
        names = ", ".join(switch.name for switch in self.switches)
        raise SpecError(f"switch: {name!r} is not in this fabric; switches are {names}")

    def to_dict(self) -> dict[str, Any]:
        """The plan in types that JSON has."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "FabricPlan":
        """Inverse of :meth:`to_dict`, also after a trip through JSON."""
        return cls(
            **{
                **data,
                "hosts": tuple(HostPlan(**host) for host in data["hosts"]),
                "links": tuple(LinkPlan(**link) for link in data["links"]),
                "switches": tuple(
                    SwitchPlan(switch["name"], tuple(switch["ports"]), dict(switch["forwarding"]))
                    for switch in data["switches"]
                ),
            }
        )


def plan_fabric(
    topology: str = "star",
    hosts: int = 4,
    switch: str = "xdp",
    mtu: int = 1500,
    offload: bool = True,
    queues: int | None = None,
    k: int | None = None,
    net: int = 0,
    xdp: str = "native",
    model: type[FabricOptions] = FabricOptions,
) -> FabricPlan:
    """Plan a fabric.

    :param offload: Offloads on or off, on both ends of every link.
    :param queues: Receive and transmit queues of an interface; by default one for each CPU.
    :param k: Leaves and spines of ``leaf-spine``, 1 to ``hosts``; by default 2, or 1 if there is
        one host. Ports of a switch of ``fat-tree``, even, for at most k*k*k/4 hosts; by default as
        few as possible, at least 4.
    :param net: Second octet of the hosts' addresses in 10.0.0.0/8; the other two are the rank + 1.
    :param model: Bounds of the options.
    :raises SpecError: A value is out of range; see `FabricOptions` for the others.
    """
    values = {
        "topology": topology,
        "hosts": hosts,
        "switch": switch,
        "mtu": mtu,
        "queues": queues,
        "k": k,
        "xdp": xdp,
    }
    options = checked(model, values, lambda place: f"{place[0]}:")
    if not 0 <= net <= 255:
        raise SpecError(f"net: {net}: must be 0 to 255")
    if queues is None:
        queues = min(os.cpu_count() or 1, MAX_QUEUES)
    hosts = options.hosts
    parameters = {"hosts": hosts}
    if topology in TAKES_K:
        parameters["k"] = _size(topology, hosts, k)
    elif k is not None:
        names = " and ".join(map(repr, TAKES_K))
        raise SpecError(f"k: {k} has no meaning for topology {topology!r}, only for {names}")

    topo = make_topo(topology, parameters)
    links = tuple(
        LinkPlan(info["node1"], info["port1"], info["node2"], info["port2"])
        for _, _, info in topo.links(sort=True, withInfo=True)
    )
    hosts_of_topo = set(topo.hosts())
    links = tuple(
        link
        if link.a in hosts_of_topo
        else LinkPlan(link.b, link.b_port, link.a, link.a_port)
        if link.b in hosts_of_topo
        else link
        for link in links
    )
    of_host = {link.a: link for link in links}
    host_plans = tuple(
        _host_plan(rank, net, of_host[name]) for rank, name in enumerate(topo.hosts())
    )
    return FabricPlan(
        topology=topology,
        hosts=host_plans,
        links=links,
        switches=_switch_plans(topo.switches(), host_plans, links),
        switch_kind=options.switch,
        mtu=mtu,
        offload=offload,
        queues=queues,
        xdp=options.xdp,
    )


def make_topo(topology: str, parameters: Mapping[str, int]) -> Any:
    """Return a Mininet Topo that a fabric can be made of.

    :param topology: A name, and for a Topo of another package its arguments, as in ``mn --topo``.
    :param parameters: Arguments for those that take them.
    :raises SpecError: The class refuses the arguments, or the graph has what a fabric cannot have.
    """
    name, *rest = topology.split(",")
    kind = TOPOLOGIES[name]
    positional = [_number(text) for text in rest if "=" not in text]
    named = {key: _number(value) for key, _, value in (t.partition("=") for t in rest if "=" in t)}
    if not rest:
        known = inspect.signature(kind.build).parameters
        takes_all = TOPOLOGIES.owns(name)
        named = {key: value for key, value in parameters.items() if takes_all or key in known}
    try:
        topo = kind(*positional, **named)
    except Exception as error:  # whatever a class does with arguments that it does not expect
        text = " ".join(str(error).split())
        raise SpecError(f"{name}: {type(error).__name__}: {text}") from error
    if not TOPOLOGIES.owns(name):
        _check_topo(topo)
    return topo


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _check_topo(topo: Any) -> None:
    """Refuse what a plan cannot express.

    :raises SpecError: The text names the node or link.
    """
    hosts, switches = set(topo.hosts()), set(topo.switches())
    for node in (*topo.hosts(), *topo.switches()):
        if not re.fullmatch(NAME, node) or len(node) > MAX_NAME:
            raise SpecError(
                f"node {node!r}: its name must be at most {MAX_NAME} letters, digits, and single"
                " dots or hyphens between them, beginning with a letter"
            )
    for host in topo.hosts():
        if options := sorted(topo.nodeInfo(host)):
            raise SpecError(
                f"host {host} has {', '.join(options)}: options of hosts are not honoured here"
            )
    joined: dict[str, set[str]] = {node: set() for node in hosts | switches}
    links: dict[str, int] = dict.fromkeys(hosts, 0)
    for a, b, info in topo.links(withInfo=True):
        if a in hosts and b in hosts:
            raise SpecError(f"link {a}-{b}: must join a host and a switch, or two switches")
        if words := {key: value for key, value in info.items() if key not in _LINK_KEYS}:
            raise SpecError(f"link {a}-{b} has {_words(words)}{_as_faults(a, b, hosts, words)}")
        joined[a].add(b)
        joined[b].add(a)
        for node in {a, b} & hosts:
            links[node] += 1
    for host, count in links.items():
        if count != 1:
            raise SpecError(f"host {host} has {count} links: must have one")
    reached, todo = set(), [*topo.hosts()[:1]]
    while todo:
        if (node := todo.pop()) not in reached:
            reached.add(node)
            todo += joined[node]
    if apart := sorted(hosts - reached):
        raise SpecError(f"host {apart[0]} is not connected to {topo.hosts()[0]}")


_LINK_KEYS = frozenset({"node1", "node2", "port1", "port2"})


def _words(words: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(words.items()))


def _as_faults(a: str, b: str, hosts: set[str], words: Mapping[str, Any]) -> str:
    """Say how what TCLink would do to a host's link is written as faults."""
    refusal = ": a Topo's links have no options here"
    host = next(iter({a, b} & hosts), None)
    if host is None:
        return f"{refusal}, and faults and limits are for links of hosts"
    both = [f"link={host}->*", f"link=*->{host}"]
    texts = []
    if "bw" in words:
        queue = (
            f" queue={int(words['max_queue_size']) * 1514}B" if "max_queue_size" in words else ""
        )
        texts.append(f"limit host={host} rate={words['bw']}mbit{queue}")
    if "delay" in words:
        jitter = f" jitter={words['jitter']}" if "jitter" in words else ""
        texts += [f"delay delay={words['delay']}{jitter} {link}" for link in both]
    if "loss" in words:
        texts += [f"drop p={float(words['loss']) / 100:g} {link}" for link in both]
    return f"{refusal}; as faults they are: {'; '.join(texts)}" if texts else refusal


def _size(topology: str, hosts: int, k: int | None) -> int:
    """The parameter k of a topology, checked."""
    if topology == "leaf-spine":
        size = min(2, hosts) if k is None else k
        if size > hosts:
            raise SpecError(f"k: {size}: must be at most the number of hosts, {hosts}")
        return size
    least = next(ports for ports in range(4, 2 * hosts + 4, 2) if ports**3 // 4 >= hosts)
    size = least if k is None else k
    if size % 2:
        raise SpecError(f"k: {size}: must be even, the number of ports of a switch of fat-tree")
    if size**3 // 4 < hosts:
        raise SpecError(f"k: {size}: must be at least {least} for {hosts} hosts of fat-tree")
    return size


def _host_plan(rank: int, net: int, link: LinkPlan) -> HostPlan:
    octets = (10, net, *divmod(rank + 1, 256))
    return HostPlan(
        name=link.a,
        rank=rank,
        ip=".".join(map(str, octets)),
        mac="02:00:" + ":".join(f"{octet:02x}" for octet in octets),
        switch=link.b,
        port=link.b_port,
    )


def _switch_plans(
    names: list[str], hosts: tuple[HostPlan, ...], links: tuple[LinkPlan, ...]
) -> tuple[SwitchPlan, ...]:
    """Shortest paths, one breadth-first search per switch with hosts; every hop gets closer, so
    cycles do no harm.
    """
    trunks: dict[str, dict[int, str]] = {name: {} for name in names}  # neighbouring switch by port
    ports: dict[str, set[int]] = {name: set() for name in names}
    for link in links:
        for end, port, far_end in ((link.a, link.a_port, link.b), (link.b, link.b_port, link.a)):
            if end in ports:
                ports[end].add(port)
                if far_end in ports:
                    trunks[end][port] = far_end
    trunks = {name: dict(sorted(found.items())) for name, found in trunks.items()}
    closer: dict[str, dict[str, list[int]]] = {}  # ports on shortest paths, by their end and switch
    forwarding: dict[str, dict[str, int]] = {name: {} for name in names}
    for host in hosts:
        if host.switch not in closer:
            closer[host.switch] = _closer(host.switch, trunks)
        # Equal paths are chosen by destination (crc32: the same on every machine, unlike hash()).
        number = zlib.crc32(host.mac.encode())
        for name, nearer in closer[host.switch].items():
            forwarding[name][host.mac] = nearer[number % len(nearer)]
        forwarding[host.switch][host.mac] = host.port
    return tuple(SwitchPlan(name, tuple(sorted(ports[name])), forwarding[name]) for name in names)


def _closer(end: str, trunks: Mapping[str, Mapping[int, str]]) -> dict[str, list[int]]:
    """The ports of all other switches that are on a shortest path to a switch."""
    distance, queue = {end: 0}, deque([end])
    while queue:
        near = queue.popleft()
        for neighbour in trunks[near].values():
            if neighbour not in distance:
                distance[neighbour] = distance[near] + 1
                queue.append(neighbour)
    return {
        name: [port for port, far in found.items() if distance[far] < distance[name]]
        for name, found in trunks.items()
        if name != end
    }
