"""Fabrics for tests: one stays up for the next test that needs an equal one, and each test has it
as if it were new.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from testbed.core.closing import Closing
from testbed.core.errors import TestbedError
from testbed.datapath import set_datapath
from testbed.testing import calls
from testbed.worker import Workers

if TYPE_CHECKING:
    from testbed.fabric import Fabric
    from testbed.plan import Datapath, FabricPlan
    from testbed.worker import Workers

__all__ = ["Fabrics", "Lease"]

_GRACE = 10.0  # seconds for idle workers to close what a test has opened

_MODULES = ("testbed.testing.calls", "pytest")  # the latter by way of the tests' own functions


class Lease:
    """A fabric for the length of a test.

    :param workers: Of the fabric; what functions keep in their contexts' ``resources`` and
        ``objects`` goes with the lease.
    """

    def __init__(self, fabric: Fabric, workers: Workers) -> None:
        self.fabric, self.workers = fabric, workers
        #: To be set when the fabric must not be used again, such as after a test that failed.
        self.spoilt = False
        self._datapath = fabric.datapath
        workers.call_all(calls.begin, list(fabric.nodes), timeout=_GRACE)
        self._expected = self._first = self._traces()

    def accept(self) -> None:
        """Take what is there now as what should be there: see :meth:`leftovers`."""
        self._expected = self._traces()

    def leftovers(self) -> list[str]:
        """What differs from what should be there: devices, programs, processes, faults."""
        now = self._traces()
        left, gone = sorted(now - self._expected), sorted(self._expected - now)
        return [*(f"left: {trace}" for trace in left), *(f"gone: {trace}" for trace in gone)]

    def end(self) -> bool:
        """Close what the test has opened in workers.

        :returns: Whether the fabric is as it was, and so good for another test.
        """
        workers = self.workers
        if self.spoilt or any(worker.may_die or worker.pending for worker in workers.values()):
            return False
        try:
            workers.call_all(calls.end, list(self.fabric.nodes), timeout=_GRACE)
            return self._datapath == self.fabric.datapath and self._traces() == self._first
        except TestbedError:
            return False

    def _traces(self) -> set[str]:
        from testbed.testing.leftovers import traces  # pyroute2

        idle = [
            name
            for name, worker in self.workers.items()
            if not worker.may_die and not worker.pending
        ]
        self.workers.call_all(calls.collect, idle, timeout=_GRACE)
        return traces(self.fabric)


class Fabrics(Closing):
    """At most one fabric that is up, with its workers."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._fabric: Fabric | None = None

    @contextmanager
    def lease(self, plan: FabricPlan, datapath: Datapath) -> Iterator[Lease]:
        """Lend the fabric that is up, if it is equal to the plan, else another one.

        :raises FabricError: It could not be built.
        """
        from testbed.fabric import Fabric
        from testbed.worker import Workers

        if self._fabric is None or self._fabric.plan != plan:
            self.close()
            fabric = self._stack.enter_context(Fabric(plan))
            self._stack.enter_context(Workers(fabric, modules=_MODULES))
            self._fabric = fabric
        fabric = self._fabric
        try:
            if fabric.datapath != datapath:
                set_datapath(fabric, datapath)
            lease = Lease(fabric, Workers.of(fabric))
        except BaseException:
            self.close()
            raise
        yield lease
        if self._fabric is fabric and not lease.end():
            self.close()

    def hand_over(self) -> ExitStack:
        """Give the fabric that is up away: whoever closes what is returned takes it down."""
        self._fabric = None
        return self._stack.pop_all()

    def close(self) -> None:
        """Take the fabric down."""
        self._fabric = None
        self._stack.close()
