"""The context of a function that runs in a worker: its plan, resources and state."""

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

    :param name: Name of the worker: that of its host or switch, unless something else started it.
    :param kind: ``host`` or ``switch``.
    :param plan: Plan of the host or switch that the worker is in.
    :param fabric_plan: Plan of the whole fabric.
    :param resources: Closed in reverse order when the worker ends.
    :param kept: What calls keep for later calls, by type: see :meth:`state`.
    :param send_progress: Sends the argument of
        :meth:`progress` to the controller.
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
        """The plan, if the worker is in a host.

        :raises TypeError: The worker is in a switch.
        """
        if not isinstance(self.plan, HostPlan):
            raise TypeError(f"{self.name} is a switch's worker, not a host's")
        return self.plan

    @property
    def switch(self) -> SwitchPlan:
        """The plan, if the worker is in a switch.

        :raises TypeError: The worker is in a host.
        """
        if not isinstance(self.plan, SwitchPlan):
            raise TypeError(f"{self.name} is a host's worker, not a switch's")
        return self.plan

    def state(self, kind: type[T]) -> T:
        """Return the worker's only object of a class, created on first use, in which calls keep
        state for later calls.

        :param kind: Called without arguments; for a class that takes arguments, use :meth:`keep`.
        """
        found = self.find(kind)
        return self.keep(kind()) if found is None else found

    def get(self, kind: type[T]) -> T:
        """Return the object of a class that an earlier call has kept.

        :raises LookupError: There is none.
        """
        if (found := self.find(kind)) is None:
            raise LookupError(f"{self.name} keeps no {kind.__name__}")
        return found

    def find(self, kind: type[T]) -> T | None:
        """Return the kept object of a class, or None."""
        return self.kept.get(kind)

    def keep(self, value: T) -> T:
        """Keep an object for later calls, replacing any other of its class; return it."""
        self.kept[type(value)] = value
        return value

    def drop(self, kind: type[T]) -> T | None:
        """Stop keeping the object of a class, and return it."""
        found: T | None = self.kept.pop(kind, None)
        return found

    def progress(self, value: Any) -> None:
        """Give ``value`` (anything that pickles) to the controller's ``on_progress`` during the
        call.
        """
        self.send_progress(value)
