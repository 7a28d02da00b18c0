"""Hosts that are cut off from each other: frames between them are dropped where they enter the
fabric, before any rule.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from testbed.core.closing import Closing
from testbed.core.errors import FabricError, SpecError
from testbed.faults import attach
from testbed.kernel import Map
from testbed.worker import Workers

if TYPE_CHECKING:
    from testbed.fabric import Fabric

__all__ = ["Blockade", "partition"]


class Blockade(Closing):
    """The maps ``blocked`` of all fault programs of a fabric, opened in this process.

    The thread that calls workers creates it; any thread may use it, even while another waits for
    workers.

    :param fabric: A fabric on which a :class:`testbed.faults.injector.Injector` is in force,
        possibly without rules.
    :raises FabricError: No faults are in force.
    """

    def __init__(self, fabric: Fabric) -> None:
        if not fabric.faults:
            raise FabricError(
                "a partition is done by the fault programs, which an injector has to attach before"
            )
        self._plan = fabric.plan
        switches = list(dict.fromkeys(host.switch for host in fabric.plan.hosts))
        self._masks: list[NDArray[np.uint64]] = []
        with ExitStack() as stack:
            stack.callback(
                self._masks.clear
            )  # while a map's memory is mapped, it keeps the map alive
            for number in Workers.of(fabric).call_all(attach.blocked_map, switches).values():
                opened = Map.open(number)
                stack.callback(os.close, opened.fd)
                self._masks.append(opened.view(np.uint64)[:, 0])
            self._stack = stack.pop_all()

    @contextmanager
    def partition(self, sets: Sequence[Sequence[str]]) -> Iterator[None]:
        """Drop frames from a host of one set to a host of another; hosts in no set keep all their
        links.

        :param sets: Names of hosts.
        :raises SpecError: There is no such host, or a host is in two sets.
        """
        names = [name for part in sets for name in part]
        if len(set(names)) < len(names):
            raise SpecError(f"partition: {'|'.join(map(','.join, sets))}: must name each host once")
        added: list[
            tuple[int, int]
        ] = []  # sender and bit; bits that another partition has set stay when this one ends
        for one, other in itertools.permutations(sets, 2):
            for sender, receiver in itertools.product(one, other):
                rank, bit = self._plan.host(sender).rank, 1 << self._plan.host(receiver).rank
                if not int(self._masks[0][rank]) & bit:
                    added.append((rank, bit))
        try:
            for rank, bit in added:
                for mask in self._masks:
                    mask[rank] |= np.uint64(bit)
            yield
        finally:
            for rank, bit in added:
                for mask in self._masks:
                    mask[rank] &= ~np.uint64(bit)

    def close(self) -> None:
        """Close the maps; blocked links stay blocked until the injector ends."""
        self._stack.close()


@contextmanager
def partition(fabric: Fabric, sets: Sequence[Sequence[str]]) -> Iterator[None]:
    """:meth:`Blockade.partition` for direct use, on a fabric on which an injector is in force."""
    with Blockade(fabric) as blockade, blockade.partition(sets):
        yield
