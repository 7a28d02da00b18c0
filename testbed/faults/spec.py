"""The faults that ``[[faults]]`` and ``--fault`` accept: packet rules, limits and events, with one
syntax. Pure.
"""

from collections.abc import Iterable
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from testbed.core.errors import SpecError
from testbed.faults.events import Event, Flood, Kill, LinkDown, Partition, Pause, Slow
from testbed.faults.limits import Limit
from testbed.faults.rules import (
    Burst,
    Corrupt,
    Delay,
    Drop,
    Duplicate,
    PacketRule,
    Range,
    Reorder,
    Rule,
    describe,
)
from testbed.faults.units import bytes_text, rate_text, seconds_text, split_words

__all__ = [
    "MODELS",
    "Fault",
    "events_of",
    "format_fault",
    "hosts_of",
    "limits_of",
    "meet_frames",
    "parse_fault",
    "rules_of",
    "text_of",
]

#: Keys of limits and events in the order of docs/scenarios.md; those of rules stand in the order of
#: their models.
_ORDER = ("hosts", "switches", "sets", "share", "rate", "queue", "direction", "at", "duration")

#: Singular names of keys, for a single value.
_SINGULAR = {"host": "hosts", "switch": "switches"}


def _table(value: Any) -> Any:
    if isinstance(value, str):
        try:
            action, keys = split_words(value)
        except SpecError as error:
            raise ValueError(str(error)) from None
        value = {"action": action, **keys}
    if isinstance(value, dict):
        many = {
            one: _SINGULAR[one] for one in _SINGULAR if one in value and _SINGULAR[one] not in value
        }
        value = {many.get(key, key): entry for key, entry in value.items()}
    return value


#: A fault: a table with the key ``action``, or the same in words (``drop p=0.01 link=h1->h2``).
#: ``host`` is ``hosts``, and ``switch`` is ``switches``.
Fault = Annotated[
    Drop
    | Duplicate
    | Corrupt
    | Delay
    | Reorder
    | Burst
    | Limit
    | LinkDown
    | Partition
    | Kill
    | Pause
    | Slow
    | Flood,
    Field(discriminator="action"),
    BeforeValidator(_table),
]

#: A fault's model by its action.
MODELS: dict[str, type[BaseModel]] = {
    str(model.model_fields["action"].default): model for model in get_args(get_args(Fault)[0])
}

_ADAPTER: TypeAdapter[Rule | Limit | Event] = TypeAdapter(Fault)


def parse_fault(text: str) -> Rule | Limit | Event:
    """Parse a fault such as ``drop p=0.01 link=h1->h2`` or ``link-down host=h2 at=2s for=500ms``.

    :raises SpecError: With a line per finding: key, value, and what it must be.
    """
    action, _ = split_words(text)
    if action not in MODELS:
        raise SpecError(
            f"fault {text!r}: action {action!r} is unknown: must be one of {', '.join(MODELS)}"
        )
    try:
        return _ADAPTER.validate_python(text)
    except ValidationError as error:
        raise SpecError(
            "\n".join(f"fault {text!r}: {line}" for line in describe(error, MODELS[action]))
        ) from None


def format_fault(fault: BaseModel) -> str:
    """A fault as text, which :func:`parse_fault` parses to an equal fault."""
    fields = type(fault).model_fields
    names = [
        name
        for name, field in fields.items()
        if name != "action" and getattr(fault, name) != field.default
    ]
    if not isinstance(fault, Rule):
        names.sort(key=_ORDER.index)
    keys = [f"{_key(fault, name)}={text_of(getattr(fault, name), name)}" for name in names]
    return " ".join([getattr(fault, "action", ""), *keys])


def _key(fault: BaseModel, name: str) -> str:
    for one, many in _SINGULAR.items():
        if name == many and len(getattr(fault, name)) == 1:
            return one
    return type(fault).model_fields[name].alias or name


def rules_of(faults: Iterable[BaseModel]) -> list[PacketRule]:
    """The packet rules among faults, in their order."""
    return [
        fault
        for fault in faults
        if isinstance(fault, Drop | Duplicate | Corrupt | Delay | Reorder | Burst)
    ]


def events_of(faults: Iterable[BaseModel]) -> list[Event]:
    """The events among faults, in their order."""
    return [fault for fault in faults if isinstance(fault, Event)]


def limits_of(faults: Iterable[BaseModel]) -> list[Limit]:
    """The limits among faults, in their order."""
    return [fault for fault in faults if isinstance(fault, Limit)]


def meet_frames(faults: Iterable[BaseModel]) -> bool:
    """Whether any of the faults needs the engine. Offloads are off while it is in force, so that
    frames are as on a real wire.
    """
    return any(
        isinstance(fault, Limit | Partition)
        or (isinstance(fault, Rule) and fault.backend == "engine")
        for fault in faults
    )


def hosts_of(fault: BaseModel) -> tuple[str, tuple[str, ...]]:
    """The key with which a fault names hosts, and the hosts without ``*``."""
    if isinstance(fault, Rule):
        return "link", tuple(name for link in fault.link for name in link if name != "*")
    if isinstance(fault, Flood):
        return "switches", ()
    if isinstance(fault, Event):
        return "sets" if "sets" in type(fault).model_fields else "hosts", fault.names
    return "hosts", fault.hosts if isinstance(fault, Limit) else ()


def text_of(value: Any, key: str) -> str:
    """The text of a key's value, as it follows ``key=``."""
    match value:
        case str():
            return value
        case float() if key in ("delay", "jitter", "within", "at", "duration"):
            return seconds_text(value)
        case float() if key == "rate":
            return rate_text(value)
        case int() if key == "queue":
            return bytes_text(value)
        case Range(first, last):
            return str(first) if first == last else f"{first}..{last}"
        case tuple() if key == "link":
            return ",".join(f"{sender}->{receiver}" for sender, receiver in value)
        case tuple() if key == "sets":
            return "|".join(map(",".join, value))
        case tuple():
            return ",".join(value)
        case _:
            return str(value)
