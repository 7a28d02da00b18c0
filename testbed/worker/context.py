"""What a function that runs in a worker gets to know and to keep."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

from testbed.plan import FabricPlan, HostPlan, SwitchPlan

__all__ = ["WorkerContext"]


@dataclass
class WorkerContext:
    """First argument of every function that a controller calls in a worker.

    :param name: Name of the worker: that of its host or switch, if it was not started by something else.
    :param kind: ``host`` or ``switch``.
    :param plan: Plan of the host or switch that the worker is in.
    :param fabric_plan: Plan of the whole fabric.
    :param resources: Closed, last one first, when the worker ends.
    :param objects: What calls keep for later calls, such as open transports.
    :param send_progress: Takes what :meth:`progress` is given to the controller.
    """

    name: str
    kind: Literal["host", "switch"]
    plan: HostPlan | SwitchPlan
    fabric_plan: FabricPlan
    resources: ExitStack = field(default_factory=ExitStack)
    objects: dict[str, Any] = field(default_factory=dict)
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

    def progress(self, value: Any) -> None:
        """Give ``value`` (anything that pickles) to the controller's ``on_progress`` during the call."""
        self.send_progress(value)
