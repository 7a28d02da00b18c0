"""Limits in force: queues where frames pass through the stack, and the fault programs' buckets
where XDP redirects them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from testbed.core.closing import Closing
from testbed.core.errors import FaultError
from testbed.faults.limits import Direction, Limit, bucket_table, each_limited, tbf_options
from testbed.faults.qdisc import Qdisc, QdiscCounters

if TYPE_CHECKING:
    from testbed.fabric import Fabric
    from testbed.faults.injector import Injector

__all__ = ["Shaper", "limited"]


class Shaper(Closing):
    """Limits of a fabric whose frames pass through the stack, from the constructor to
    :meth:`close`.

    :raises SpecError: A host does not exist, has two limits of one direction, or its queue has no
        room for a frame.
    :raises FaultError: The datapath is ``xdp``, or the kernel refused the qdisc.
    """

    def __init__(self, fabric: Fabric, limits: Sequence[Limit]) -> None:
        if fabric.datapath == "xdp":
            raise FaultError(
                "limit: frames that XDP redirects pass no qdisc: on the datapath xdp, use an"
                " injector's limits"
            )
        self._qdiscs: dict[tuple[str, Direction], Qdisc] = {}
        with ExitStack() as stack:
            for limit, host, direction in list(each_limited(limits, fabric.plan)):
                node, ifname = host.name, host.ifname
                if direction == "down":
                    node, ifname = host.switch, fabric.plan.switch(host.switch).ifname(host.port)
                qdisc = stack.enter_context(
                    Qdisc(fabric, node, ifname, tbf_options(limit, fabric.plan.mtu))
                )
                self._qdiscs[host.name, direction] = qdisc
            self._stack = stack.pop_all()

    def counters(self) -> dict[tuple[str, Direction], QdiscCounters]:
        """Return the counts so far, by host and direction; ``dropped`` counts frames that found the
        queue full.
        """
        return {key: qdisc.counters() for key, qdisc in self._qdiscs.items()}

    def close(self) -> None:
        """Remove the limits."""
        self._stack.close()


@contextmanager
def limited(
    fabric: Fabric, limits: Sequence[Limit], injector: Injector | None = None
) -> Iterator[Callable[[], int]]:
    """Put limits in force in the way that suits the datapath, and remove them at the end.

    :param injector: The fabric's injector, entered; only the datapath ``xdp`` needs it.
    :return: A function that counts the frames dropped because of a limit, without injected drops.
    :raises SpecError: As in :class:`Shaper` or `bucket_table`.
    :raises FaultError: The kernel refused a qdisc, or there is no injector and the datapath is
        ``xdp``.
    """
    if fabric.datapath == "xdp":
        if injector is None:
            raise FaultError(
                "limit: the datapath xdp needs an injector, whose programs keep the rates"
            )
        injector.set_limits(bucket_table(limits, fabric.plan))
        try:
            yield lambda: int(injector.links()["limited"].sum())
        finally:
            injector.set_limits({})
    else:
        with Shaper(fabric, limits) as shaper:
            yield lambda: sum(counters.dropped for counters in shaper.counters().values())
