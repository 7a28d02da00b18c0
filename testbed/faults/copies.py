"""Copies of a frame while switches flood: how many each host gets, and whether they ever stop.
Pure.

A switch without its table sends a frame out of all ports but the one that it came in by. One with
its table sends it towards its destination, and drops it where that is the port that it came in by,
or where it does not know the destination.

*One* switch that floods is harmless in any topology in which two switches are joined at most once.
A frame comes to it on a shortest path, on which every hop is nearer to the destination, so once. A
copy that it sends to a neighbour goes on from there on a shortest path. The switch, being the
neighbour's neighbour, is nearer by one hop at most, so it can only be the next on that path, and
the copy has come from there: it is dropped. So no copy comes back, and there are never more of a
frame than the switch has other ports.

*Several* may hand a frame round a cycle for ever. Whether they do depends on tables, so each case
is looked at: a frame's way is a walk over pairs of a switch and the port that it came in by, and it
ends if those that can be come to have no cycle. A switch that has its table back sends a frame
where it would have gone anyway, or nowhere. So what is allowed for some switches at once is allowed
for part of them, and it does not matter in which order they get their tables back.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from graphlib import CycleError, TopologicalSorter

from testbed.core.errors import SpecError
from testbed.plan import FabricPlan

__all__ = ["Walk", "check_bounded"]

#: A frame that has come to a switch by one of its ports.
Place = tuple[str, int]


class Walk:
    """The ways that frames for one destination take.

    :param plan: The fabric.
    :param floods: Names of the switches that have lost their tables.
    :param mac: The destination; one that no table has is dropped by all other switches.
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
        """Names of the switches round which a frame of one of these hosts goes for ever; empty if
        each frame's way ends.
        """
        try:
            tuple(self._order(self._entry(name) for name in senders))
        except CycleError as error:
            return [switch for switch, _ in error.args[1][1:]]
        return []

    def copies(self, sender: str) -> Counter[str]:
        """How many copies each host gets of a frame that a host sends; hosts that get none are left
        out.

        :raises CycleError: The frame goes round for ever.
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
        """All places that can be come to, each behind those before it.

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
