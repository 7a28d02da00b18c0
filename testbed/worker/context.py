"""What a function that runs in a worker gets to know and to keep."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from testbed.plan import FabricPlan, HostPlan, SwitchPlan

__all__ = ["WorkerContext"]

T = TypeVar("T")


@dataclass
class WorkerContext:
    """First argument of every function that a controller calls in a worker.

    :param name: Name of the worker: that of its host or switch, if it was not started by something
        else.
    :param kind: ``host`` or ``switch``.
    :param plan: Plan of the host or switch that the worker is in.
    :param fabric_plan: Plan of the whole fabric.
    :param resources: Closed, last one first, when the worker ends.
    :param kept: What calls keep for later calls, by its type: see :meth:`state`.
    :param send_progress: Takes what :meth:`progress` is given to the controller.
    """

    name: str
    kind: Literal["host", "switch"]
    plan: HostPlan | SwitchPlan
    fabric_plan: FabricPlan
    resources: ExitStack = field(default_factory=ExitStack)
    kept: dict[type, Any] = field(default_factory=dict)
    send_progress: Callable[[Any], None] = lambda value: None

    @property
    def host(self) -> HostPlan:
        """The plan, of a worker in a host.

        :raises TypeError: The worker is in a switch.
        """
        if not isinstance(self.plan, HostPlan):
            raise TypeError(f"{self.name} is a switch's worker, not a host's")
        return self.plan

    @property
    def switch(self) -> SwitchPlan:
        """The plan, of a worker in a switch.

        :raises TypeError: The worker is in a host.
        """
        if not isinstance(self.plan, SwitchPlan):
            raise TypeError(f"{self.name} is a host's worker, not a switch's")
        return self.plan

    def state(self, kind: type[T]) -> T:
        """Return the worker's only object of a class, made on first use, in which calls keep state
        for later calls.

        :param kind: Called without arguments; an object that takes some is given to :meth:`keep`.
        """
        found = self.find(kind)
        return self.keep(kind()) if found is None else found

    def get(self, kind: type[T]) -> T:
        """Return what an earlier call has kept of a class.

        :raises LookupError: None has.
        """
        if (found := self.find(kind)) is None:
            raise LookupError(f"{self.name} keeps no {kind.__name__}")
        return found

    def find(self, kind: type[T]) -> T | None:
        """Return what is kept of a class; None, if nothing is."""
        return self.kept.get(kind)

    def keep(self, value: T) -> T:
        """Keep an object for later calls, replacing any other of its class; return it."""
        self.kept[type(value)] = value
        return value

    def drop(self, kind: type[T]) -> T | None:
        """Keep nothing of a class any more; return what was kept."""
        found: T | None = self.kept.pop(kind, None)
        return found

    def progress(self, value: Any) -> None:
        """Give ``value`` (anything that pickles) to the controller's ``on_progress`` during the
        call.
        """
        self.send_progress(value)
