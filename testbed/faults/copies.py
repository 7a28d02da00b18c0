"""Copies of a frame while switches flood: how many each host gets, and whether they ever stop.
Pure.

A switch without its table sends a frame out of all ports except its ingress port. One with its
table sends it towards its destination, and drops it if that is its ingress port or the destination
is unknown.

*One* switch that floods is harmless in any topology in which two switches are joined at most once.
A frame reaches it on a shortest path, on which every hop is closer to the destination, so only
once. A copy that it sends to a neighbour continues from there on a shortest path. The switch, being
the neighbour's neighbour, is closer by at most one hop, so it can only be the next hop on that
path; but that is where the copy came from, so the copy is dropped. So no copy comes back, and there
are never more copies of a frame than the switch has other ports.

*Several* may forward a frame around a cycle for ever. Whether they do depends on tables, so each
case is examined: a frame's path is a walk over pairs of a switch and an ingress port, and it ends
if the reachable pairs have no cycle. A switch that has its table back sends a frame where it would
have gone anyway, or drops it. So what is allowed for a set of switches is allowed for each subset,
and it does not matter in which order they get their tables back.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from graphlib import CycleError, TopologicalSorter

from testbed.core.errors import SpecError
from testbed.plan import FabricPlan

__all__ = ["Walk", "check_bounded"]

#: A switch, and the port through which a frame entered it.
Place = tuple[str, int]


class Walk:
    """The paths of frames for one destination.

    :param plan: The fabric.
    :param floods: Names of the switches that have lost their tables.
    :param mac: The destination; if no table has it, all other switches drop the frames.
    :raises SpecError: There is no such switch.
    """

    def __init__(self, plan: FabricPlan, floods: Collection[str], mac: str) -> None:
        self._plan, self._floods, self._mac = plan, {plan.switch(name).name for name in floods}, mac
        self._switches = {switch.name: switch for switch in plan.switches}
        self._far: dict[Place, Place] = {}  # the other end of each link
        for link in plan.links:
            ends = (link.a, link.a_port), (link.b, link.b_port)
            self._far |= {ends[0]: ends[1], ends[1]: ends[0]}

    def cycle(self, senders: Iterable[str]) -> list[str]:
        """Names of the switches of a cycle in which a frame from one of these hosts circulates for
        ever; empty if there is none.
        """
        try:
            tuple(self._order(self._entry(name) for name in senders))
        except CycleError as error:
            return [switch for switch, _ in error.args[1][1:]]
        return []

    def copies(self, sender: str) -> Counter[str]:
        """How many copies of a host's frame each host gets; hosts that get none are left out.

        :raises CycleError: The frame circulates for ever.
        """
        first = self._entry(sender)
        arrived = Counter({first: 1})
        for place in self._order([first]):
            for after in self._next(place):
                arrived[after] += arrived[place]
        return Counter(
            {name: count for (name, _), count in arrived.items() if name not in self._switches}
        )

    def _entry(self, host: str) -> Place:
        plan = self._plan.host(host)
        return plan.switch, plan.port

    def _next(self, place: Place) -> list[Place]:
        name, ingress = place
        switch = self._switches[name]
        known = [switch.forwarding[self._mac]] if self._mac in switch.forwarding else []
        ports = switch.ports if name in self._floods else known
        return [self._far[name, port] for port in ports if port != ingress]

    def _order(self, first: Iterable[Place]) -> Iterable[Place]:
        """All reachable places, in topological order.

        :raises CycleError: There is a cycle.
        """
        sorter: TopologicalSorter[Place] = TopologicalSorter()
        left, seen = list(first), set()
        while left:
            place = left.pop()
            if place in seen:
                continue
            seen.add(place)
            sorter.add(place)
            for after in self._next(place):
                if after[0] in self._switches:
                    sorter.add(after, place)
                    left.append(after)
        return sorter.static_order()


def check_bounded(plan: FabricPlan, floods: Collection[str]) -> None:
    """Check that no frame circulates for ever while switches flood at once.

    :param floods: Their names.
    :raises SpecError: One does, or there is no such switch.
    """
    for receiver in plan.hosts:
        senders = [host.name for host in plan.hosts if host != receiver]
        if cycle := Walk(plan, floods, receiver.mac).cycle(senders):
            raise SpecError(
                f"flood of {', '.join(sorted(floods))} at once: a frame for {receiver.name} would"
                f" go round {', '.join(cycle)} for ever: flood one of them at a time"
            )
