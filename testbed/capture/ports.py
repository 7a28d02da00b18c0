"""Ports of a fabric, by the names that users give, and the ends of links that they stand for.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from testbed.core.errors import SpecError
from testbed.plan import FabricPlan

__all__ = ["End", "Port", "parse_ports"]


class End(NamedTuple):
    """One end of a link."""

    node: str
    ifname: str


class Port(NamedTuple):
    """A port that is captured: what arrives at its own end is inbound, what arrives at the other
    end is outbound.

    :param name: ``h1``, or ``s1:2``.
    """

    name: str
    own: End
    other: End


def parse_ports(plan: FabricPlan, names: Iterable[str]) -> list[Port]:
    """The ports that some names stand for: ``h1`` is a host's, ``s1:2`` one of a switch, ``s1`` all
    of a switch.

    :raises SpecError: There is no such node or port, or no name.
    """
    every = _ports(plan)
    found: dict[str, Port] = {}
    for name in names:
        node, colon, _ = name.partition(":")
        chosen = [port for port in every if port.own.node == node]
        if not chosen:
            known = ", ".join(dict.fromkeys(port.own.node for port in every))
            raise SpecError(f"node: {node!r}: must be one of {known}")
        if colon:
            chosen = [port for port in chosen if port.name == name]
        if not chosen:
            known = ", ".join(port.name for port in every if port.own.node == node)
            raise SpecError(f"port: {name!r}: must be one of {known}")
        found |= {port.name: port for port in chosen}
    if not found:
        raise SpecError("node: is missing; give hosts or switches, such as h1 or s1:2")
    return list(found.values())


def _ports(plan: FabricPlan) -> list[Port]:
    hosts = {host.name: host for host in plan.hosts}
    switches = {switch.name: switch for switch in plan.switches}

    def end(node: str, port: int) -> tuple[str, End]:
        if node in hosts:
            return node, End(node, hosts[node].ifname)
        return f"{node}:{port}", End(node, switches[node].ifname(port))

    found = []
    for link in plan.links:
        (a, own), (b, other) = end(link.a, link.a_port), end(link.b, link.b_port)
        found += [Port(a, own, other), Port(b, other, own)]
    order = {name: index for index, name in enumerate([*hosts, *switches])}
    return sorted(found, key=lambda port: (order[port.own.node], len(port.name), port.name))
