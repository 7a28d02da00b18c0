"""Events: they happen to hosts, links and switches at set times. One model per action. Pure."""

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from testbed.core.errors import SpecError
from testbed.faults.copies import check_bounded
from testbed.faults.units import parse_seconds
from testbed.plan import NAME, FabricPlan

__all__ = [
    "Event",
    "Flood",
    "Kill",
    "LinkDown",
    "Partition",
    "Pause",
    "Slow",
    "check_events",
    "check_floods",
    "check_overlap",
]

MAX_TIME = 86400.0  # seconds
LEAST_SHARE = (
    0.01  # of a CPU; with less, a process does not get through its own signal handlers in a second
)


def _seconds(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:  # TOML's whole numbers may have any number of digits
            raise ValueError from None
    if not isinstance(value, str):
        raise ValueError
    try:
        return parse_seconds(value)
    except SpecError:
        raise ValueError from None


def _names(value: object, pattern: str) -> tuple[str, ...]:
    names = tuple(value.split(",")) if isinstance(value, str) else ()
    if (
        not names
        or not all(re.fullmatch(pattern, name) for name in names)
        or len(set(names)) < len(names)
    ):
        raise ValueError
    return names


def _hosts(value: object) -> tuple[str, ...]:
    return _names(value, NAME)


def _switches(value: object) -> tuple[str, ...]:
    return _names(value, NAME)


def _sets(value: object) -> tuple[tuple[str, ...], ...]:
    sets = tuple(_hosts(part) for part in value.split("|")) if isinstance(value, str) else ()
    names = [name for part in sets for name in part]
    if len(sets) < 2 or len(set(names)) < len(names):
        raise ValueError
    return sets


Seconds = Annotated[float, BeforeValidator(_seconds)]
Hosts = Annotated[tuple[str, ...], BeforeValidator(_hosts)]
Switches = Annotated[tuple[str, ...], BeforeValidator(_switches)]
Sets = Annotated[tuple[tuple[str, ...], ...], BeforeValidator(_sets)]

_TIME = "seconds, or a time with a unit such as 200ms (whole nanoseconds), {} a day"
_HOSTS = "hosts such as h2, separated by commas, each once"


class Event(BaseModel):
    """The keys of all events.

    The description of a field says what it must be; errors quote it.

    :param at: Seconds after the start of the turn.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    at: Seconds = Field(0.0, ge=0, le=MAX_TIME, description=_TIME.format("up to"))

    action: str

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The hosts or switches that it affects."""

    @property
    def end(self) -> float | None:
        """Seconds after the start of the turn; ``None``: it is in force until the turn ends."""
        return None


class _Lasting(Event):
    """An event with an end.

    :param duration: Seconds; the key is ``for``. Without it, it is in force until the turn's end.
    """

    duration: Seconds | None = Field(
        None, alias="for", gt=0, le=MAX_TIME, description=_TIME.format("more than 0, up to")
    )

    @property
    def end(self) -> float | None:
        return None if self.duration is None else self.at + self.duration


class _OfHosts(Event):
    """An event that affects hosts.

    :param hosts: Their names.
    """

    hosts: Hosts = Field(description=_HOSTS)

    @property
    def names(self) -> tuple[str, ...]:
        return self.hosts


class LinkDown(_Lasting, _OfHosts):
    """The switch's end of each host's link is down."""

    action: Literal["link-down"] = "link-down"


class Partition(_Lasting):
    """Frames from a host of one set to a host of another are lost. Hosts in no set keep all their
    links.

    :param sets: Names of hosts; as text, ``h1,h2|h3,h4``.
    """

    action: Literal["partition"] = "partition"
    sets: Sets = Field(description="two or more sets of hosts such as h1,h2|h3,h4, each host once")

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts of all sets."""
        return tuple(name for part in self.sets for name in part)


class Kill(_OfHosts):
    """The workers of each host are killed (SIGKILL). They do not come back."""

    action: Literal["kill"] = "kill"


class Pause(_Lasting, _OfHosts):
    """All processes of each host are stopped (SIGSTOP), and continue at the end (SIGCONT)."""

    action: Literal["pause"] = "pause"


class Slow(_Lasting, _OfHosts):
    """All processes of a host get no more than a share of one CPU.

    :param share: Share of one CPU.
    """

    action: Literal["slow"] = "slow"
    share: float = Field(ge=LEAST_SHARE, le=1, description=f"a number from {LEAST_SHARE} to 1")


class Flood(_Lasting):
    """Switches lose their forwarding tables: each sends every frame out of all ports except its
    ingress port.

    :param switches: Their names.
    """

    action: Literal["flood"] = "flood"
    switches: Switches = Field(
        description="switches such as s1 or leaf2, separated by commas, each once"
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The switches."""
        return self.switches


def check_events(events: Sequence[Event], plan: FabricPlan) -> None:
    """Check that events may happen together in a fabric.

    :raises SpecError: A host or switch does not exist; or as in :func:`check_overlap` and
        :func:`check_floods`.
    """
    check_overlap(events)
    check_floods(events, plan)
    for event in events:
        for name in event.names if not isinstance(event, Flood) else ():
            plan.host(name)


def check_overlap(events: Sequence[Event]) -> None:
    """Check that no two events affect the same thing at the same time: the end of one would end the
    other.

    :raises SpecError: Two do; the text says which.
    """
    for number, second in enumerate(events):
        for first in events[:number]:
            both = set(first.names) & set(second.names)
            if both and _holds(first) == _holds(second) != "kill" and _at_once(first, second):
                raise SpecError(
                    f"{second.action} of {', '.join(sorted(both))} at {second.at:g} s and"
                    f" {first.action} at {first.at:g} s are in force at once: must not overlap,"
                    " since the end of one would end the other"
                )


def check_floods(events: Sequence[Event], plan: FabricPlan) -> None:
    """Check that no frame circulates for ever, whichever switches flood at once.

    :raises SpecError: One does, or a switch does not exist.
    """
    floods = [event for event in events if isinstance(event, Flood)]
    for one in floods:  # each largest set of overlapping floods includes one that has just begun
        check_bounded(
            plan,
            {
                name
                for other in floods
                if _at_once(one, other) and other.at <= one.at
                for name in other.names
            },
        )


def _holds(event: Event) -> str:
    """Return what an event acts on: pause and slow both stop and continue processes."""
    return "pause" if event.action == "slow" else event.action


def _at_once(first: Event, second: Event) -> bool:
    return (first.end is None or second.at < first.end) and (
        second.end is None or first.at < second.end
    )
