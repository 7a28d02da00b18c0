"""A test's group: one backend open on several hosts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

from testbed.collectives.registry import BACKENDS, check_names
from testbed.comm.backend import Tensor
from testbed.comm.collective import Counters
from testbed.comm.group import GroupSpec, make_groups
from testbed.core.closing import Closing
from testbed.datapath import set_datapath
from testbed.testing import calls
from testbed.worker import Workers

if TYPE_CHECKING:
    from testbed.fabric import Fabric

__all__ = ["Group"]

_GRACE = 10.0  # seconds for a worker to answer beyond the group's own timeouts


class Group(Closing):
    """A backend that is open on hosts of a fabric; it sets the datapath that the backend needs.

    :param fabric: A fabric that is up, with workers, without faults in force.
    :param backend: Its name.
    :param hosts: Names of hosts in rank order; all of the fabric's, if not given.
    :param options: Further fields of :class:`testbed.comm.group.GroupSpec`.
    :raises SpecError: No backend has this name, or an option is out of range.
    :raises CollectiveError: The ranks did not connect.
    """

    def __init__(
        self,
        fabric: Fabric,
        backend: str = "xdp-ring",
        hosts: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        check_names([backend])
        self._fabric, self._backend = fabric, backend
        self._options: dict[str, Any] = {"capacity": 1 << 21, "mtu": fabric.plan.mtu, **options}
        self._numbers = itertools.count()
        self._stack = ExitStack()
        #: As each rank sees the group, in rank order.
        self.specs: tuple[GroupSpec, ...] = ()
        needed = BACKENDS[backend].needs
        if fabric.datapath != needed:
            set_datapath(fabric, needed)
        self.open(hosts or list(fabric.hosts))

    @property
    def hosts(self) -> list[str]:
        """Names of the hosts, in rank order."""
        return [member.name for member in self.specs[0].members]

    @property
    def timeout(self) -> float:
        """Seconds that a collective may go without an answer."""
        return self.specs[0].timeout

    def open(self, hosts: Sequence[str]) -> None:
        """Form the group again, with other hosts or after a failure. Closes the previous one.

        :raises CollectiveError: The ranks did not meet.
        """
        from testbed.collectives.mpi.launch import rank_workers  # Mininet

        self.close()
        fabric = self._fabric
        plans = [fabric.plan.host(name) for name in hosts]
        options = {"rendezvous": str(fabric.directory), **self._options}
        self.specs = make_groups(plans, group_id=next(self._numbers), **options)
        self._names = self._stack.enter_context(
            rank_workers(self._backend, Workers.of(fabric), hosts)
        )
        arguments = {
            name: {"name": self._backend, "spec": spec}
            for name, spec in zip(self._names, self.specs, strict=True)
        }
        self._stack.callback(self._close_ranks)
        within = self.specs[0].connect_timeout + _GRACE
        Workers.of(fabric).call_all(calls.open_group, arguments, timeout=within)

    def all_reduce(
        self, tensors: Sequence[Tensor], within: float = 60.0, op: str = "sum"
    ) -> list[Tensor]:
        """Sum tensors over all ranks, or reduce them otherwise.

        :param tensors: One float32 tensor per rank, all of one shape.
        :param within: Seconds within which all ranks have to finish.
        :param op: How values are reduced: ``sum``, ``min``, ``max`` or ``avg``.
        :returns: Each rank's result, in rank order.
        :raises CollectiveError: The collective could not complete.
        :raises WorkerTimeout: The time is over.
        """
        found: list[Tensor] = self._run("all_reduce", tensors, within, "raise", op=op)
        return found

    def reduce_scatter(
        self, tensors: Sequence[Tensor], within: float = 60.0, op: str = "sum"
    ) -> list[Tensor]:
        """Sum tensors over all ranks, and give each rank its block of the sum.

        :param tensors: One float32 tensor per rank, all of one shape, with as many equal blocks as
            there are ranks.
        :returns: Each rank's block, in rank order; the rest is as of :meth:`all_reduce`.
        """
        found: list[Tensor] = self._run("reduce_scatter", tensors, within, "raise", op=op)
        return found

    def all_gather(self, tensors: Sequence[Tensor], within: float = 60.0) -> list[Tensor]:
        """Give each rank the tensors of all ranks, one after the other.

        :returns: Each rank's result, in rank order; the rest is as of :meth:`all_reduce`.
        """
        found: list[Tensor] = self._run("all_gather", tensors, within, "raise")
        return found

    def broadcast(
        self, tensors: Sequence[Tensor], within: float = 60.0, root: int = 0
    ) -> list[Tensor]:
        """Give each rank the tensor of one.

        :param tensors: One float32 tensor per rank, all of one shape.
        :param root: The rank whose tensor it is.
        :returns: Each rank's result, in rank order; the rest is as of :meth:`all_reduce`.
        """
        found: list[Tensor] = self._run("broadcast", tensors, within, "raise", root=root)
        return found

    def outcomes(self, tensors: Sequence[Tensor], within: float = 60.0) -> list[Tensor | Exception]:
        """:meth:`all_reduce`, with the error of a rank that fails instead of its result.

        :raises WorkerTimeout: The time is over.
        """
        return self._run("all_reduce", tensors, within, "return")

    def counters(self) -> list[Counters]:
        """What each rank has sent since the group was formed, in rank order."""
        return list(
            Workers.of(self._fabric).call_all(calls.count, self._names, timeout=_GRACE).values()
        )

    def close(self) -> None:
        """Close the backend on all hosts that live."""
        self._stack.close()

    def _run(
        self,
        method: str,
        tensors: Sequence[Tensor],
        within: float,
        errors: Literal["raise", "return"],
        **options: Any,
    ) -> list[Any]:
        arguments = {
            name: {"method": method, "tensor": tensor, **options}
            for name, tensor in zip(self._names, tensors, strict=True)
        }
        return list(
            Workers.of(self._fabric)
            .call_all(calls.run, arguments, timeout=within, errors=errors)
            .values()
        )

    def _close_ranks(self) -> None:
        workers = Workers.of(self._fabric)
        idle = [
            name for name in self._names if not workers[name].pending and not workers[name].may_die
        ]
        workers.call_all(calls.close, idle, timeout=_GRACE, errors="return")
