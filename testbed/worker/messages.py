"""The messages between controller and workers, pickled, over an AF_UNIX connection.

A worker says :class:`Hello`; the controller answers :class:`Welcome`, then sends :class:`Call`
after :class:`Call`. A worker serves them one at a time, with any number of :class:`Progress` and
:class:`Log`, and then :class:`Result` or :class:`Failure`. :class:`Stop`, or the end of the
connection, ends the worker.
"""

from dataclasses import dataclass
from typing import Any, Literal

from testbed.plan import FabricPlan, HostPlan, SwitchPlan

__all__ = ["Call", "Failure", "Hello", "Log", "Progress", "Result", "Stop", "Welcome"]


@dataclass(frozen=True)
class Hello:
    """A worker's first message."""

    name: str
    pid: int


@dataclass(frozen=True)
class Welcome:
    """The controller's answer.

    :param path: The controller's ``sys.path``, so that workers can import whatever it can.
    :param level: Of the controller's log: workers send it no less important entries.
    """

    kind: Literal["host", "switch"]
    plan: HostPlan | SwitchPlan
    fabric_plan: FabricPlan
    path: list[str]
    level: int = 0


@dataclass(frozen=True)
class Call:
    """Call ``module.qualname(context, **arguments)``.

    :param number: Repeated in answers, so that late answers to an abandoned call can be discarded.
    """

    number: int
    module: str
    qualname: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Progress:
    """Progress of a call that is still running."""

    number: int
    value: Any


@dataclass(frozen=True)
class Log:
    """An entry for the controller's log, from a worker that serves a call."""

    logger: str
    level: int
    text: str


@dataclass(frozen=True)
class Result:
    """What a call returned."""

    number: int
    value: Any


@dataclass(frozen=True)
class Failure:
    """What a call raised, and the traceback as text."""

    number: int
    error: BaseException
    traceback: str


@dataclass(frozen=True)
class Stop:
    """Close the resources and exit."""
